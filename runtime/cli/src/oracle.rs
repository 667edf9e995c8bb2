//! How far from the f64 oracle a run may lie.
//!
//! For one row [`elsa_core::reference`] gives, in f64 from the stored inputs,
//!
//! ```text
//! s_j = cap(scale · q · k_j) + mask_j      p_j = exp(s_j − max s) / Σ exp(s − max s)      y = Σ p_j v_j
//! ```
//!
//! A run in f32 with unit roundoff `u = 2^-24` computes each score with an error of at most
//!
//! ```text
//! δ_j = u · [ (d + 6) M_j + 5 |mask_j| + 2 |ln p_j| + 2 ln n + 8 (1 + X) ]     M_j = |scale| Σ_c |q_c k_jc|
//! ```
//!
//! that is: a dot product of `d` terms in any order, its scaling, the change of base and the subtraction of
//! the reference, the exponential itself (8 u), and a soft cap X. A perturbed score changes its weight by the
//! factor `exp(±δ_j)`. With `E_j = exp(δ_j) − 1`, `D = Σ p_j E_j` and `A` roundings on the way of a weight
//! into the sums (`γ_A = A u / (1 − A u)`), component by component
//!
//! ```text
//! |ŷ − y| ≤ [ Σ p_j E_j |v_j| + D Σ p_j |v_j| ] / (1 − D) + 2 γ_(A+2) Σ p_j |v_j| + u_out |y| + tiny
//! ```
//!
//! where `u_out` is the unit roundoff of the output's type and `tiny` the least normal number of that type, for
//! what underflows. The bound is worst-case and linear in `d` and `A`; errors of random sign stay far below it.
//! Relative to `‖y‖` no such bound exists, because values may cancel: `Σ p |v|` is what carries it.

use elsa_core::problem::{Inputs, Problem, Sequence};
use elsa_core::reference;
use elsa_core::view::{DType, Elements};
use std::sync::atomic::{AtomicUsize, Ordering};

const U: f64 = 5.960_464_477_539_063e-8;

/// One query row of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowId {
    /// The sequence.
    pub sequence: usize,
    /// The query head.
    pub head: usize,
    /// The query within the sequence.
    pub query: usize,
}

/// Every row of a problem: sequences outermost, queries innermost.
#[must_use]
pub fn rows(problem: &Problem, inputs: &Inputs<'_>) -> Vec<RowId> {
    let mut rows = Vec::with_capacity(problem.rows());
    for sequence in 0..problem.sequences() {
        let queries = problem.sequence(inputs, sequence).queries;
        for head in 0..problem.heads() {
            rows.extend((0..queries).map(|query| RowId { sequence, head, query }));
        }
    }
    rows
}

/// At most `count` of `rows`, evenly spread, the first and the last among them.
#[must_use]
pub fn sample(rows: &[RowId], count: usize) -> Vec<RowId> {
    if rows.len() <= count || count < 2 {
        return rows.to_vec();
    }
    (0..count).map(|i| rows[i * (rows.len() - 1) / (count - 1)]).collect()
}

/// Index of a row's first element in the output.
#[must_use]
pub fn output_row(problem: &Problem, inputs: &Inputs<'_>, row: RowId) -> usize {
    let s = problem.sequence(inputs, row.sequence);
    problem.spec().output.row(s.batch, row.head, s.query0 + row.query)
}

/// The oracle and the bound for one row at a time, with its scratch memory.
pub struct Oracle<'a> {
    problem: &'a Problem,
    inputs: Inputs<'a>,
    accumulation: f64,
    /// Probability of every key of the sequence, past included; zero where it is not attended.
    pub p: Vec<f64>,
    /// Bound of each score's error.
    pub delta: Vec<f64>,
    /// The answer.
    pub y: Vec<f64>,
    /// Bound of each component's error.
    pub bound: Vec<f64>,
}

