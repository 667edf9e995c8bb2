//! Tests blocks before the diagonal. A tile visits them before the keys on its diagonal, the *own keys* of its rows. A
//! lower bound of the weight of each own key allows a tile to skip such blocks without computing their scores.

use super::schedules_kernels::{BLOCK, within};
use super::schedules_unseen::{compare, fill, mask};
use elsa_core::attention::traversal::{Schedule, TileSize};
use elsa_core::attention::{Alignment, Chunk, Inputs, Outputs, StateOut, Window};
use elsa_core::dtype::DType;
use elsa_oracle::SLOW;
use elsa_oracle::cases::{BiasParams, Case, Data, MaskData, Params};
use elsa_oracle::cpu_engines;
use elsa_oracle::random::seeded;
use elsa_oracle::schedules::{ScheduleRun, judge, judge_by, same, try_run};
use elsa_runtime::{Engine, PlanOptions};

const CAUSAL: Option<Alignment> = Some(Alignment::BottomRight);

/// Number of keys of the long cases.
const KEYS: usize = if SLOW { 10 * BLOCK } else { 11 * BLOCK };

/// Returns a causal case with linear biases: a mask that decreases by `slope` per key before the diagonal, and small
/// scores.
fn causal(queries: usize, keys: usize, slope: f32) -> Case {
    let params = Params {
        gain: 0.5,
        causal: CAUSAL,
        mask: mask(&[queries, keys]),
        ..Params::plain(queries, keys, 8, 4)
    };
    let mut case = params.build("causal linear biases");
    fill(&mut case, keys, |i, j| -slope * (keys - queries + i).abs_diff(j) as f32);
    case
}

/// Runs a case within an error budget, checks its error bounds, and compares its counts and sums with an account in f64.
/// Returns the run and the number of tiles.
fn judged(engine: &Engine, case: &Case, budget: f32) -> (ScheduleRun, u64) {
    let (ran, executed, tiles) = within(engine, case, budget);
    assert!(judge_by(case, &Schedule::within(budget), executed, &ran) <= 1.0);
    compare(case, &ran, budget.into(), &tiles);
    (ran, tiles.len() as u64)
}

#[test]
fn blocks_before_the_diagonal_go_unseen() {
    let budget = 0.01f32;
    for (slope, queries) in [(0.5, 96), (0.13, 70)] {
        let case = causal(queries, KEYS, slope);
        let threads = cpu_engines(3);
        for (engine, three) in cpu_engines(1).iter().zip(&threads) {
            let (ran, _) = judged(engine, &case, budget);
            let report = &ran.report;
            assert!(5 * report.unseen_blocks > 3 * report.blocks, "{report:?}");
            let (again, _, _) = within(three, &case, budget);
            assert!(same(&ran.buffers, &again.buffers) && ran.d == again.d && report == &again.report);
        }
        for rows in [1, 7, 64] {
            let tile = TileSize { rows, keys: BLOCK };
            let schedule = Schedule::within(budget);
            let ran = try_run(&case, &schedule, tile).unwrap();
            let tiles: Vec<_> =
                (0..queries).step_by(rows).map(|start| start..queries.min(start + rows)).collect();
            // The counts are not compared: in each block, the core counts only the keys that a row attends, and the
            // account counts all keys.
            let report = &ran.report;
            assert!(5 * report.unseen_blocks > 3 * report.blocks, "{report:?}");
            assert!(report.recomputed == 0 && judge(&case, &schedule, tile, &ran) <= 1.0);
            assert!(report.blocks >= tiles.len() as u64);
        }
    }
    // The tiles cover the entire diagonal, and later tiles skip more blocks.
    let case = causal(5 * BLOCK, 5 * BLOCK, 0.5);
    for engine in cpu_engines(2) {
        let (ran, _) = judged(&engine, &case, budget);
        assert!(3 * ran.report.unseen_blocks > ran.report.blocks, "{:?}", ran.report);
    }
}

