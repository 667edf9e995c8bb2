//! Tests error budgets on the GPU back end. Its kernels must skip the tiles that an account in f64 skips. Also tests
//! the schedules that the CPU computes instead.

use crate::schedules_kernels::{is_counted, little_left};
use elsa_core::attention::certificate::Executed;
use elsa_core::attention::plan::{Division, GpuChoice};
use elsa_core::attention::traversal::{Schedule, TileSize, TraversalReport};
use elsa_core::attention::{Alignment, MaskKind, Window};
use elsa_core::dtype::DType;
use elsa_oracle::SLOW;
use elsa_oracle::cases::{Case, Data, MaskData, MaskParams, Params, some_hard_cases};
use elsa_oracle::gpu_engine;
use elsa_oracle::random::seeded;
use elsa_oracle::schedules::scores::{equal_parts, little_beside_one, rising, rising_once};
use elsa_oracle::schedules::{
    Account, ScheduleRun, account, compare, judge_by, rounded_outwards, same, scored, scored_in,
};
use elsa_runtime::{Backend, Engine, Fallback, PlanError, PlanOptions};
use std::ops::Range;

/// Number of keys per tile.
const TILE: usize = 64;

/// The element types.
const TYPES: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

/// Returns all choices of kernel and division for a run within an error budget; the first is the one that the chooser
/// prefers.
fn choices(engine: &Engine, case: &Case, budget: f32) -> Vec<GpuChoice> {
    let options = PlanOptions::default().error_budget(budget);
    engine.divisions(&case.problem(), &options).unwrap()
}

/// Returns the choice that the chooser prefers and, for f32, the one with the kernel of tall blocks.
fn own_and_tall(engine: &Engine, case: &Case, budget: f32) -> Vec<GpuChoice> {
    let all = choices(engine, case, budget);
    let tall = all.iter().find(|choice| choice.kernel.slow_edges && choice.kernel != all[0].kernel);
    [Some(&all[0]), tall].into_iter().flatten().copied().collect()
}

/// Returns plan options with an error budget, the kernel of `choice`, and `splits` splits of the keys.
fn split(budget: f32, choice: &GpuChoice, splits: usize) -> PlanOptions {
    let division = Some(Division { splits, ..choice.division() });
    PlanOptions::default().error_budget(budget).division(division)
}

/// Returns plan options with an error budget and `splits` splits of the keys. If `splits` is zero, the chooser determines
/// the number.
fn options(engine: &Engine, case: &Case, budget: f32, splits: usize) -> PlanOptions {
    let choice = choices(engine, case, budget)[0];
    let options = split(budget, &choice, splits);
    options.division(options.division.filter(|_| splits > 0))
}

/// Runs a case twice in one workspace within an error budget, and once without states. Returns the first run, the
/// arithmetic that it executed, the tile, and the number of keys per split.
fn run(engine: &Engine, case: &Case, options: &PlanOptions) -> (ScheduleRun, Executed, TileSize, usize) {
    let problem = case.problem();
    let plan = engine.plan(&problem, options).unwrap();
    let choice = *plan.gpu_choice().unwrap();
    assert!(choice.kernel.name.ends_with("_within"), "{}", choice.kernel.name);
    let mut workspace = plan.workspace().unwrap();
    let (first, tile) = ScheduleRun::twice(case, &plan, &mut workspace);
    // A kernel may write the output itself if no states are requested. A 16-bit output cannot store sums, so its chains
    // are longer and bits may differ.
    let step = match case.spec.dtype {
        DType::F32 => 0.0,
        DType::F16 => 2f32.powi(-10),
        DType::Bf16 => 2f32.powi(-7),
    };
    let (buffers, _) = case.run_with(&plan, &mut workspace, |outputs| outputs.state = None);
    let finite = (0..buffers.output.len()).map(|i| buffers.output.get(i).abs()).filter(|y| y.is_finite());
    let room = step * finite.fold(0.0, f32::max);
    let alike = |i: usize| {
        let [a, b] = [&buffers, &first.buffers].map(|b| b.output.get(i));
        a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()) || (a - b).abs() < room
    };
    assert!((0..buffers.output.len()).all(alike));
    let traversed = workspace.traversed().unwrap();
    assert!(traversed.d == first.d && traversed.report == first.report);
    let budget = options.error_budget.unwrap();
    assert!(first.share.iter().all(|share| *share <= budget), "{budget}");
    (first, plan.certificate().executed, tile, choice.chunk)
}

