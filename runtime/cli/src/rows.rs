//! The query rows of a problem, and parallel work on them.

use crate::machine;
use elsa_core::attention::{Inputs, Problem};
use std::sync::atomic::{AtomicUsize, Ordering};

/// One query row of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowId {
    /// Index of the sequence.
    pub sequence: usize,
    /// Index of the query head.
    pub head: usize,
    /// Index of the query within the sequence.
    pub query: usize,
}

/// Returns every row of a problem, ordered by sequence, then by query head, then by query.
#[must_use]
pub fn rows(problem: &Problem, inputs: &Inputs<'_>) -> Vec<RowId> {
    let mut rows = Vec::with_capacity(problem.rows());
    for sequence in 0..problem.sequences() {
        let queries = problem.sequence(&inputs.lengths, sequence).queries;
        for head in 0..problem.heads() {
            rows.extend((0..queries).map(|query| RowId { sequence, head, query }));
        }
    }
    rows
}

/// Returns `count` of `rows`. They are evenly spread, and include the first and the last row. Returns all rows if there
/// are no more than `count`, or if `count` is below two.
#[must_use]
pub fn sample(rows: &[RowId], count: usize) -> Vec<RowId> {
    if rows.len() <= count || count < 2 {
        return rows.to_vec();
    }
    (0..count).map(|i| rows[i * (rows.len() - 1) / (count - 1)]).collect()
}

/// Returns the index of the first element of `row` in the output.
#[must_use]
pub fn output_row(problem: &Problem, inputs: &Inputs<'_>, row: RowId) -> usize {
    let s = problem.sequence(&inputs.lengths, row.sequence);
    problem.spec().output.row(s.batch, row.head, s.query0 + row.query)
}

/// Calls `each` for every row, on all cores, and returns the results in the order of `rows`. `make` creates the scratch
/// memory of a thread. Each thread calls `done` with the number of rows that it has just finished.
pub fn for_rows<S, T: Send>(
    rows: &[RowId],
    make: impl Fn() -> S + Sync,
    each: impl Fn(&mut S, RowId) -> T + Sync,
    done: impl Fn(u64) + Sync,
) -> Vec<T> {
    for_items(rows, 16, make, |scratch, row| each(scratch, *row), done)
}

/// Processes items of any type like [`for_rows`]. A thread processes `chunk` items at a time.
pub fn for_items<I: Sync, S, T: Send>(
    items: &[I],
    chunk: usize,
    make: impl Fn() -> S + Sync,
    each: impl Fn(&mut S, &I) -> T + Sync,
    done: impl Fn(u64) + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let mut finished: Vec<(usize, Vec<T>)> = std::thread::scope(|scope| {
        let work = || {
            let mut scratch = make();
            let mut finished = Vec::new();
            loop {
                let start = next.fetch_add(chunk, Ordering::Relaxed);
                let Some(taken) =
                    items.get(start..(start + chunk).min(items.len())).filter(|x| !x.is_empty())
                else {
                    return finished;
                };
                finished.push((start, taken.iter().map(|item| each(&mut scratch, item)).collect::<Vec<T>>()));
                done(taken.len() as u64);
            }
        };
        let workers: Vec<_> = (1..machine::cores()).map(|_| scope.spawn(work)).collect();
        let mut finished = work();
        for worker in workers {
            match worker.join() {
                Ok(more) => finished.extend(more),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        finished
    });
    finished.sort_unstable_by_key(|(start, _)| *start);
    finished.into_iter().flat_map(|(_, results)| results).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Shape;
    use elsa_core::dtype::{DType, Elements};

    #[test]
    fn rows_come_back_in_order_whatever_thread_took_them() {
        let shape = Shape::plain(2, 3, 20, 20, 8);
        let problem = shape.problem(DType::F32).unwrap();
        let zeros = [0.0f32; 960];
        let tensor = Elements::F32(&zeros);
        let all = rows(&problem, &Inputs::new(tensor, tensor, tensor));
        assert_eq!(all.len(), 120);
        let back = for_rows(&all, || (), |(), row| row, |_| {});
        assert_eq!(back, all);
        let few = sample(&all, 7);
        assert_eq!((few.len(), few[0], few[6]), (7, all[0], all[119]));
    }
}