/// Checks rows whose own key is masked or has a low score. They vote against skipping earlier blocks, so their tile
/// computes these blocks.
#[test]
fn an_own_key_that_is_masked_bounds_nothing() {
    let (budget, queries) = (0.01f32, 66);
    let own = |row: usize| KEYS - queries + row;
    for engine in cpu_engines(1) {
        let plain = causal(queries, KEYS, 0.5);
        let (all, tiles) = judged(&engine, &plain, budget);
        let unseen = |ran: &ScheduleRun| ran.report.unseen_blocks;
        for row in [0, 31, 65] {
            let mut masked = plain.clone();
            let Some(MaskData::Additive(data)) = &mut masked.mask else { panic!() };
            data.set(row * KEYS + own(row), f32::NEG_INFINITY);
            let (ran, _) = judged(&engine, &masked, budget);
            // The tile of the masked row computes every block before its diagonal.
            let met = unseen(&all) - unseen(&ran);
            assert!(met * tiles >= unseen(&all) - tiles && met < unseen(&all), "{row}: {met} of {all:?}");
            // A large negative number in the mask has the same effect as −∞.
            let Some(MaskData::Additive(data)) = &mut masked.mask else { panic!() };
            data.set(row * KEYS + own(row), -1e5);
            let (ran, _) = judged(&engine, &masked, budget);
            assert_eq!(unseen(&all) - unseen(&ran), met);
            // In the core's run, such a row has the same effect.
            let tile = TileSize { rows: 16, keys: BLOCK };
            let core = |case| try_run(case, &Schedule::within(budget), tile).unwrap();
            assert!(unseen(&core(&masked)) < unseen(&core(&plain)), "{row}");
        }
        // The bound of an own key includes its dot product with the query, in addition to its addend. Here, some own
        // keys point away from their queries.
        let mut away = plain.clone();
        for row in [3, 40] {
            (0..8).for_each(|x| away.q.set(row * 8 + x, 1.0));
            away.fill_key(0, own(row), -20.0);
        }
        let (ran, _) = judged(&engine, &away, budget);
        assert!(unseen(&ran) < unseen(&all));
        // Numbers that are not finite poison the rows that attend them, and no others, at any position.
        for bad in [f32::NAN, f32::INFINITY] {
            let mut key = plain.clone();
            key.fill_key(0, own(40), bad);
            let ran = within(&engine, &key, budget).0;
            assert!((0..40).all(|i| ran.buffers.output.get(i * 4).is_finite()), "{bad}");
            assert!((40..66).all(|i| !ran.buffers.output.get(i * 4).is_finite() || bad.is_infinite()));
            let mut query = plain.clone();
            query.q.set(40 * 8, bad);
            let ran = within(&engine, &query, budget).0;
            assert!((0..66).all(|i| i == 40 || ran.buffers.output.get(i * 4).is_finite()), "{bad}");
            assert!(!ran.buffers.output.get(40 * 4).is_finite());
            let mut added = plain.clone();
            let Some(MaskData::Additive(data)) = &mut added.mask else { panic!() };
            data.set(40 * KEYS + own(40), bad);
            let ran = within(&engine, &added, budget).0;
            assert!((0..66).all(|i| ran.buffers.output.get(i * 4).is_nan() == (i == 40)), "{bad}");
        }
    }
}

/// Creates a case whose scores, in base-2 units, are `level(row, key)`, given by the mask alone.
fn levels(
    queries: usize,
    keys: usize,
    causal: Option<Alignment>,
    level: impl Fn(usize, usize) -> f32,
) -> Case {
    let params = Params { causal, mask: mask(&[queries, keys]), ..Params::plain(queries, keys, 8, 4) };
    let mut case = params.build("levels");
    (0..queries * 8).for_each(|x| case.q.set(x, 0.0));
    let ln_2 = std::f32::consts::LN_2;
    fill(&mut case, keys, |i, j| level(i, j) * ln_2);
    case
}