/// Splits `queries` into blocks of `rows` rows.
fn blocks_of(rows: usize, queries: usize) -> Vec<Range<usize>> {
    (0..queries).step_by(rows).map(|at| at..queries.min(at + rows)).collect()
}

/// Runs cases with given scores in every type, with unsplit keys and with `splits` splits, on the preferred kernel and on
/// the kernel of tall blocks. Compares the results with the account of each split. Returns the f32 run of the preferred
/// kernel with unsplit keys.
fn check_account(q: &[f32], k: &[f32], v: &[f32], budget: f32, splits: usize) -> ScheduleRun {
    let engine = gpu_engine(Fallback::Fail);
    let mut found = None;
    for dtype in TYPES {
        let case = scored_in(dtype, [q, k, v]);
        let kernels = own_and_tall(&engine, &case, budget);
        for kernel in &kernels {
            let ran = check_kernel(&engine, &case, budget, kernel, splits);
            found.get_or_insert(ran);
        }
        let tall = kernels.iter().any(|choice| choice.kernel.slow_edges);
        assert_eq!(tall, dtype == DType::F32);
    }
    found.unwrap()
}

/// Runs one case on one kernel, with unsplit keys and with `splits` splits, and compares it with the account of each
/// split. Returns the run with unsplit keys.
fn check_kernel(engine: &Engine, case: &Case, budget: f32, kernel: &GpuChoice, splits: usize) -> ScheduleRun {
    let of = |data: &Data| (0..data.len()).map(|i| data.get(i)).collect::<Vec<f32>>();
    let (q, k, v) = (&of(&case.q)[..], &of(&case.k)[..], &of(&case.v)[..]);
    let mut last = None;
    for splits in [splits, 1] {
        let (ran, executed, tile, chunk) = run(engine, case, &split(budget, kernel, splits));
        assert_eq!(splits > 1, chunk < k.len(), "{splits} splits of {chunk}");
        let tiles = blocks_of(tile.rows, q.len());
        let parts = k.chunks(chunk).zip(v.chunks(chunk));
        let mut parts = parts.map(|(k, v)| account([q, k, v], f64::from(budget), &tiles, TILE));
        let (mut rows, mut skipped) = parts.next().unwrap();
        for (part, count) in parts {
            skipped += count;
            for (row, part) in rows.iter_mut().zip(part) {
                row.kept += part.kept;
                row.left += part.left;
                row.weighted += part.weighted;
            }
        }
        assert_eq!(ran.report.skipped_blocks, skipped, "{splits} splits: {:?}", ran.report);
        assert_eq!(ran.report.blocks, (tiles.len() * k.len().div_ceil(TILE)) as u64);
        assert_eq!(ran.report.row_blocks, (q.len() * k.len().div_ceil(TILE)) as u64);
        compare(&ran, &rows);
        assert!(judge_by(case, &Schedule::within(budget), executed, &ran) <= 1.0);
        last = Some(ran);
    }
    last.unwrap()
}

/// Checks that weights just below the budget are skipped: with one query, with fewer queries than a block has rows, and
/// with more.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn mass_just_below_the_budget_is_left_out() {
    let (budget, blocks) = (0.05f32, 12usize);
    // bf16 numbers near the logarithms of the weights are 2^-4 apart.
    for (queries, of_budget, all) in [(1, 0.98, true), (37, 0.95, true), (130, 1.05, false)] {
        let [k, v] = equal_parts(TILE, blocks, of_budget, budget);
        let ran = check_account(&vec![1.0; queries], &k, &v, budget, 3);
        let tiles = ran.report.blocks / (blocks as u64 + 1);
        assert_eq!(ran.report.skipped_blocks == tiles * blocks as u64, all, "{:?}", ran.report);
        assert!(!all || f64::from(ran.share[0]) > 0.99 * of_budget * f64::from(budget));
    }
}

