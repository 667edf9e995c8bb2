//! An audit draws rows at random. Like every compared row, these rows are recomputed in f64. A few of them are also
//! recomputed in double-double.
//!
//! Double-double checks the oracle itself. A result in double-double has roughly 30 digits. If the f64 oracle differs
//! from it by far less than the error bounds, the reported errors are errors of the judged output, and not of the
//! oracle.

use crate::oracle::{Oracle, key, value};
use crate::random::Random;
use crate::rows::{RowId, for_rows, sample};
use elsa_core::attention::{Inputs, Problem, reference, scalar};
use elsa_core::double::Double;
use elsa_core::drift::larger;
use serde::Serialize;

/// Maximum number of rows that are recomputed in double-double.
const PRECISE: usize = 8;

/// Results of an audit.
#[derive(Clone, Debug, Serialize)]
pub struct Audit {
    /// Seed with which the rows were drawn.
    pub seed: u64,
    /// Number of rows that were recomputed in double-double.
    pub precise_rows: usize,
    /// Error of the f64 oracle in these rows: the largest difference from double-double, relative to the maximum of
    /// `Σ p_j |v_j|` in the row.
    pub oracle_error: f64,
}

/// Draws `count` different rows from `all` with `seed`, and returns them in their original order. Returns all rows if
/// there are at most `count`.
#[must_use]
pub fn draw(all: &[RowId], count: usize, seed: u64) -> Vec<RowId> {
    let mut random = Random::new(seed);
    let mut places: Vec<usize> = (0..all.len()).collect();
    let count = count.min(all.len());
    for i in 0..count {
        // The random number is in (0, 1], so the index is below the length.
        let left = (all.len() - i) as f64;
        places.swap(i, i + ((1.0 - random.uniform()) * left) as usize);
    }
    places.truncate(count);
    places.sort_unstable();
    places.into_iter().map(|at| all[at]).collect()
}

/// Returns a seed from the system's random numbers.
#[must_use]
pub fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    // JSON readers preserve only 53 bits of an integer.
    RandomState::new().hash_one(0) >> 11
}

/// Recomputes up to [`PRECISE`] of `rows` in double-double. `seed` is recorded in the result.
#[must_use]
pub fn precisely(problem: &Problem, inputs: Inputs<'_>, rows: &[RowId], seed: u64) -> Audit {
    let some = sample(rows, PRECISE);
    let some = &some[..some.len().min(PRECISE)];
    // The oracle needs execution data, but its bounds are not used here.
    let executed = scalar::executed(problem);
    let errors = for_rows(
        some,
        || Oracle::new(problem, inputs, &executed),
        |oracle, row| {
            oracle.row(row);
            let exact = precise(problem, inputs, row);
            let finite = oracle.y.iter().zip(&exact).filter(|(y, _)| y.is_finite());
            let error = finite.map(|(y, exact)| (*exact - Double::from(*y)).to_f64().abs());
            let error = error.fold(0.0, larger);
            let terms = oracle.terms.iter().copied().filter(|x| x.is_finite()).fold(0.0, f64::max);
            if error == 0.0 { 0.0 } else { error / terms }
        },
        |_| {},
    );
    Audit { seed, precise_rows: some.len(), oracle_error: errors.into_iter().fold(0.0, larger) }
}