/// Checks rows that attend their own key and earlier keys. If the weights of the earlier keys together are slightly
/// below the budget, their blocks are skipped. If they are slightly above it, some blocks are kept.
#[test]
fn the_own_key_leaves_room_for_the_budget_and_no_more() {
    let (queries, keys, budget) = (64, 10 * BLOCK, 0.05f32);
    let far = 9 * BLOCK - BLOCK;
    for (of_budget, goes) in [(0.985f32, true), (1.02, false)] {
        let each = of_budget * budget / (1.0 - budget) / far as f32;
        let case = levels(queries, keys, CAUSAL, |i, j| match j {
            j if j < far => each.log2(),
            j if j == keys - queries + i => 0.0,
            _ => f32::NEG_INFINITY,
        });
        for engine in cpu_engines(1) {
            let (ran, tiles) = judged(&engine, &case, budget);
            assert_eq!(ran.report.unseen_blocks == 8 * tiles, goes, "{:?}", ran.report);
            let share = ran.share.iter().copied().fold(0.0, f32::max);
            assert!(share > 0.8 * budget && share <= budget, "{share}");
        }
        let tile = TileSize { rows: 16, keys: BLOCK };
        let ran = try_run(&case, &Schedule::within(budget), tile).unwrap();
        assert!(judge(&case, &Schedule::within(budget), tile, &ran) <= 1.0);
        assert_eq!((ran.report.unseen_blocks == 8 * 4, ran.report.recomputed), (goes, 0), "{:?}", ran.report);
    }
}

/// Checks that the block of the own keys may be skipped by its weights, and that these keys then no longer justify
/// skipping other blocks.
#[test]
fn an_own_key_that_went_bounds_nothing() {
    let budget = 0.9f32;
    let n = 4 * BLOCK;
    // A row of the third block has a weight of 1/4 in the first block, 1 for its own key, and 5 in the last block.
    let case = levels(n, n, None, |i, j| match (i / BLOCK, j / BLOCK) {
        (2, 0) if j % BLOCK == 0 => -2.0,
        (2, 0) => -60.0,
        (2, 2) if i == j => 0.0,
        (2, 3) => (5.0f32 / 64.0).log2(),
        (2, _) => f32::NEG_INFINITY,
        _ if i == j => 0.0,
        _ => -80.0,
    });
    for engine in cpu_engines(1) {
        let (ran, _) = judged(&engine, &case, budget);
        if engine.kernel().contains("q48") || engine.kernel().contains("q24") {
            assert!(ran.share[190] > 0.15 && ran.share[190] < 0.3, "{}", ran.share[190]);
        }
    }
    let tile = TileSize { rows: 16, keys: BLOCK };
    let ran = try_run(&case, &Schedule::within(budget), tile).unwrap();
    assert!(judge(&case, &Schedule::within(budget), tile, &ran) <= 1.0);
    assert_eq!(ran.report.recomputed, 0);
    assert!(ran.share[190] > 0.15 && ran.share[190] < 0.3, "{}", ran.share[190]);
}

/// Checks that blocks skipped before the diagonal count in every later vote.
#[test]
fn what_went_before_the_diagonal_counts_behind_it() {
    let budget = 0.05f32;
    let n = 5 * BLOCK;
    // For rows of the third block, each other block has three tenths of the budget, so that three of these blocks may
    // be skipped.
    let each = 0.3 * budget / (1.0 - budget) / BLOCK as f32;
    let case = levels(n, n, None, |i, j| match (i / BLOCK, j / BLOCK) {
        (2, 2) if i == j => 0.0,
        (2, 2) => f32::NEG_INFINITY,
        (2, _) => each.log2(),
        _ if i == j => 0.0,
        _ => -80.0,
    });
    let share = |ran: &ScheduleRun| ran.share[3 * BLOCK - 1];
    for engine in cpu_engines(1) {
        let (ran, _) = judged(&engine, &case, budget);
        assert!(share(&ran) > 0.88 * budget && share(&ran) <= budget, "{}", share(&ran));
    }
    let tile = TileSize { rows: 16, keys: BLOCK };
    let ran = try_run(&case, &Schedule::within(budget), tile).unwrap();
    assert!(judge(&case, &Schedule::within(budget), tile, &ran) <= 1.0);
    assert!(ran.report.recomputed == 0 && share(&ran) > 0.88 * budget, "{}", share(&ran));
}

