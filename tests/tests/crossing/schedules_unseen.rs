//! Tests blocks that are skipped before any of their products is computed, because the numbers added to scores,
//! together with the norms, prove that their weights are small (*unseen* blocks).

use super::schedules_kernels::{BLOCK, run, within};
use elsa_core::attention::traversal::{Schedule, TileSize};
use elsa_core::attention::{Alignment, MaskKind};
use elsa_core::dtype::DType;
use elsa_oracle::SLOW;
use elsa_oracle::cases::{BiasParams, Case, Data, MaskData, MaskParams, Params};
use elsa_oracle::cpu_engines;
use elsa_oracle::random::seeded;
use elsa_oracle::schedules::{ScheduleRun, judge, judge_by, same, try_run};
use elsa_runtime::{PlanOptions, RunError};
use std::f64::consts::LOG2_E;
use std::ops::Range;

const NUMBERS: MaskKind = MaskKind::Additive(DType::F32);

/// Number of keys of the long cases. The second-to-last block is not the first of its segment.
const KEYS: usize = if SLOW { 12 * BLOCK } else { 32 * BLOCK };

pub fn mask(dims: &[usize]) -> Option<MaskParams> {
    Some(MaskParams { kind: NUMBERS, dims: dims.to_vec(), density: 1.0 })
}

/// Fills a mask of `[queries, keys]` with `at(query, key)`.
pub fn fill(case: &mut Case, keys: usize, at: impl Fn(usize, usize) -> f32) {
    let Some(MaskData::Additive(data)) = &mut case.mask else { panic!("{case:?}") };
    (0..data.len()).for_each(|n| data.set(n, at(n / keys, n % keys)));
}

/// Returns a case with linear biases: a mask that decreases by `slope` per key of distance, and small scores.
fn linear(queries: usize, keys: usize, slope: f32) -> Case {
    let params = Params { gain: 0.5, mask: mask(&[queries, keys]), ..Params::plain(queries, keys, 8, 4) };
    let mut case = params.build("linear biases");
    fill(&mut case, keys, |i, j| -slope * i.abs_diff(j) as f32);
    case
}

/// Results of [`account`]. `rows` contains `S` and `D` of every row in f64, relative to a score of zero. `count`
/// contains the numbers of blocks that are skipped unseen, skipped by their weights, and kept.
struct Account {
    rows: Vec<[f64; 2]>,
    count: [u64; 3],
    /// The largest magnitude of a computed score, in natural-log units.
    size: f64,
}