/// Checks references that rise after tiles were skipped, by more than the headroom and by a hundred bits: the skipped
/// sums follow the reference. The largest score is in the last tile.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn what_was_left_out_follows_the_reference() {
    let mut random = seeded(41);
    let mut seen = [0u64; 2];
    for n in 0..4 {
        let step = [3.0f32, 12.0][n % 2];
        let [k, v] = rising(&mut random, TILE, 12 * TILE - 7, step);
        let q: Vec<f32> = (0..[1, 19][n / 2]).map(|_| 0.2 + random.unit() as f32).collect();
        let ran = check_account(&q, &k, &v, 0.1, 2);
        seen[0] += ran.report.skipped_blocks;
        seen[1] += ran.report.blocks - ran.report.skipped_blocks;
    }
    assert!(seen.iter().all(|seen| *seen > 3), "{seen:?}");
    let mut k: Vec<f32> = (0..10 * TILE).map(|j| if j < TILE { 0.0 } else { -20.0 }).collect();
    *k.last_mut().unwrap() = 12.0;
    let v: Vec<f32> = (0..k.len()).map(|j| (j % 5) as f32).collect();
    let ran = check_account(&[1.0, 0.9], &k, &v, 0.01, 2);
    assert!(ran.d[0] > 0.0 && ran.report.skipped_blocks == 8);
    let [k, v] = rising_once(TILE);
    for rows in [1, 2, 70] {
        let report = check_account(&vec![1.0; rows], &k, &v, 0.1, 2).report;
        assert_eq!(2 * report.skipped_blocks, report.blocks);
    }
}

/// Checks that the vote of one row keeps a tile for its entire block, for any row and head size.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn every_row_of_a_block_votes() {
    let engine = gpu_engine(Fallback::Fail);
    for (d, dtype) in [8, 40, 100, 200].into_iter().flat_map(|d| TYPES.map(|dtype| (d, dtype))) {
        let rows = 64;
        let scale = Some(std::f32::consts::LN_2);
        let mut case = Params { dtype, scale, ..Params::plain(rows, 3 * TILE, d, 4) }.build("an objector");
        let first = |i: usize, x: f32| if i.is_multiple_of(d) { x } else { 0.0 };
        (0..3 * TILE * d).for_each(|i| case.k.set(i, first(i, if i / d < TILE { 0.0 } else { -20.0 })));
        (0..rows * d).for_each(|i| case.q.set(i, first(i, 1.0)));
        for choice in &own_and_tall(&engine, &case, 0.01) {
            let options = split(0.01, choice, 1);
            let (ran, _, tile, _) = run(&engine, &case, &options);
            let blocks = rows.div_ceil(tile.rows) as u64;
            assert_eq!(ran.report.skipped_blocks, 2 * blocks, "{}", choice.kernel.name);
            let step = if SLOW { 23 } else { 7 };
            for objector in (TYPES.iter().position(|x| *x == dtype).unwrap_or(0)..rows).step_by(step) {
                case.q.set(objector * d, 0.01);
                let (ran, ..) = run(&engine, &case, &options);
                case.q.set(objector * d, 1.0);
                let found = ran.report.skipped_blocks;
                assert_eq!(found, 2 * (blocks - 1), "{}: row {objector}", choice.kernel.name);
            }
        }
    }
}

/// Checks NaN and infinities among the values of tiles that would otherwise be skipped: they reach the rows that attend
/// them, and no others.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn values_that_are_not_finite_stay() {
    let engine = gpu_engine(Fallback::Fail);
    let k: Vec<f32> = (0..7 * TILE - 3).map(|j| if j < TILE { 0.0 } else { -20.0 }).collect();
    let sizes = [(DType::F32, 1usize, 1), (DType::F32, 70, 2), (DType::F16, 70, 1), (DType::Bf16, 3, 2)];
    let kernels = sizes.into_iter().flat_map(|(dtype, queries, splits)| {
        let case = scored_in(dtype, [&vec![1.0; queries], &k, &k]);
        own_and_tall(&engine, &case, 0.1).into_iter().map(move |kernel| (dtype, queries, splits, kernel))
    });
    for (dtype, queries, splits, kernel) in kernels {
        let q = vec![1.0; queries];
        let options = split(0.1, &kernel, splits);
        let of = |v: &[f32]| run(&engine, &scored_in(dtype, [&q, &k, v]), &options);
        let mut v = vec![1.0f32; k.len()];
        let (plain, _, tile, _) = of(&v);
        let blocks = queries.div_ceil(tile.rows) as u64;
        for (at, bad) in [
            (3 * TILE + 5, f32::NAN),
            (7 * TILE - 4, f32::INFINITY),
            (2 * TILE, f32::NEG_INFINITY),
            (5 * TILE - 1, f32::NAN),
        ] {
            v[at] = bad;
            let (found, ..) = of(&v);
            v[at] = 1.0;
            // The first tile of a split is always kept.
            assert!(found.report.skipped_blocks >= plain.report.skipped_blocks - blocks, "{bad}");
            for i in 0..queries {
                let y = found.buffers.output.get(i);
                assert!(if bad.is_nan() { y.is_nan() } else { y == bad }, "{bad} {y}");
            }
        }
        // A NaN in a key poisons the rows that attend the key.
        let mut case = scored_in(dtype, [&q, &k, &v]);
        case.fill_key(0, 3 * TILE, f32::NAN);
        let (found, ..) = run(&engine, &case, &options);
        assert!((0..queries).all(|i| found.buffers.output.get(i).is_nan()));
    }
}