/// Checks that the own key of a row is taken from the key head of the row's query head.
#[test]
fn heads_have_own_keys_of_their_own() {
    let (queries, keys, budget) = (64, 7 * BLOCK, 0.05f32);
    let first = keys - queries;
    let params = Params {
        heads: 4,
        kv_heads: 2,
        causal: CAUSAL,
        mask: mask(&[queries, keys]),
        ..Params::plain(queries, keys, 8, 4)
    };
    let mut case = params.build("two key heads");
    let far = 0.6 * budget / first as f32;
    fill(&mut case, keys, |i, j| match j {
        j if j < first => far.ln(),
        j if j == first + i => 0.0,
        _ => f32::NEG_INFINITY,
    });
    (0..case.q.len()).for_each(|x| case.q.set(x, 1.0));
    // The own keys of the second key head point away from the queries.
    for (head, x) in [(0, 0.0), (1, -10.0)] {
        for j in 0..keys {
            let at = case.spec.key.row(0, head, j);
            (0..8).for_each(|d| case.k.set(at + d, if j < first { 0.0 } else { x }));
        }
    }
    let schedule = Schedule::within(budget);
    for engine in cpu_engines(1) {
        let (ran, executed, tiles) = within(&engine, &case, budget);
        assert!(judge_by(&case, &schedule, executed, &ran) <= 1.0);
        assert_eq!(ran.report.unseen_blocks, 2 * 6 * tiles.len() as u64, "{:?}", ran.report);
        let share = |head: usize| ran.share[head * queries];
        assert!(share(1) > 0.5 * budget && share(2) < 1e-6, "{} {}", share(1), share(2));
    }
    let tile = TileSize { rows: 32, keys: BLOCK };
    let ran = try_run(&case, &schedule, tile).unwrap();
    assert!(judge(&case, &schedule, tile, &ran) <= 1.0);
    assert_eq!((ran.report.unseen_blocks, ran.report.recomputed), (2 * 6 * 2, 0), "{:?}", ran.report);
}