/// Decides from the definition, in f64, which blocks are skipped, for one head in f32 with a mask of `[queries, keys]`
/// and no other feature except causality.
fn account(case: &Case, budget: f64, tiles: &[Range<usize>]) -> Account {
    let problem = case.problem();
    let (d, keys, scale) = (problem.head_dim(), problem.keys(), f64::from(problem.scale()));
    let Some(MaskData::Additive(mask)) = &case.mask else { panic!("{case:?}") };
    let row = |data: &Data, n: usize| (0..d).map(|x| f64::from(data.get(n * d + x))).collect::<Vec<_>>();
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let [q, k] = [(&case.q, problem.rows()), (&case.k, keys)]
        .map(|(data, n)| (0..n).map(|n| row(data, n)).collect::<Vec<_>>());
    let norm = |x: &[f64]| dot(x, x).sqrt();
    let mut found = Account { rows: vec![[0.0; 2]; q.len()], count: [0; 3], size: 0.0 };
    let fits = |[s, d]: [f64; 2], b: f64| {
        let (left, most) = (d + b, budget * (s + d + b));
        assert!(b == 0.0 || s == 0.0 || (left / most - 1.0).abs() > 0.004, "{case:?}: {left} {most}");
        b == 0.0 || left < most
    };
    let offset = if case.spec.causal == Some(Alignment::BottomRight) { keys - q.len() } else { 0 };
    let attends = |i: usize, j: usize| case.spec.causal.is_none() || j <= i + offset;
    let added = |i: usize, j: usize| match attends(i, j) {
        true => f64::from(mask.get(i * keys + j)) * LOG2_E,
        false => f64::NEG_INFINITY,
    };
    for tile in tiles {
        // Weight of a row's own key; zero if the row has no own key or the key is masked.
        let own = |i: usize| match i + offset {
            j if j < keys => (dot(&q[i], &k[j]) * scale * LOG2_E + added(i, j)).exp2(),
            _ => 0.0,
        };
        for start in (0..keys).step_by(BLOCK) {
            let block = start..keys.min(start + BLOCK);
            let before = block.end <= tile.start + offset;
            let largest = block.clone().map(|j| norm(&k[j])).fold(0.0, f64::max);
            let most = |i: usize| {
                let top = block.clone().map(|j| added(i, j)).fold(f64::NEG_INFINITY, f64::max);
                block.len() as f64 * (top + norm(&q[i]) * largest * scale * LOG2_E).exp2()
            };
            let weight = |i: usize, j: usize| (dot(&q[i], &k[j]) * scale * LOG2_E + added(i, j)).exp2();
            let weights = |i: usize| block.clone().map(|j| weight(i, j)).sum::<f64>();
            let magnitude =
                |(i, j): (usize, usize)| norm(&q[i]) * norm(&k[j]) * scale + (added(i, j) / LOG2_E).abs();
            let pairs = tile.clone().flat_map(|i| block.clone().map(move |j| (i, j)));
            let pairs = pairs.filter(|(i, j)| added(*i, *j) > f64::NEG_INFINITY);
            let size = pairs.map(magnitude).fold(0.0, f64::max);
            if !tile.clone().any(|i| block.clone().any(|j| added(i, j) > f64::NEG_INFINITY)) {
                continue;
            }
            let rows = &mut found.rows;
            let own = |i: usize| if before { own(i) } else { 0.0 };
            if tile.clone().all(|i| fits([rows[i][0].max(own(i)), rows[i][1]], most(i))) {
                tile.clone().for_each(|i| rows[i][1] += most(i));
                found.count[0] += 1;
                continue;
            }
            found.size = found.size.max(size);
            if tile.clone().all(|i| fits(rows[i], weights(i))) {
                tile.clone().for_each(|i| rows[i][1] += weights(i));
                found.count[1] += 1;
            } else {
                tile.clone().for_each(|i| rows[i][0] += weights(i));
                found.count[2] += 1;
            }
        }
    }
    found
}

/// Compares the counts and sums of a run with its account.
pub fn compare(case: &Case, ran: &ScheduleRun, budget: f64, tiles: &[Range<usize>]) {
    let account = account(case, budget, tiles);
    let report = &ran.report;
    let [unseen, skipped, _] = account.count;
    assert_eq!([report.unseen_blocks, report.skipped_blocks], [unseen, unseen + skipped], "{report:?}");
    assert_eq!(report.blocks, account.count.iter().sum::<u64>());
    for (i, [s, d]) in account.rows.iter().copied().enumerate() {
        let m = f64::from(ran.buffers.m[i]).exp();
        let (found_s, found_d) = (f64::from(ran.buffers.s[i]) * m, f64::from(ran.d[i]) * m);
        // This allows for the roundings of scores of 8 dims, of their addends, and of their distances from references.
        let off = 2e-5 + 16.0 * 6e-8 * account.size;
        assert!((found_s / s - 1.0).abs() < off, "row {i}: S {found_s:e} {s:e}");
        // `D` is rounded up, and no weight is below that of the floor.
        let floor = s * case.problem().keys() as f64 * 2f64.powi(-110);
        assert!(
            found_d >= d * (1.0 - off) - floor && found_d <= d * (1.002 + off) + floor,
            "row {i}: D {found_d:e} {d:e}"
        );
    }
}

