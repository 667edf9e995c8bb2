//! Tiles, coverage and bias against the definition, key by key, on every hard case and on random problems.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use elsa_core::attention::reference::attends;
use elsa_core::attention::schedule::{Coverage, Tiling, coverage, fill_bias};
use elsa_core::attention::{Inputs, Problem, Sequence};
use elsa_tests::cases::{Case, Params, any_case, hard_cases};
use proptest::prelude::*;

/// What the mask adds to the score of a key, in base-2 units.
fn added(
    problem: &Problem,
    inputs: &Inputs<'_>,
    sequence: &Sequence,
    head: usize,
    i: usize,
    j: usize,
) -> f64 {
    let mask = problem.spec().mask.as_ref().zip(inputs.mask);
    mask.map_or(0.0, |(view, data)| {
        let at = view.row(sequence.batch, head, i).index(j);
        f64::from(data.bias(at)) * std::f64::consts::LOG2_E
    })
}

/// Checks all tiles of `lanes · vectors` rows and blocks of `block` keys. Returns how many were skipped, full and
/// partial.
fn check(case: &Case, lanes: usize, vectors: usize, block: usize) -> [usize; 3] {
    let problem = case.problem();
    let inputs = case.inputs();
    let mut counts = [0; 3];
    for index in 0..problem.sequences() {
        let sequence = problem.sequence(&inputs.lengths, index);
        let tiling = Tiling::new(sequence.queries, lanes, vectors);
        for head in 0..problem.heads() {
            for t in 0..tiling.count() {
                let tile = tiling.tile(t);
                let width = tile.vectors * lanes;
                for start in (0..sequence.keys).step_by(block) {
                    let keys = start..sequence.keys.min(start + block);
                    let attended = |i: usize, j: usize| attends(&problem, &inputs, index, head, i, j);
                    let pairs = || tile.rows.clone().flat_map(|i| keys.clone().map(move |j| (i, j)));
                    let some = pairs().any(|(i, j)| attended(i, j));
                    let all = pairs().all(|(i, j)| attended(i, j));
                    let rough = coverage(&problem, &sequence, tile.rows.clone(), keys.clone());
                    let mut bias = vec![f32::NAN; keys.len() * width];
                    let fine = match rough {
                        Coverage::Partial => fill_bias(
                            &problem,
                            &inputs,
                            &sequence,
                            head,
                            tile.rows.clone(),
                            keys.clone(),
                            width,
                            &mut bias,
                        ),
                        other => other,
                    };
                    counts[fine as usize] += 1;
                    match fine {
                        Coverage::Skip => assert!(!some, "{case:?} skips {:?} {keys:?}", tile.rows),
                        Coverage::Full => assert!(all, "{case:?} takes {:?} {keys:?} for full", tile.rows),
                        Coverage::Partial => {
                            for (i, j) in pairs() {
                                let b = bias[(j - start) * width + i - tile.rows.start];
                                assert_eq!(
                                    b == f32::NEG_INFINITY,
                                    !attended(i, j),
                                    "{case:?} row {i} key {j}"
                                );
                                if !attended(i, j) {
                                    continue;
                                }
                                // NaN and infinities as they are.
                                let want = added(&problem, &inputs, &sequence, head, i, j);
                                let exact = b.is_nan() && want.is_nan() || f64::from(b) == want;
                                let near = (f64::from(b) - want).abs() <= 2e-7 * want.abs();
                                assert!(exact || near, "{case:?} row {i} key {j}: {b}, not {want}");
                            }
                        }
                    }
                    // A block that is masked as a whole is never computed.
                    assert!(some || fine == Coverage::Skip, "{case:?} computes {:?} {keys:?}", tile.rows);
                    // Without an additive mask a fully attended block needs no mask.
                    let plain = case.mask.is_none();
                    assert!(
                        !(plain && all) || fine == Coverage::Full,
                        "{case:?} masks {:?} {keys:?}",
                        tile.rows
                    );
                }
            }
        }
    }
    counts
}

#[test]
fn hard_cases_are_covered_as_defined() {
    let mut counts = [0; 3];
    for case in hard_cases() {
        for (lanes, vectors, block) in [(16, 3, 64), (4, 3, 64), (1, 1, 128)] {
            for (sum, n) in counts.iter_mut().zip(check(&case, lanes, vectors, block)) {
                *sum += n;
            }
        }
    }
    println!("skipped, full, partial: {counts:?}");
    assert!(counts.iter().all(|n| *n > 100));
}

#[test]
fn causal_skips_what_lies_above_the_diagonal() {
    use elsa_core::attention::Alignment;
    let p = Params { causal: Some(Alignment::TopLeft), ..Params::plain(960, 960, 4, 4) };
    let [skip, full, partial] = check(&p.build("causal"), 16, 3, 64);
    // Of 20 · 15 tiles those that the diagonal crosses are at most 20 + 15.
    assert_eq!(skip + full + partial, 300);
    assert!(partial <= 35 && skip >= 125 && full >= 125, "{skip} {full} {partial}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_problems_are_covered_as_defined(case in any_case(), vectors in 1usize..4) {
        check(&case, 4, vectors, 64);
    }
}
