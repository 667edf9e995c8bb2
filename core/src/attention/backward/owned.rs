//! The pairs of a task of quorums.

use crate::attention::schedule::Coverage;
use crate::quorum::{Run, Task};
use core::ops::Range;

fn run_of(runs: &[Run], token: usize) -> Option<&Run> {
    runs.iter().find(|run| (run.span().start..run.span().start + run.span().tokens).contains(&token))
}

/// The number of tokens that a run and a range of original tokens share.
fn shared(run: &Run, tokens: &Range<usize>) -> usize {
    let span = run.span();
    (span.start + span.tokens).min(tokens.end).saturating_sub(span.start.max(tokens.start))
}

/// Whether the pair of query `i` and key `j`, by their places in the original sequence, is the task's.
#[must_use]
pub fn owns(task: &Task, i: usize, j: usize) -> bool {
    match (run_of(task.queries(), i), run_of(task.keys(), j)) {
        (Some(query), Some(key)) => task.meet(query, key),
        _ => false,
    }
}

/// How many of the pairs of `rows` and `keys` are the task's: none, all, or some.
#[must_use]
pub fn owned(task: &Task, rows: &Range<usize>, keys: &Range<usize>) -> Coverage {
    let mut pairs = 0;
    for query in task.queries() {
        let queries = shared(query, rows);
        if queries > 0 {
            let met = task.keys().iter().filter(|key| task.meet(query, key));
            pairs += queries * met.map(|key| shared(key, keys)).sum::<usize>();
        }
    }
    match pairs {
        0 => Coverage::Skip,
        n if n == rows.len() * keys.len() => Coverage::Full,
        _ => Coverage::Partial,
    }
}

/// Writes `−∞` to `bias` (`[key][width]`, one column per row) wherever a pair is not the task's, and leaves the rest alone.
///
/// # Panics
/// Panics if `bias` is shorter than `keys.len() · width`, or if `width` is less than the number of rows.
pub fn disown(task: &Task, rows: &Range<usize>, keys: &Range<usize>, width: usize, bias: &mut [f32]) {
    // Rows and keys of one run each are decided together.
    let mut i = rows.start;
    while i < rows.end {
        let query = run_of(task.queries(), i);
        let last = query.map_or(i + 1, |run| rows.end.min(run.span().start + run.span().tokens));
        let mut j = keys.start;
        while j < keys.end {
            let key = run_of(task.keys(), j);
            let end = key.map_or(j + 1, |run| keys.end.min(run.span().start + run.span().tokens));
            if !query.zip(key).is_some_and(|(query, key)| task.meet(query, key)) {
                for line in bias[(j - keys.start) * width..(end - keys.start) * width].chunks_exact_mut(width)
                {
                    line[i - rows.start..last - rows.start].fill(f32::NEG_INFINITY);
                }
            }
            j = end;
        }
        i = last;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quorum::Division;

    #[test]
    fn tiles_agree_with_pairs_and_every_pair_has_one_task() {
        let (queries, keys) = (23, 31);
        let division = Division::new(&[7]).unwrap();
        let mut owners = [[0u8; 31]; 23];
        for number in 0..division.tasks() {
            let path = division.path(number).unwrap();
            let task = Task::new(&division, &path, queries, keys).unwrap();
            for (rows, columns) in
                [(0..23, 0..31), (3..9, 0..31), (5..6, 7..8), (20..23, 16..31), (0..3, 0..4)]
            {
                let mut bias = [0.0; 31 * 24];
                disown(&task, &rows, &columns, 24, &mut bias);
                let mut pairs = 0;
                for i in rows.clone() {
                    for j in columns.clone() {
                        let mine = owns(&task, i, j);
                        pairs += usize::from(mine);
                        let found = bias[(j - columns.start) * 24 + i - rows.start];
                        assert_eq!(found, if mine { 0.0 } else { f32::NEG_INFINITY });
                    }
                }
                let want = match pairs {
                    0 => Coverage::Skip,
                    n if n == rows.len() * columns.len() => Coverage::Full,
                    _ => Coverage::Partial,
                };
                assert_eq!(owned(&task, &rows, &columns), want);
            }
            (0..queries).for_each(|i| (0..keys).for_each(|j| owners[i][j] += u8::from(owns(&task, i, j))));
        }
        assert!(owners.iter().flatten().all(|n| *n == 1));
    }
}