#[test]
fn blocks_far_from_the_queries_go_unseen() {
    let budget = 0.01f32;
    for (slope, queries) in [(0.5, 96), (0.11, 70)] {
        let case = linear(queries, KEYS, slope);
        let threads = cpu_engines(3);
        for (engine, three) in cpu_engines(1).iter().zip(&threads) {
            let (ran, executed, tiles) = within(engine, &case, budget);
            compare(&case, &ran, budget.into(), &tiles);
            let report = &ran.report;
            assert!(4 * report.unseen_blocks > 3 * report.blocks * u64::from(!SLOW), "{report:?}");
            assert!(report.unseen_blocks > 0 && report.unseen_blocks < report.blocks, "{report:?}");
            assert!(judge_by(&case, &Schedule::within(budget), executed, &ran) <= 1.0);
            let (again, _, _) = within(three, &case, budget);
            assert!(same(&ran.buffers, &again.buffers) && ran.d == again.d && report == &again.report);
            // A run without a budget skips and counts nothing.
            let plan = engine.plan(&case.problem(), &PlanOptions::default()).unwrap();
            assert!(!plan.choice().unwrap().foresees);
            let (mut exact, mut workspace) = (case.buffers(), plan.workspace().unwrap());
            plan.bind(case.inputs(), exact.outputs(), &mut workspace).unwrap().run().unwrap();
            assert_eq!(workspace.traversed().unwrap_err(), RunError::Exact);
        }
        for rows in [1, 7, 64] {
            let tile = TileSize { rows, keys: BLOCK };
            let schedule = Schedule::within(budget);
            let ran = try_run(&case, &schedule, tile).unwrap();
            let tiles: Vec<_> =
                (0..queries).step_by(rows).map(|start| start..queries.min(start + rows)).collect();
            compare(&case, &ran, budget.into(), &tiles);
            assert!(ran.report.unseen_blocks > 0);
            assert!(judge(&case, &schedule, tile, &ran) <= 1.0);
        }
    }
}

/// Checks that no block is skipped unseen without additive numbers, with few queries, or if the same number is added to
/// all keys.
#[test]
fn only_numbers_tell() {
    let budget = PlanOptions::default().error_budget(0.01);
    let plain = Params { gain: 0.5, ..Params::plain(80, 4 * BLOCK, 8, 4) };
    let booleans = MaskParams { kind: MaskKind::Bool, dims: vec![80, 4 * BLOCK], density: 0.5 };
    let few = linear(63, 4 * BLOCK, 0.5);
    let mut alike = linear(80, 4 * BLOCK, 0.5);
    fill(&mut alike, 4 * BLOCK, |_, _| -30.0);
    let cases = [
        (plain.build("nothing is added"), false),
        (Params { mask: Some(booleans), ..plain.clone() }.build("booleans"), false),
        (few, false),
        (alike, true),
    ];
    for engine in cpu_engines(1) {
        for (case, asked) in &cases {
            let plan = engine.plan(&case.problem(), &budget).unwrap();
            assert_eq!(plan.choice().unwrap().foresees, *asked, "{case:?}");
            assert_eq!(run(&engine, case, &budget).0.report.unseen_blocks, 0, "{case:?}");
        }
    }
}