impl<'a> Oracle<'a> {
    /// For runs in which a weight takes part in at most `accumulation` additions on its way into the sums.
    #[must_use]
    pub fn new(problem: &'a Problem, inputs: Inputs<'a>, accumulation: usize) -> Oracle<'a> {
        let dv = problem.value_dim();
        Oracle {
            problem,
            inputs,
            accumulation: accumulation as f64,
            p: Vec::new(),
            delta: Vec::new(),
            y: vec![0.0; dv],
            bound: vec![0.0; dv],
        }
    }

    /// The key of a sequence as elements and the index of its first.
    fn key(&self, s: &Sequence, kv_head: usize, j: usize) -> (Elements<'a>, usize) {
        let spec = self.problem.spec();
        match (self.inputs.past_key, &spec.past_key) {
            (Some(past), Some(view)) if j < s.past => (past, view.row(s.batch, kv_head, j)),
            _ => (self.inputs.key, spec.key.row(s.batch, kv_head, s.key0 + j - s.past)),
        }
    }

    fn value(&self, s: &Sequence, kv_head: usize, j: usize) -> (Elements<'a>, usize) {
        let spec = self.problem.spec();
        match (self.inputs.past_value, &spec.past_value) {
            (Some(past), Some(view)) if j < s.past => (past, view.row(s.batch, kv_head, j)),
            _ => (self.inputs.value, spec.value.row(s.batch, kv_head, s.key0 + j - s.past)),
        }
    }

    /// Computes `p`, `delta`, `y` and `bound` of a row.
    pub fn row(&mut self, row: RowId) {
        let (problem, inputs) = (self.problem, self.inputs);
        let spec = problem.spec();
        let RowId { sequence, head, query } = row;
        let found = reference::row(problem, &inputs, sequence, head, query, &mut self.y);
        self.p.clear();
        let p = &mut self.p;
        reference::probabilities_in(
            problem,
            &inputs,
            sequence,
            head,
            query,
            &found,
            0..usize::MAX,
            |_, x| {
                p.push(x);
            },
        );
        self.delta.clear();
        self.delta.resize(self.p.len(), 0.0);
        self.bound.fill(0.0);

        let s = problem.sequence(&inputs, sequence);
        let kv_head = problem.kv_head(head);
        let (d, scale) = (problem.head_dim(), f64::from(problem.scale()).abs());
        let q0 = spec.query.row(s.batch, head, s.query0 + query);
        let q: Vec<f64> = (0..d).map(|c| f64::from(inputs.query.get(q0 + c)).abs()).collect();
        let mask =
            spec.mask.as_ref().zip(inputs.mask).map(|(view, data)| (view.row(sequence, head, query), data));
        let keys = self.p.len().max(1) as f64;
        let constant = 2.0 * keys.ln() + 8.0 * (1.0 + spec.softcap.map_or(0.0, f64::from));
        let mut perturbed = 0.0;
        let mut weighted = vec![0.0; self.y.len()];
        for j in 0..self.p.len() {
            let p = self.p[j];
            // Not attended, or too small for f64; NaN goes on.
            if p == 0.0 {
                continue;
            }
            let (k, at) = self.key(&s, kv_head, j);
            let magnitude: f64 = q.iter().enumerate().map(|(c, q)| q * f64::from(k.get(at + c)).abs()).sum();
            let bias = mask.map_or(0.0, |(at, data)| f64::from(data.bias(at.index(j))).abs());
            let delta = (d as f64 + 6.0) * magnitude * scale + 5.0 * bias - 2.0 * p.ln() + constant;
            self.delta[j] = U * delta;
            let excess = p * (U * delta).exp_m1();
            perturbed += excess;
            let (v, at) = self.value(&s, kv_head, j);
            for (c, weighted) in weighted.iter_mut().enumerate() {
                let v = f64::from(v.get(at + c)).abs();
                *weighted += p * v;
                self.bound[c] += excess * v;
            }
        }
        let a = (self.accumulation + 2.0) * U;
        let gamma = if a < 1.0 { a / (1.0 - a) } else { f64::INFINITY };
        let keep = if perturbed < 1.0 { 1.0 - perturbed } else { 0.0 };
        let (u_out, tiny) = match spec.dtype {
            DType::F16 => (spec.dtype.unit_roundoff(), f64::from(half::f16::MIN_POSITIVE)),
            DType::F32 | DType::Bf16 => (spec.dtype.unit_roundoff(), f64::from(f32::MIN_POSITIVE)),
        };
        for ((bound, weighted), y) in self.bound.iter_mut().zip(&weighted).zip(&self.y) {
            let scores = if perturbed == 0.0 { 0.0 } else { (*bound + perturbed * weighted) / keep };
            *bound = scores + 2.0 * gamma * weighted + u_out * y.abs() + tiny;
        }
    }
}

/// How the answer of one row compares.
#[derive(Clone, Copy, Debug, Default)]
pub struct RowDrift {
    /// `max |ŷ − y|`.
    pub max: f64,
    /// `Σ (ŷ − y)²`.
    pub error: f64,
    /// `Σ y²`.
    pub reference: f64,
    /// `Σ bound²`.
    pub bound: f64,
    /// Components where exactly one of the two is finite, or that are infinite with different signs.
    pub not_finite: usize,
    /// Components whose error exceeds its bound.
    pub beyond: usize,
}

impl RowDrift {
    /// `ŷ`, read by component, against the oracle's row.
    #[must_use]
    pub fn of(oracle: &Oracle<'_>, found: impl Fn(usize) -> f64) -> RowDrift {
        let mut drift = RowDrift::default();
        for (c, (&y, &bound)) in oracle.y.iter().zip(&oracle.bound).enumerate() {
            let x = found(c);
            if !x.is_finite() || !y.is_finite() {
                drift.not_finite += usize::from(!(x == y || (x.is_nan() && y.is_nan())));
                continue;
            }
            let error = (x - y).abs();
            drift.max = drift.max.max(error);
            drift.error += error * error;
            drift.reference += y * y;
            drift.bound += bound * bound;
            drift.beyond += usize::from(error > bound);
        }
        drift
    }

