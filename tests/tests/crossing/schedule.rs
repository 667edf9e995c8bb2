//! Compares tiles, coverage and intervals with the definition, key by key, on every hard case and on random problems.

use elsa_core::attention::Sequence;
use elsa_core::attention::reference::attends;
use elsa_core::attention::schedule::{Coverage, Tiling, coverage, restrict};
use elsa_oracle::cases::{Case, Params, any_case, hard_cases};
use proptest::prelude::*;

/// Checks the range of keys of each row against its definition. Also compares two ranges with the ranges of the rows: the
/// keys that at least one of `rows` attends, and the keys that all of `rows` attend.
fn check_ranges(case: &Case, sequence: &Sequence, rows: std::ops::Range<usize>) {
    let reach = sequence.reach() as i128;
    let ends = |i: usize| {
        let diagonal = sequence.offset() as i128 + i as i128;
        let end = sequence.right().map_or(reach, |right| (diagonal + right as i128 + 1).clamp(0, reach));
        let start = sequence.left().map_or(0, |left| (diagonal - left as i128).max(0));
        (start.min(end), end)
    };
    for i in rows.clone() {
        let (start, end) = sequence.range(i);
        assert_eq!((start as i128, end as i128), ends(i), "{case:?} row {i}");
    }
    let (some, all) = sequence.ranges(rows.clone());
    assert_eq!((some.start, some.end), (sequence.range(rows.start).0, sequence.range(rows.end - 1).1));
    for j in 0..sequence.keys {
        let has = |i: usize| (sequence.range(i).0..sequence.range(i).1).contains(&j);
        assert!(some.contains(&j) || !rows.clone().any(has), "{case:?}: {some:?} without key {j}");
        assert_eq!(all.contains(&j), rows.clone().all(has), "{case:?}: {all:?}, key {j}");
    }
}

/// Checks all tiles of `lanes · vectors` rows and blocks of `block` keys. Returns the numbers of skipped, full and
/// partial blocks.
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
                if head == 0 {
                    check_ranges(case, &sequence, tile.rows.clone());
                }
                for start in (0..sequence.keys).step_by(block) {
                    let keys = start..sequence.keys.min(start + block);
                    let attended = |i: usize, j: usize| {
                        let (start, end) = sequence.range(i);
                        assert!(!attends(&problem, &inputs, index, head, i, j) || (start..end).contains(&j));
                        (start..end).contains(&j)
                    };
                    let pairs = || tile.rows.clone().flat_map(|i| keys.clone().map(move |j| (i, j)));
                    let some = pairs().any(|(i, j)| attended(i, j));
                    let all = pairs().all(|(i, j)| attended(i, j));
                    let found = coverage(&problem, &sequence, tile.rows.clone(), keys.clone());
                    counts[found as usize] += 1;
                    // A block that lengths, causality and window leave empty is skipped. A block that is attended
                    // completely needs inspection only if a mask, a bias or the sides of a window may exclude keys.
                    let divided = case.spec.windows.is_some_and(|windows| windows.sides(index).is_some());
                    let changed = case.mask.is_some() || case.bias.is_some() || divided;
                    let want = match (some, all, changed) {
                        (false, ..) => Coverage::Skip,
                        (_, true, false) => Coverage::Full,
                        _ => Coverage::Partial,
                    };
                    assert_eq!(found, want, "{case:?}: {:?} {keys:?}", tile.rows);
                    let mut bias: Vec<f32> = (0..keys.len() * width).map(|at| at as f32).collect();
                    restrict(&sequence, tile.rows.clone(), keys.clone(), width, &mut bias);
                    for (at, b) in bias.into_iter().enumerate() {
                        let (j, i) = (keys.start + at / width, tile.rows.start + at % width);
                        let stays = i >= tile.rows.end || attended(i, j);
                        let want = if stays { at as f32 } else { f32::NEG_INFINITY };
                        assert_eq!(b, want, "{case:?}: row {i}, key {j}");
                    }
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
        for (lanes, vectors, block) in [(16, 3, 64), (8, 3, 64), (1, 1, 128)] {
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
    // The diagonal crosses at most 20 + 15 of the 20 · 15 tiles.
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