/// Computes a row of attention in double-double, directly from the definition.
fn precise(problem: &Problem, inputs: Inputs<'_>, row: RowId) -> Vec<Double> {
    let RowId { sequence, head, query } = row;
    let spec = problem.spec();
    let s = problem.sequence(&inputs.lengths, sequence);
    let kv_head = problem.kv_head(head);
    let q0 = spec.query.row(s.batch, head, s.query0 + query);
    let scale = Double::from(f64::from(problem.scale()));
    let mut scores: Vec<(usize, Double)> = Vec::new();
    for j in 0..s.keys {
        let Some(bias) = reference::bias(problem, &inputs, sequence, head, query, j) else { continue };
        let (k, at) = key(problem, &inputs, &s, kv_head, j);
        let mut score = Double::default();
        for c in 0..problem.head_dim() {
            score = score + Double::product(f64::from(inputs.query.get(q0 + c)), f64::from(k.get(at + c)));
        }
        score = score * scale;
        if let Some(cap) = spec.softcap.filter(|cap| *cap > 0.0) {
            let cap = Double::from(f64::from(cap));
            score = cap * (score / cap).tanh();
        }
        scores.push((j, score + Double::from(bias)));
    }
    let max = scores.iter().map(|(_, score)| score.to_f64()).fold(f64::NEG_INFINITY, f64::max);
    let mut sum = Double::default();
    let mut y = vec![Double::default(); problem.value_dim()];
    for (j, score) in scores {
        let weight = (score - Double::from(max)).exp();
        sum = sum + weight;
        let (v, at) = value(problem, &inputs, &s, kv_head, j);
        for (c, y) in y.iter_mut().enumerate() {
            *y = *y + weight * Double::from(f64::from(v.get(at + c)));
        }
    }
    if sum.to_f64() != 0.0 {
        y.iter_mut().for_each(|y| *y = *y / sum);
    }
    y
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;
    use crate::shape::Shape;
    use elsa_core::attention::Alignment;
    use elsa_core::dtype::DType;

    #[test]
    fn rows_are_drawn_once_and_by_their_seed() {
        let all: Vec<RowId> = (0..50).map(|query| RowId { sequence: 0, head: 1, query }).collect();
        let drawn = draw(&all, 7, 3);
        assert_eq!((drawn.len(), &drawn), (7, &draw(&all, 7, 3)));
        assert!(drawn.windows(2).all(|two| two[0].query < two[1].query));
        assert_ne!(drawn, draw(&all, 7, 4));
        assert_eq!(draw(&all, 99, 3), all);
        // Over 400 seeds, every row is drawn at least once.
        let mut seen = [false; 50];
        (0..400).for_each(|seed| seen[draw(&all, 1, seed)[0].query] = true);
        assert!(seen.iter().all(|seen| *seen));
    }

    #[test]
    fn the_oracle_agrees_with_thirty_digits() {
        for case in Scenario::Stress.cases().unwrap() {
            let inputs = case.inputs();
            let all = crate::rows::rows(&case.problem, &inputs);
            let audit = precisely(&case.problem, inputs, &draw(&all, 2, 1), 1);
            // The scores reach several hundred, so f64 is not exact, but its error is far below any bound of f32.
            assert!(audit.precise_rows == 2 && audit.oracle_error < 1e-12, "{}: {audit:?}", case.name);
            assert!(case.name == "masked" || audit.oracle_error > 0.0, "{}", case.name);
        }
    }

    #[test]
    fn two_keys_by_hand() {
        let mut spec = Shape::plain(1, 1, 2, 2, 4).spec(DType::F32).unwrap();
        spec.causal = Some(Alignment::BottomRight);
        spec.scale = Some(1.0);
        let problem = spec.check().unwrap();
        let (q, k) =
            ([1.0f32, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0], [0.0f32, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]);
        let v = [0.0f32, 0.0, 0.0, 0.0, 1.0, 2.0, 0.0, 0.0];
        use elsa_core::dtype::Elements::F32;
        let inputs = Inputs::new(F32(&q), F32(&k), F32(&v));
        let row = |query| precise(&problem, inputs, RowId { sequence: 0, head: 0, query });
        assert!(row(0).iter().all(|y| y.to_f64() == 0.0));
        // The output is exp(1) / (1 + exp(1)) times the value.
        let e = Double::from(1.0).exp();
        let by_hand = e / (Double::from(1.0) + e);
        let y = row(1);
        assert!((y[0] - by_hand).to_f64().abs() < 1e-30 && (y[1] - by_hand - by_hand).to_f64().abs() < 1e-30);
    }
}