    /// Over several rows: the greatest of maxima, sums of everything else.
    #[must_use]
    pub fn total(rows: &[RowDrift]) -> RowDrift {
        rows.iter().fold(RowDrift::default(), |a, b| RowDrift {
            max: a.max.max(b.max),
            error: a.error + b.error,
            reference: a.reference + b.reference,
            bound: a.bound + b.bound,
            not_finite: a.not_finite + b.not_finite,
            beyond: a.beyond + b.beyond,
        })
    }

    /// `‖ŷ − y‖ / ‖y‖`; zero when both vanish.
    #[must_use]
    pub fn relative(&self) -> f64 {
        ratio(self.error.sqrt(), self.reference.sqrt())
    }

    /// `‖bound‖ / ‖y‖`: the greatest relative error that theory allows.
    #[must_use]
    pub fn allowed(&self) -> f64 {
        ratio(self.bound.sqrt(), self.reference.sqrt())
    }

    /// Whether rounding explains every component.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.not_finite == 0 && self.beyond == 0
    }
}

/// `a / b`, where nothing over nothing is nothing.
#[must_use]
pub fn ratio(a: f64, b: f64) -> f64 {
    if a == 0.0 && b == 0.0 { 0.0 } else { a / b }
}

/// Calls `each` for every row on all cores, and gives back the results in the order of `rows`. `done` is
/// told how many rows are finished, from time to time and from any thread.
pub fn for_rows<'a, T: Send>(
    rows: &[RowId],
    make: impl Fn() -> Oracle<'a> + Sync,
    each: impl Fn(&mut Oracle<'a>, RowId) -> T + Sync,
    done: impl Fn(u64) + Sync,
) -> Vec<T> {
    const CHUNK: usize = 16;
    let next = AtomicUsize::new(0);
    let mut parts: Vec<(usize, Vec<T>)> = std::thread::scope(|scope| {
        let work = || {
            let mut oracle = make();
            let mut parts = Vec::new();
            loop {
                let start = next.fetch_add(CHUNK, Ordering::Relaxed);
                let Some(chunk) = rows.get(start..(start + CHUNK).min(rows.len())).filter(|x| !x.is_empty())
                else {
                    return parts;
                };
                parts.push((start, chunk.iter().map(|&row| each(&mut oracle, row)).collect::<Vec<T>>()));
                done(chunk.len() as u64);
            }
        };
        let workers: Vec<_> = (1..crate::board::cores()).map(|_| scope.spawn(work)).collect();
        let mut parts = work();
        for worker in workers {
            match worker.join() {
                Ok(more) => parts.extend(more),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        parts
    });
    parts.sort_unstable_by_key(|(start, _)| *start);
    parts.into_iter().flat_map(|(_, part)| part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Random;
    use elsa_core::problem::Spec;
    use elsa_core::view::{Layout, View};

    fn with_problem(test: impl Fn(&Problem, Inputs<'_>)) {
        let view = View::dense("q", Layout::Bhnd, &[2, 3, 20, 8], None).unwrap();
        let problem = Spec::new(DType::F32, view, view, view, view).check().unwrap();
        let mut random = Random::new(7);
        let [q, k, v] = [0; 3].map(|_| random.normals("q", DType::F32, view.extent(), 2.0).unwrap());
        test(&problem, Inputs::new(q.elements(), k.elements(), v.elements()));
    }

    #[test]
    fn what_lies_beyond_the_bound_is_noticed() {
        with_problem(|problem, inputs| {
            let mut oracle = Oracle::new(problem, inputs, 20);
            oracle.row(RowId { sequence: 1, head: 2, query: 7 });
            let exact = RowDrift::of(&oracle, |c| oracle.y[c]);
            assert!(exact.holds() && exact.relative() == 0.0);
            // Rounding to a single is within the bound; the bound itself is no licence to be wrong.
            assert!(RowDrift::of(&oracle, |c| f64::from(oracle.y[c] as f32)).holds());
            let off =
                RowDrift::of(&oracle, |c| oracle.y[c] + if c == 3 { 1.01 * oracle.bound[c] } else { 0.0 });
            assert_eq!((off.beyond, off.not_finite, off.holds()), (1, 0, false));
            let nan = RowDrift::of(&oracle, |c| if c < 2 { f64::NAN } else { oracle.y[c] });
            assert_eq!((nan.beyond, nan.not_finite, nan.holds()), (0, 2, false));
            assert!(oracle.bound.iter().all(|b| *b < 1e-3), "{:?}", oracle.bound);
            // A wrong answer, such as the next row's, is far beyond.
            let wrong = oracle.y.clone();
            oracle.row(RowId { sequence: 1, head: 2, query: 8 });
            assert!(RowDrift::of(&oracle, |c| wrong[c]).beyond > 4);
        });
    }

    #[test]
    fn rows_come_back_in_order_whatever_thread_took_them() {
        with_problem(|problem, inputs| {
            let all = rows(problem, &inputs);
            assert_eq!(all.len(), 120);
            let back = for_rows(&all, || Oracle::new(problem, inputs, 20), |_, row| row, |_| {});
            assert_eq!(back, all);
            let few = sample(&all, 7);
            assert_eq!((few.len(), few[0], few[6]), (7, all[0], all[119]));
        });
    }
}