/// Checks that a block is computed if added numbers and norms together do not prove that its weights are small. One
/// test case has a key of large norm. In another, the mask does not decrease at one key.
#[test]
fn what_may_count_is_met() {
    let (budget, far) = (0.01f32, KEYS - 2 * BLOCK + 11);
    for engine in cpu_engines(2) {
        let plain = linear(66, KEYS, 0.5);
        let judged = |case: &Case| {
            let (ran, executed, tiles) = within(&engine, case, budget);
            assert!(judge_by(case, &Schedule::within(budget), executed, &ran) <= 1.0);
            compare(case, &ran, budget.into(), &tiles);
            (ran.report.unseen_blocks, tiles.len() as u64, ran)
        };
        let (all, tiles, _) = judged(&plain);
        // One key in the direction of the queries is so long that it outweighs the mask, and outputs equal its value.
        let mut long = plain.clone();
        for i in 0..66 {
            (0..8).for_each(|x| long.q.set(i * 8 + x, 0.5));
        }
        let (before, _, _) = judged(&long);
        let length = (0.5 * far as f32 + 20.0) / 2f32.sqrt();
        long.fill_key(0, far, length);
        long.fill_value(0, far, 77.0);
        let (unseen, _, ran) = judged(&long);
        assert_eq!(unseen, before - tiles);
        assert!((0..66).all(|i| (ran.buffers.output.get(i * 4) - 77.0).abs() < 1e-3));
        // If this key points away from the queries, its norm does not show that its weight is small, so its block is
        // computed.
        long.fill_key(0, far, -length);
        assert_eq!(judged(&long).0, before - tiles);
        // In a single row, the mask does not decrease at one key, and the tile of this row votes against skipping its
        // block.
        for key in [far, far / BLOCK * BLOCK, far / BLOCK * BLOCK + BLOCK - 1] {
            for row in [0, 41, 65] {
                let mut raised = plain.clone();
                let Some(MaskData::Additive(data)) = &mut raised.mask else { panic!() };
                data.set(row * KEYS + key, 3.0);
                let (unseen, _, _) = judged(&raised);
                assert_eq!(unseen, all - 1, "{} {key} {row}", engine.kernel());
            }
        }
    }
}

/// Checks that a NaN or an infinity at any position keeps its block, and reaches the rows that attend it.
#[test]
fn what_is_not_finite_is_met() {
    let (budget, far, keys) = (0.01f32, 7 * BLOCK + 5, 10 * BLOCK);
    for engine in cpu_engines(1) {
        let plain = linear(64, keys, 0.5);
        let of = |case: &Case| within(&engine, case, budget).0;
        let (all, tiles) = (of(&plain).report.unseen_blocks, within(&engine, &plain, budget).2.len() as u64);
        assert!(all >= 8 * tiles);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut value = plain.clone();
            value.fill_value(0, far, bad);
            let ran = of(&value);
            assert_eq!(ran.report.unseen_blocks, all - tiles, "a value of {bad}");
            assert!((0..64).all(|i| !ran.buffers.output.get(i * 4).is_finite()), "a value of {bad}");
            let mut key = plain.clone();
            key.fill_key(0, far, bad);
            let ran = of(&key);
            // After its rows are poisoned, a tile votes against skipping all later blocks.
            let met = all - ran.report.unseen_blocks;
            assert!((tiles..=3 * tiles).contains(&met), "a key of {bad}: {met}");
            if bad.is_nan() {
                assert!((0..64).all(|i| ran.buffers.output.get(i * 4).is_nan()));
            }
        }
        for (bad, kept) in
            [(f32::NAN, true), (-f32::NAN, true), (f32::INFINITY, true), (f32::NEG_INFINITY, false)]
        {
            for row in [0, 33, 63] {
                let mut added = plain.clone();
                let Some(MaskData::Additive(data)) = &mut added.mask else { panic!() };
                data.set(row * keys + far, bad);
                let ran = of(&added);
                let met = all - ran.report.unseen_blocks;
                assert!(if kept { (1..=3).contains(&met) } else { met == 0 }, "{bad} {row}: {met}");
                let y = |i: usize| ran.buffers.output.get(i * 4);
                assert_eq!(y(row).is_nan(), kept, "{bad}");
                assert!((0..64).all(|i| i == row || y(i).is_finite()), "{bad} {row}");
            }
            // A query that is not finite poisons only its own row.
            let mut query = plain.clone();
            query.q.set(5 * 8, f32::NAN);
            let ran = of(&query);
            assert!((0..64).all(|i| ran.buffers.output.get(i * 4).is_nan() == (i == 5)));
        }
        // If a row attends no key of a skipped block, the block adds nothing to the skipped sum of the row.
        let mut half = plain.clone();
        fill(
            &mut half,
            keys,
            |i, j| if j >= BLOCK && i % 2 == 0 { f32::NEG_INFINITY } else { -0.5 * j as f32 },
        );
        let ran = of(&half);
        assert_eq!(ran.report.unseen_blocks, 9 * tiles);
        assert!((0..64).all(|i| (ran.d[i] == 0.0) == (i % 2 == 0)));
    }
}