/// Checks that a value that is not finite keeps its tile. Kernels load the values of a tile in stages that depend on
/// the head size; the value may be in any stage.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn values_of_any_stage_keep_a_tile() {
    let engine = gpu_engine(Fallback::Fail);
    let sizes = [8, 40, 100, 200].map(|d| (d, DType::F32)).into_iter();
    for (d, dtype) in sizes.chain([(40, DType::F16), (100, DType::Bf16), (200, DType::F16)]) {
        let scale = Some(std::f32::consts::LN_2);
        let params = Params { dtype, scale, ..Params::plain(5, 3 * TILE, d, d) };
        let mut case = params.build("a value that is not finite");
        let first = |i: usize, x: f32| if i.is_multiple_of(d) { x } else { 0.0 };
        (0..3 * TILE * d).for_each(|i| case.k.set(i, first(i, if i / d < TILE { 0.0 } else { -20.0 })));
        (0..5 * d).for_each(|i| case.q.set(i, first(i, 1.0)));
        let kernels = own_and_tall(&engine, &case, 0.01);
        let options = kernels.iter().map(|choice| split(0.01, choice, 1));
        let skipped = |options: &PlanOptions| run(&engine, &case, options).0.report.skipped_blocks;
        let expected: Vec<_> = options.map(|options| (skipped(&options), options)).collect();
        for (n, key) in [0, 5, 13, 21, 29, 37, 45, 53, 61, 63].into_iter().enumerate() {
            let at = (TILE + key) * d + d - 1;
            let bad = if n % 3 == 1 { f32::INFINITY } else { f32::NAN };
            let before = case.v.get(at);
            case.v.set(at, bad);
            for (skipped, options) in &expected {
                let (ran, ..) = run(&engine, &case, options);
                assert_eq!(2 * ran.report.skipped_blocks, *skipped, "d = {d}: key {key}");
                let poisoned = |i: usize| !ran.buffers.output.get(i).is_finite();
                assert!((0..5 * d).all(|i| poisoned(i) == (i % d == d - 1)), "d = {d}: key {key}");
            }
            case.v.set(at, before);
        }
    }
}

/// Checks that a tile counts neither as visited nor as skipped if a mask, alone or with causality, excludes it for
/// every row.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn tiles_that_no_row_attends_are_not_counted() {
    let engine = gpu_engine(Fallback::Fail);
    let (queries, keys) = (40, 5 * TILE);
    let mask = MaskParams { kind: MaskKind::Bool, dims: vec![queries, keys], density: 1.0 };
    let causal = Some(Alignment::BottomRight);
    let mut case = Params { mask: Some(mask), causal, ..Params::plain(queries, keys, 8, 4) }.build("a mask");
    let mut counts = |attended: &dyn Fn(usize, usize) -> bool| {
        let bits = (0..queries * keys).map(|at| u8::from(attended(at / keys, at % keys)));
        case.mask = Some(MaskData::Bool(bits.collect()));
        let (ran, _, tile, _) = run(&engine, &case, &options(&engine, &case, 1e-6, 1));
        (ran.report.blocks, ran.report.skipped_blocks, queries.div_ceil(tile.rows) as u64)
    };
    let (all, none, blocks) = counts(&|_, _| true);
    assert_eq!((all, none), (5 * blocks, 0));
    assert_eq!(counts(&|_, key| key / TILE != 2 && key / TILE != 3).0, 3 * blocks);
    // In its block of rows, only this row attends a key of the fourth tile.
    assert_eq!(counts(&|row, key| key / TILE != 2 && (key / TILE != 3 || row == 17)).0, 3 * blocks + 1);
    // In the last tile the mask keeps only keys that causality excludes.
    assert_eq!(counts(&|row, key| key < 4 * TILE || key > keys - queries + row).0, 4 * blocks);
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn shares_are_rounded_outwards() {
    let (engine, [q, k, v]) = (gpu_engine(Fallback::Fail), little_beside_one(TILE, 6, 61));
    let case = scored(&q, &k, &v);
    for splits in [1, 2] {
        let options = options(&engine, &case, 0.5, splits);
        let plan = engine.plan(&case.problem(), &options).unwrap();
        let additions = plan.gpu_choice().unwrap().longest_path(true).into_s;
        let (ran, ..) = run(&engine, &case, &options);
        assert_eq!(rounded_outwards(&ran, additions), 61);
    }
}