/// Checks that outputs are within their bounds in any problem, and that many blocks before the diagonal are skipped.
#[test]
fn answers_are_within_their_bounds() {
    let n = if SLOW { 4 * BLOCK } else { 7 * BLOCK - 13 };
    let heads = Params { heads: 4, kv_heads: 2, gain: 1.5, ..Params::plain(70, n, 8, 4) };
    let (causal, one) = (CAUSAL, Params { heads: 1, kv_heads: 1, ..heads.clone() });
    let cases = [
        Params { mask: mask(&[4, 70, n]), causal, ..heads.clone() },
        Params { mask: mask(&[70, n]), causal, lengths: true, batch: 3, ..heads.clone() },
        Params { bias: mask(&[4, 70, n]).map(BiasParams::Dense), causal, dtype: DType::F16, ..heads.clone() },
        Params {
            mask: mask(&[70, n]),
            bias: mask(&[4, 70, n]).map(BiasParams::Dense),
            causal,
            window: Window { left: Some(5 * BLOCK), right: None },
            ..heads.clone()
        },
        Params {
            mask: mask(&[70, n]),
            causal,
            softcap: Some(3.0),
            gain: 9.0,
            dtype: DType::Bf16,
            ..heads.clone()
        },
        Params { mask: mask(&[n, n]), causal: Some(Alignment::TopLeft), queries: n, ..heads.clone() },
        Params { mask: mask(&[n, n]), queries: n, ..one },
    ];
    let mut random = seeded(17);
    let mut counts = [0, 0];
    for (n, params) in cases.iter().enumerate() {
        for (e, engine) in cpu_engines(1 + n % 2).iter().enumerate() {
            if SLOW && (n + e) % 4 != 0 {
                continue;
            }
            let mut case = params.build(format!("falls {n}"));
            let fall = 0.1 + 0.3 * random.unit() as f32;
            let tokens = params.queries;
            // The added numbers decrease with the distance from the diagonal. A few are much larger or −∞.
            let mut falls = |data: &mut Data, keys: usize| {
                let first = if params.causal == CAUSAL { params.keys - tokens } else { 0 };
                for n in 0..data.len() {
                    let distance = (first + n / keys % tokens).abs_diff(n % keys);
                    let odd = match random.below(4000) {
                        0 => 30.0,
                        1 => f32::NEG_INFINITY,
                        _ => 0.0,
                    };
                    data.set(n, random.normal() + odd - fall * distance as f32);
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
            let tile = TileSize { rows: 16, keys: BLOCK };
            let core = try_run(&case, &Schedule::within(budget), tile).unwrap();
            assert!(judge(&case, &Schedule::within(budget), tile, &core) <= 1.0);
            for ran in [&ran, &core] {
                counts[0] += ran.report.unseen_blocks;
                counts[1] += ran.report.blocks;
            }
        }
    }
    // Short sequences have fewer blocks before the diagonal.
    let one_of = if SLOW { 6 } else { 3 };
    assert!(one_of * counts[0] > counts[1], "{counts:?}");
}

/// Checks that past keys count as keys before the diagonal of every row, and that the length of the past changes no
/// bit.
#[test]
fn a_past_changes_no_bit() {
    let (queries, keys, past) = (70, KEYS, KEYS - 70);
    let whole = causal(queries, keys, 0.5);
    let params =
        Params { past: Some(past), keys: queries, causal: Some(Alignment::TopLeft), ..whole.params.clone() };
    let mut split = params.build("a past");
    let (before, after) = (past * 8, past * 4);
    let part = |data: &Data, from: usize, to: &mut Data| {
        (0..to.len()).for_each(|i| to.set(i, data.get(from + i)));
    };
    let Some((k, v)) = &mut split.past else { panic!() };
    part(&whole.k, 0, k);
    part(&whole.v, 0, v);
    part(&whole.k, before, &mut split.k);
    part(&whole.v, after, &mut split.v);
    part(&whole.q, 0, &mut split.q);
    split.mask.clone_from(&whole.mask);
    for engine in cpu_engines(2) {
        let [one, two] = [&whole, &split].map(|case| within(&engine, case, 0.01).0);
        assert!(same(&one.buffers, &two.buffers) && one.d == two.d && one.report == two.report);
        assert!(2 * one.report.unseen_blocks > one.report.blocks);
    }
}

/// Checks calls with different parts of the keys: they keep the budget independently, and a call whose part does not
/// contain the own keys cannot use their weights.
#[test]
fn parts_keep_their_own_budgets() {
    let (queries, keys, budget) = (64, 8 * BLOCK, 0.1f32);
    let whole = causal(queries, keys, 0.3);
    for engine in cpu_engines(1) {
        for part in [0..6 * BLOCK, 6 * BLOCK..keys, 5 * BLOCK..keys] {
            let n = part.len();
            let mut case =
                Params { keys: n, mask: mask(&[queries, n]), ..whole.params.clone() }.build("a part");
            let Some(MaskData::Additive(all)) = &whole.mask else { panic!() };
            fill(&mut case, n, |i, j| all.get(i * keys + part.start + j));
            (0..n * 8).for_each(|x| case.k.set(x, whole.k.get(part.start * 8 + x)));
            (0..queries * 8).for_each(|x| case.q.set(x, whole.q.get(x)));
            let mut inputs: Inputs<'_> = case.inputs();
            inputs.lengths.chunk = Some(Chunk::of_keys(part.start, keys));
            let [mut m, mut s] = [(); 2].map(|()| vec![f32::NAN; queries]);
            let mut w = vec![f32::NAN; queries * 4];
            let outputs = Outputs::states(StateOut { m: &mut m, s: &mut s, w: &mut w });
            let options = PlanOptions::default().error_budget(budget);
            let plan = engine.plan(&case.problem(), &options).unwrap();
            let mut workspace = plan.workspace().unwrap();
            plan.bind(inputs, outputs, &mut workspace).unwrap().run().unwrap();
            let traversed = workspace.traversed().unwrap();
            let worst = traversed.share.iter().copied().fold(0.0, f32::max);
            assert!(worst <= budget && s.iter().all(|s| *s > 0.0), "{worst}");
            let report = &traversed.report;
            assert!(
                if part.end < keys { report.unseen_blocks == 0 } else { report.unseen_blocks > 0 },
                "{report:?}"
            );
        }
    }
}