/// Combines every kind of additive numbers with all other features of a problem: outputs are within their bounds,
/// whichever blocks are skipped.
#[test]
fn answers_are_within_their_bounds() {
    let n = if SLOW { 3 * BLOCK } else { 7 * BLOCK - 9 };
    let heads = Params { heads: 4, kv_heads: 2, gain: 2.0, ..Params::plain(80, n, 8, 4) };
    let causal = Some(Alignment::BottomRight);
    let dense = |dims: &[usize]| mask(dims).map(BiasParams::Dense);
    let cases = [
        Params { mask: mask(&[80, n]), ..heads.clone() },
        Params { mask: mask(&[n]), ..heads.clone() },
        Params { mask: mask(&[4, 80, n]), causal, ..heads.clone() },
        Params { mask: mask(&[n]), bias: dense(&[4, 80, n]), ..heads.clone() },
        Params { bias: dense(&[80, n]), softcap: Some(4.0), gain: 9.0, ..heads.clone() },
        Params { mask: mask(&[80, n]), dtype: DType::F16, ..heads.clone() },
        Params { mask: mask(&[80, n]), lengths: true, batch: 2, ..heads.clone() },
        Params { mask: mask(&[80, 1]), ..heads.clone() },
        Params { mask: mask(&[80, 1]), ..Params { keys: 1, ..heads.clone() } },
        Params { mask: mask(&[80, n - 70]), ..heads },
    ];
    let mut random = seeded(11);
    let mut unseen = 0;
    for (n, params) in cases.iter().enumerate() {
        for (e, engine) in cpu_engines(1 + n % 2).iter().enumerate() {
            if SLOW && (n + e) % 4 != 0 {
                continue;
            }
            let mut case = params.build(format!("numbers {n}"));
            let fall = 0.02 + 0.3 * random.unit() as f32;
            // The added numbers decrease along the keys. A few are much larger.
            let mut falls = |data: &mut Data, keys: usize| {
                for n in 0..data.len() {
                    let noise = random.normal();
                    let odd = if random.below(4000) == 0 { 30.0 } else { 0.0 };
                    data.set(n, noise + odd - fall * (n % keys) as f32);
                }
            };
            if let (Some(MaskData::Additive(data)), Some(view)) = (&mut case.mask, case.spec.mask) {
                falls(data, view.shape()[3]);
            }
            if let (Some(data), Some(BiasParams::Dense(of))) = (&mut case.bias, &params.bias) {
                falls(data, *of.dims.last().unwrap());
            }
            let budget = [0.01, 0.2, 0.9][(n + e) % 3];
            let (ran, executed, _) = within(engine, &case, budget);
            let used = judge_by(&case, &Schedule::within(budget), executed, &ran);
            assert!(used <= 1.0, "{used}");
            unseen += ran.report.unseen_blocks;
            let tile = TileSize { rows: 16, keys: BLOCK };
            let ran = try_run(&case, &Schedule::within(budget), tile).unwrap();
            assert!(judge(&case, &Schedule::within(budget), tile, &ran) <= 1.0);
            unseen += ran.report.unseen_blocks;
        }
    }
    assert!(unseen > if SLOW { 20 } else { 200 }, "{unseen}");
}