/// Checks a budget that is too small to skip any tile. The outputs must have the bits that the exact kernel computes
/// with the same splits of the keys.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn a_budget_with_nothing_to_skip_changes_no_bit() {
    let engine = gpu_engine(Fallback::Fail);
    let plain = |dtype, n, d| Params { dtype, heads: 2, ..Params::plain(n, n + 64, d, d) };
    let [half, brain] = [DType::F16, DType::Bf16];
    let many = [
        plain(DType::F32, 330, 64),
        plain(DType::F32, 128, 32),
        plain(half, 330, 64),
        plain(brain, 70, 128),
        plain(half, 40, 256),
        Params { packed: Some(vec![(130, 200), (0, 70), (3, 64)]), ..plain(brain, 0, 64) },
    ];
    let many = many.map(|params| params.build("many rows"));
    let hard = some_hard_cases();
    let mut compared = std::collections::BTreeSet::new();
    let mut count = 0;
    for case in hard.iter().step_by(if SLOW { 29 } else { 7 }).chain(&many) {
        for choice in own_and_tall(&engine, case, 1e-30) {
            let splits = if case.spec.packed.is_some() { 1 } else { choice.splits };
            let (ran, ..) = run(&engine, case, &split(1e-30, &choice, splits));
            if ran.report.skipped_blocks > 0 {
                // The skipped tiles have keys without any weight.
                continue;
            }
            // The exact kernel has the same name without the suffix, and is planned with the same number of splits.
            let exact = PlanOptions::default();
            let twin = choice.kernel.name.trim_end_matches("_within");
            let alike = |c: &GpuChoice| c.kernel.name == twin;
            let Some(found) = engine.divisions(&case.problem(), &exact).unwrap().into_iter().find(alike)
            else {
                continue;
            };
            let division = Some(Division { splits, ..found.division() });
            let plan = engine.plan(&case.problem(), &exact.division(division)).unwrap();
            assert_eq!(plan.gpu_choice().unwrap().chunk, choice.chunk);
            let (mut buffers, mut workspace) = (case.buffers(), plan.workspace().unwrap());
            plan.bind(case.inputs(), buffers.outputs(), &mut workspace).unwrap().run().unwrap();
            assert!(same(&ran.buffers, &buffers), "{case:?}");
            assert!(ran.d.iter().chain(&ran.share).all(|x| *x == 0.0));
            compared.insert(twin);
            count += 1;
        }
    }
    assert!(count > if SLOW { 7 } else { 14 } && compared.len() > 6, "{count} {compared:?}");
}

