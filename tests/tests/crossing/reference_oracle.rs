//! Compares the oracle with a naive implementation of the definition, over random problems with every feature.

use elsa_core::attention::reference;
use elsa_oracle::cases::{Case, any_case, hard_cases};
use proptest::prelude::*;

/// Output of the oracle in its layout, log-sum-exp, and the number of rows whose probabilities were checked.
struct Oracle {
    y: Vec<f64>,
    lse: Vec<f64>,
    rows: usize,
}

fn oracle(case: &Case) -> Oracle {
    let (problem, inputs) = (case.problem(), case.inputs());
    let spec = problem.spec();
    let mut out = Oracle { y: vec![0.0; spec.output.extent()], lse: vec![f64::NAN; problem.rows()], rows: 0 };
    let mut line = vec![0.0; problem.value_dim()];
    for n in 0..problem.sequences() {
        let s = problem.sequence(&inputs.lengths, n);
        for h in 0..problem.heads() {
            for i in 0..s.queries {
                let row = reference::row(&problem, &inputs, n, h, i, &mut line);
                let token = s.query0 + i;
                out.lse[(s.batch * problem.heads() + h) * spec.query.tokens() + token] = row.lse;
                let to = spec.output.row(s.batch, h, token);
                out.y[to..to + line.len()].copy_from_slice(&line);
                out.rows += 1;
                let mut total = 0.0;
                let mut next = 0;
                let (start, end) = s.range(i);
                reference::probabilities(&problem, &inputs, n, h, i, |j, p| {
                    assert_eq!(j, next, "keys are visited in order");
                    next += 1;
                    let attends = reference::attends(&problem, &inputs, n, h, i, j);
                    assert!(attends || p == 0.0);
                    // A row attends no key outside its interval.
                    assert!(!attends || (start..end).contains(&j), "{case:?}: row {i}, key {j}");
                    // If nothing is decided key by key, a row attends its entire interval.
                    assert!(
                        problem.modifies(s.batch) || attends == (start..end).contains(&j),
                        "{case:?}: row {i}, key {j}"
                    );
                    total += p;
                });
                assert_eq!(next, s.keys);
                if row.lse.is_finite() {
                    assert!((total - 1.0).abs() < 1e-12, "{case:?}: probabilities add up to {total}");
                }
            }
        }
    }
    out
}

/// Compares the oracle with the naive definition. The tolerance is relative to the sum of magnitudes, because the two
/// implementations add in different orders. Returns the number of rows.
fn assert_agree(case: &Case) -> usize {
    let (got, want) = (oracle(case), case.naive());
    let same =
        |a: f64, b: f64, size: f64| (a.is_nan() && b.is_nan()) || a == b || (a - b).abs() <= 1e-10 * size;
    for (at, (a, b)) in got.lse.iter().zip(&want.lse).enumerate() {
        // If a score is +∞, both log-sum-exps are NaN.
        assert!(same(*a, *b, 1.0 + want.size[at]), "{case:?}: log-sum-exp {at}: {a} and {b}");
    }
    let size = want.size.iter().fold(1.0f64, |a, b| a.max(if b.is_finite() { *b } else { 0.0 }));
    for (x, (a, b)) in got.y.iter().zip(&want.y).enumerate() {
        assert!(same(*a, *b, want.spread[x] * size), "{case:?}: output {x}: {a} and {b}");
    }
    got.rows
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn agrees_with_the_definition(case in any_case()) {
        assert_agree(&case);
    }
}

#[test]
fn agrees_on_hard_cases() {
    let cases = hard_cases();
    let mut names: Vec<&str> = cases.iter().map(|c| &c.name[..]).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), cases.len(), "two hard cases share a name");
    let rows: usize = cases.iter().map(assert_agree).sum();
    assert!(cases.len() > 100 && rows > 10_000, "{} cases, {rows} rows", cases.len());
}