/// Checks masks, windows, lengths, a soft cap, and heads that share keys: outputs are within the bound, widened by the
/// shares that were skipped.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn answers_inside_a_budget_are_within_their_bounds() {
    let heads =
        |queries, keys, d, dv| Params { heads: 4, kv_heads: 2, ..Params::plain(queries, keys, d, dv) };
    let causal = Some(Alignment::BottomRight);
    let mask = |kind| Some(MaskParams { kind, dims: vec![40, 330], density: 0.6 });
    let window = Window { left: Some(145), right: None };
    let packed = || Some(vec![(0, 3), (70, 200), (1, 150), (5, 0), (33, 3 * TILE), (0, 0)]);
    let cases = [
        Params { gain: 6.0, causal, ..heads(190, 370, 8, 4) }.build("causal"),
        Params { gain: 3.0, mask: mask(MaskKind::Bool), ..heads(40, 330, 8, 3) }.build("a mask"),
        Params { gain: 4.0, mask: mask(MaskKind::Additive(DType::F32)), ..heads(40, 330, 64, 64) }
            .build("an addend"),
        Params { gain: 5.0, causal, window, ..heads(290, 290, 8, 2) }.build("a window"),
        Params { gain: 9.0, softcap: Some(20.0), causal, ..heads(150, 150, 16, 2) }.build("a cap"),
        Params { gain: 4.0, lengths: true, batch: 3, ..heads(20, 300, 8, 2) }.build("lengths"),
        Params { gain: 9.0, ..heads(1, 700, 128, 128) }.build("one query"),
        Params { gain: 60.0, ..heads(33, 297, 256, 40) }.build("one key weighs"),
        Params { dtype: DType::F16, gain: 6.0, causal, ..heads(90, 170, 64, 64) }.build("causal, f16"),
        Params { dtype: DType::Bf16, gain: 5.0, mask: mask(MaskKind::Bool), ..heads(40, 330, 100, 8) }
            .build("a mask, bf16"),
        Params { dtype: DType::F16, gain: 9.0, ..heads(33, 297, 200, 256) }.build("f16, large heads"),
        Params { gain: 8.0, packed: packed(), causal, ..heads(0, 0, 8, 4) }.build("packed, causal"),
        Params { gain: 8.0, packed: packed(), ..heads(0, 0, 64, 64) }.build("packed"),
        Params { dtype: DType::Bf16, gain: 8.0, packed: packed(), window, ..heads(0, 0, 64, 20) }
            .build("packed, bf16, a window"),
        Params { gain: 9.0, ..heads(130, 4 * TILE + 10, 64, 64) }.build("tall blocks"),
    ];
    let (engine, mut skipped) = (gpu_engine(Fallback::Fail), 0);
    for (n, case) in cases.iter().enumerate() {
        let budget = [0.01, 0.2, 0.9][n % 3];
        let splits = if case.spec.packed.is_some() { 0 } else { n % 2 * 3 };
        let (ran, executed, ..) = run(&engine, case, &options(&engine, case, budget, splits));
        let used = judge_by(case, &Schedule::within(budget), executed, &ran);
        assert!(used <= 1.0, "{case:?}: {used}");
        skipped += ran.report.skipped_blocks;
    }
    assert!(skipped > 8, "{skipped}");
}

/// Every second tile has small weights. Checks that exactly these tiles are skipped.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn half_of_the_tiles_go() {
    let n = 12 * TILE;
    let k: Vec<f32> = (0..n).map(|j| if (j / TILE).is_multiple_of(2) { 0.0 } else { -16.0 }).collect();
    let v: Vec<f32> = (0..n).map(|j| (j % 17) as f32).collect();
    let q: Vec<f32> = (0..64).map(|i| 1.0 + i as f32 / 640.0).collect();
    // A lane of the merge cannot load six splits at once.
    for splits in [3, 6] {
        let ran = check_account(&q, &k, &v, 1e-3, splits);
        assert_eq!((ran.report.block_sparsity(), ran.report.row_sparsity()), (0.5, 0.5));
    }
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn certificates_count_what_was_left_out() {
    let (engine, case) = (gpu_engine(Fallback::Fail), little_left());
    is_counted(&engine, &case, &options(&engine, &case, 0.1, 1), Schedule::within(0.1));
}

/// Checks that every block of packed sequences has separate counts, and that the remaining counts are zero, even after
/// an earlier run with other sequences.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn packed_sequences_count_their_own_blocks() {
    let (engine, budget, heads) = (gpu_engine(Fallback::Fail), 0.05f32, 2);
    // Every list has the same number of queries, keys and sequences.
    let lists = [
        vec![(389, 40 * TILE), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0)],
        vec![(0, 5 * TILE), (64, 7 * TILE), (130, 10 * TILE), (0, 0), (1, 3 * TILE), (194, 15 * TILE)],
        vec![(63, 3 * TILE), (65, 11 * TILE), (128, 9 * TILE), (129, 13 * TILE), (4, 0), (0, 4 * TILE)],
        vec![(0, 0), (0, 0), (0, 0), (0, 0), (0, 0), (389, 40 * TILE)],
    ];
    for dtype in TYPES {
        let mut workspace = None;
        for list in &lists {
            let of = Params { dtype, heads, packed: Some(list.clone()), ..Params::plain(0, 0, 1, 1) };
            let mut case = Params { scale: Some(std::f32::consts::LN_2), ..of }.build("packed");
            let (queries, keys) = (389, 40 * TILE);
            // Every third tile is heavy.
            let k: Vec<f32> =
                (0..keys).map(|j| if (j / TILE).is_multiple_of(3) { 0.0 } else { -12.0 }).collect();
            let v: Vec<f32> = (0..keys).map(|j| (j % 7) as f32).collect();
            let q: Vec<f32> = (0..heads * queries).map(|i| 1.0 + (i % 32) as f32 / 64.0).collect();
            q.iter().enumerate().for_each(|(i, x)| case.q.set(i, *x));
            k.iter().enumerate().for_each(|(i, x)| case.k.set(i, *x));
            v.iter().enumerate().for_each(|(i, x)| case.v.set(i, *x));
            let options = options(&engine, &case, budget, 0);
            let plan = engine.plan(&case.problem(), &options).unwrap();
            assert!(plan.gpu_choice().unwrap().kernel.name.ends_with("_within"));
            let workspace = workspace.get_or_insert_with(|| plan.workspace().unwrap());
            for states in [true, false] {
                let (buffers, _) = case.run_with(&plan, workspace, |outputs| {
                    outputs.state = outputs.state.take().filter(|_| states);
                });
                let found = workspace.traversed().unwrap();
                let (report, tile) = (found.report, found.tile);
                let mut want = [0u64; 4];
                let (mut q0, mut k0) = (0, 0);
                for (n, keys) in list {
                    for head in 0..heads {
                        let at = head * queries + q0;
                        let data = [&q[at..at + n], &k[k0..k0 + keys], &v[k0..k0 + keys]];
                        for tile in blocks_of(tile.rows, *n) {
                            let rows = tile.len() as u64;
                            let (rows_found, skipped) =
                                account(data, f64::from(budget), std::slice::from_ref(&tile), TILE);
                            let met = (keys / TILE) as u64;
                            want = [
                                want[0] + met,
                                want[1] + skipped,
                                want[2] + met * rows,
                                want[3] + skipped * rows,
                            ];
                            for i in tile {
                                let Account { kept, left, weighted } = rows_found[i];
                                let share = f64::from(found.share[at + i]);
                                let naive = left / (kept + left).max(1e-30);
                                assert!((share - naive).abs() <= 2e-5 * share, "{share} {naive} row {i}");
                                if states && *keys > 0 {
                                    let to = case.spec.output.row(0, head, q0 + i);
                                    let y = f64::from(buffers.output.get(to));
                                    assert!((y - weighted / kept).abs() <= 5e-3 * y, "{y} row {i}");
                                }
                            }
                        }
                    }
                    (q0, k0) = (q0 + n, k0 + keys);
                }
                let TraversalReport { blocks, skipped_blocks, row_blocks, skipped_row_blocks, .. } = report;
                assert_eq!([blocks, skipped_blocks, row_blocks, skipped_row_blocks], want, "{list:?}");
                assert!(skipped_blocks > 20 && report.accepted == (heads * queries) as u64);
            }
        }
    }
}

/// Checks that the CPU computes schedules for which the GPU has no kernel, and that the plan gives the reason.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn a_gpu_leaves_other_schedules_to_the_cpu() {
    let case = Params::plain(70, 90, 8, 4).build("on a GPU");
    let gated = Schedule { gate: true, ..Schedule::EXACT };
    for schedule in [Schedule::VFA, gated] {
        let options = PlanOptions::default().schedule(schedule);
        let refusal = gpu_engine(Fallback::Fail).plan(&case.problem(), &options).unwrap_err();
        assert_eq!(refusal, PlanError::NotOnGpu { operator: "schedule but the exact one" });
        let plan = gpu_engine(Fallback::Cpu).plan(&case.problem(), &options).unwrap();
        assert_eq!((plan.refusal(), plan.backend() == Backend::Cuda), (Some(&refusal), false));
        let (mut buffers, mut workspace) = (case.buffers(), plan.workspace().unwrap());
        let report = plan.bind(case.inputs(), buffers.outputs(), &mut workspace).unwrap().run().unwrap();
        assert!(report.fallback.is_some() && workspace.traversed().is_ok());
    }
}
