//! Tests schedules on every CPU back end: kernels execute error budgets, and the scalar run of core executes all other
//! schedules.

use elsa_core::argument::ArgumentError;
use elsa_core::attention::certificate::Executed;
use elsa_core::attention::traversal::{Schedule, Skip, TABLE_3, TABLE_4, TileSize};
use elsa_core::attention::{Alignment, Chunk, Inputs, MaskKind, Outputs, Spec, StateOut, Window, reference};
use elsa_core::dtype::{DType, Elements};
use elsa_core::quorum::Division;
use elsa_core::view::{Layout, View};
use elsa_oracle::SLOW;
use elsa_oracle::cases::{Case, Data, MaskParams, Params, some_hard_cases};
use elsa_oracle::cpu_engines;
use elsa_oracle::random::seeded;
use elsa_oracle::schedules::scores::{equal_parts, rising};
use elsa_oracle::schedules::{Merged, ScheduleRun, account, compare, judge, judge_by, same, scored, try_run};
use elsa_runtime::{Engine, Method, PlanError, PlanOptions, RunError, StreamOptions, TaskPlan, TaskTokens};
use std::ops::Range;

/// Number of keys per block.
pub const BLOCK: usize = 64;

/// Runs a case twice in one workspace, under a schedule other than the exact one, and checks that both runs are equal.
/// Returns the run, and the tile whose rows decide together.
pub fn run(engine: &Engine, case: &Case, options: &PlanOptions) -> (ScheduleRun, TileSize) {
    let plan = engine.plan(&case.problem(), &options.all_workers(true)).unwrap();
    ScheduleRun::twice(case, &plan, &mut plan.workspace().unwrap())
}

/// Compares every CPU back end with core's scalar run, bit for bit, on hard cases and for several numbers of threads.
/// Covers all settings in tables 3 and 4 of the VFA article, a budget, and the gate. The scalar run uses tiles of the
/// same number of rows as the back end.
#[test]
fn any_schedule_is_the_scalar_run() {
    let settings: Vec<Schedule> = TABLE_3
        .iter()
        .chain(&TABLE_4)
        .map(|(_, schedule)| *schedule)
        .chain([Schedule { skip: Skip::Budget(0.2), ..Schedule::VFA }])
        .chain([Schedule { gate: true, ..Schedule::VFA }])
        .collect();
    let (one, three) = (cpu_engines(1), cpu_engines(3));
    let step = if SLOW { 31 } else { 5 };
    for (n, case) in some_hard_cases().iter().enumerate().step_by(step) {
        let schedule = settings[n / step % settings.len()];
        let options = PlanOptions::default().schedule(schedule).block([64, 128][n % 2]);
        let engine = n / step % one.len();
        let (found, tile) = run(&one[engine], case, &options);
        let (threads, _) = run(&three[engine], case, &options);
        assert!(same(&found.buffers, &threads.buffers) && found.report == threads.report, "{case:?}");
        let want = try_run(case, &schedule, tile).unwrap();
        // If tiles end at other rows than in the core, rows vote together with other rows, and the bits may differ.
        let aligned = case.spec.query.tokens() <= tile.rows || tile.rows == 1;
        if aligned {
            assert!(same(&found.buffers, &want.buffers), "{case:?} {schedule:?}");
            assert_eq!(found.d, want.d, "{case:?} {schedule:?}");
            assert_eq!(
                (found.report.blocks, found.report.recomputed),
                (want.report.blocks, want.report.recomputed)
            );
        }
    }
}

fn judged() -> Vec<Case> {
    let heads =
        |queries, keys, d, dv| Params { heads: 4, kv_heads: 2, ..Params::plain(queries, keys, d, dv) };
    let causal = Some(Alignment::BottomRight);
    let mask = |kind| Some(MaskParams { kind, dims: vec![40, 330], density: 0.6 });
    let cases = [
        Params { gain: 6.0, causal, ..heads(370, 370, 8, 4) }.build("causal"),
        Params { gain: 3.0, mask: mask(MaskKind::Bool), ..heads(40, 330, 8, 3) }.build("a mask"),
        Params {
            gain: 5.0,
            causal,
            window: Window { left: Some(145), right: None },
            ..heads(290, 290, 8, 2)
        }
        .build("a window"),
        Params { gain: 4.0, dtype: DType::F16, causal, ..heads(150, 280, 16, 2) }.build("halves"),
        Params { gain: 9.0, softcap: Some(20.0), causal, ..heads(150, 150, 16, 2) }.build("a cap"),
        Params { gain: 4.0, lengths: true, batch: 3, ..heads(20, 300, 8, 2) }.build("lengths"),
        Params { gain: 9.0, ..heads(1, 700, 8, 2) }.build("one query"),
        Params { gain: 60.0, ..heads(33, 297, 8, 2) }.build("one key weighs"),
    ];
    if SLOW { cases.into_iter().step_by(4).collect() } else { cases.into() }
}

#[test]
fn answers_by_a_schedule_are_within_their_bounds() {
    let mut skipped = 0;
    for engine in cpu_engines(2) {
        for (n, case) in judged().iter().enumerate() {
            for schedule in [Schedule::VFA, Schedule::vsa(0.01), Schedule::blasst_rows(0.1)] {
                if n % 3 == 1 && schedule != Schedule::vsa(0.01) {
                    continue;
                }
                let (ran, tile) = run(&engine, case, &PlanOptions::default().schedule(schedule));
                assert!(judge(case, &schedule, tile, &ran) <= 1.0);
                skipped += ran.report.skipped_row_blocks;
            }
        }
    }
    assert!(skipped > 100, "{skipped}");
}

#[test]
fn refusals_name_the_option() {
    let case = Params::plain(5, 9, 8, 4).build("refused");
    let problem = case.problem();
    for engine in cpu_engines(1) {
        let refusal = |options: PlanOptions| match engine.plan(&problem, &options) {
            Err(PlanError::Option(e)) => e,
            other => panic!("{other:?}"),
        };
        let plain = PlanOptions::default();
        for bad in [0.0, -0.0, 1.0, -0.5, 2.0, f32::NAN, f32::INFINITY] {
            let budget = refusal(plain.error_budget(bad));
            assert!(matches!(budget, ArgumentError::Number { argument: "error_budget", .. }), "{budget}");
            let lambda = refusal(plain.schedule(Schedule::vsa(bad)));
            assert!(matches!(lambda, ArgumentError::Number { argument: "lambda", .. }), "{lambda}");
        }
        let threshold = Schedule { threshold: 9.0, ..Schedule::VFA };
        let refused = refusal(plain.schedule(threshold));
        assert!(matches!(refused, ArgumentError::Number { argument: "rescale_threshold", .. }), "{refused}");
        let conflict = |argument, other| ArgumentError::Conflict { argument, other };
        let budget = plain.error_budget(0.1);
        for (options, argument, other) in [
            (budget.method(Method::Math), "error_budget", "method math"),
            (plain.method(Method::Math).schedule(Schedule::VFA), "schedule", "method math"),
            (budget.schedule(Schedule::vsa(0.1)), "error_budget", "lambda"),
            (budget.schedule(Schedule::within(0.1)), "error_budget", "schedule"),
        ] {
            assert_eq!(refusal(options), conflict(argument, other));
        }
        // Neither streamed runs nor tasks support budgets and schedules. The states of tasks have no room for the
        // skipped sums.
        for (plan, name) in [(budget, "error_budget"), (plain.schedule(Schedule::VFA), "schedule")] {
            let options = StreamOptions::new(1 << 26).plan(plan);
            let refused = engine.stream(&problem, &options).unwrap_err();
            assert!(matches!(refused, PlanError::NotStreamed { option, .. } if option == name), "{refused}");
            let division = Division::new(&[3]).unwrap();
            let path = division.path(0).unwrap();
            let refused =
                TaskPlan::new(&engine, &problem, &division, &path, TaskTokens::Whole, &plan).unwrap_err();
            assert_eq!(refused, PlanError::Option(conflict(name, "a task")));
        }
        // The workspace of an exact run has no room for skipped sums.
        let plan = engine.plan(&problem, &plain).unwrap();
        let mut workspace = plan.workspace().unwrap();
        assert_eq!(workspace.traversed().unwrap_err(), RunError::Exact);
        case.run(&plan, &mut workspace);
        assert_eq!(workspace.traversed().unwrap_err(), RunError::Exact);
    }
}

/// Runs a case within an error budget, and checks its shares and the kernel of its plan. Returns the run, the arithmetic
/// that it executed, and the rows of its tiles.
pub fn within(engine: &Engine, case: &Case, budget: f32) -> (ScheduleRun, Executed, Vec<Range<usize>>) {
    let problem = case.problem();
    let options = PlanOptions::default().error_budget(budget);
    let (ran, tile) = run(engine, case, &options);
    let plan = engine.plan(&problem, &options.all_workers(true)).unwrap();
    let tiling = plan.choice().unwrap().tiling(case.spec.query.tokens());
    assert_eq!(tile, plan.choice().unwrap().decides());
    assert_eq!(plan.kernel(), plan.choice().unwrap().kernel.name);
    assert!(f64::from(ran.share.iter().copied().fold(0.0, f32::max)) <= f64::from(budget));
    (ran, plan.certificate().executed, (0..tiling.count()).map(|t| tiling.tile(t).rows).collect())
}

/// Runs a case with given scores within an error budget on every CPU back end, and compares the results with the f64
/// account. Returns the last run.
fn check_account(q: &[f32], k: &[f32], v: &[f32], budget: f32) -> ScheduleRun {
    let case = scored(q, k, v);
    let mut last = None;
    for engine in cpu_engines(2) {
        let (ran, executed, tiles) = within(&engine, &case, budget);
        let (rows, skipped) = account([q, k, v], f64::from(budget), &tiles, BLOCK);
        assert_eq!(ran.report.skipped_blocks, skipped, "{} {:?}", engine.kernel(), ran.report);
        assert_eq!(ran.report.blocks, (tiles.len() * k.len().div_ceil(BLOCK)) as u64);
        compare(&ran, &rows);
        assert!(judge_by(&case, &Schedule::within(budget), executed, &ran) <= 1.0);
        last = Some(ran);
    }
    last.unwrap()
}

/// Checks that all blocks are skipped if the sum of their weights is just below the budget, and not all if it is just
/// above. Covers several segments, one query, and several tiles of queries.
#[test]
fn mass_just_below_the_budget_is_left_out_by_kernels() {
    let (budget, blocks) = (0.05f32, if SLOW { 9 } else { 20 });
    for queries in [1, 37] {
        for (of_budget, all) in [(0.98, true), (1.05, false)] {
            let [k, v] = equal_parts(BLOCK, blocks, of_budget, budget);
            let ran = check_account(&vec![1.0; queries], &k, &v, budget);
            let tiles = ran.report.blocks / (blocks as u64 + 1);
            assert_eq!(ran.report.skipped_blocks == tiles * blocks as u64, all, "{:?}", ran.report);
            if all {
                assert!(f64::from(ran.share[0]) > 0.97 * f64::from(budget));
            }
        }
    }
}

/// Checks references that rise after blocks were skipped, by more than the headroom and by a hundred bits: the skipped
/// sums follow the reference. Adjacent rows vote separately.
#[test]
fn kernels_bring_what_was_left_out_to_new_references() {
    let mut random = seeded(41);
    let mut seen = [0u64; 3];
    for n in 0..if SLOW { 2 } else { 8 } {
        let step = [3.0f32, 12.0][n % 2];
        let [k, v] = rising(&mut random, BLOCK, 12 * BLOCK - 7, step);
        // Some rows have flatter scores than others.
        let q: Vec<f32> = (0..[1, 19][n / 2 % 2]).map(|_| 0.2 + random.unit() as f32).collect();
        let ran = check_account(&q, &k, &v, 0.1);
        seen[0] += ran.report.skipped_blocks;
        seen[1] += ran.report.blocks - ran.report.skipped_blocks;
        seen[2] += ran.report.rescaled_blocks;
    }
    assert!(seen.iter().all(|seen| *seen > if SLOW { 0 } else { 3 }), "{seen:?}");
    // The last key has the largest score, 12 bits above the first block and 32 bits above all other keys.
    for segment in [3, 10] {
        let mut k: Vec<f32> = (0..segment * BLOCK).map(|j| if j < BLOCK { 0.0 } else { -20.0 }).collect();
        *k.last_mut().unwrap() = 12.0;
        let v: Vec<f32> = (0..k.len()).map(|j| (j % 5) as f32).collect();
        let ran = check_account(&[1.0, 0.9], &k, &v, 0.01);
        assert!(
            ran.d[0] > 0.0
                && ran.report.skipped_blocks == ran.report.blocks / segment as u64 * (segment as u64 - 2)
        );
    }
}

#[test]
fn every_row_of_a_kernels_tile_votes() {
    let k: Vec<f32> = (0..4 * BLOCK).map(|j| if j < BLOCK { 0.0 } else { -20.0 }).collect();
    let v: Vec<f32> = (0..k.len()).map(|j| j as f32).collect();
    for engine in cpu_engines(1) {
        let rows = 5;
        let skipped = |q: &[f32]| within(&engine, &scored(q, &k, &v), 0.01).0.report.skipped_blocks;
        let (all, tiles) = (skipped(&[1.0; 5]), within(&engine, &scored(&[1.0; 5], &k, &v), 0.01).2);
        assert_eq!(all, 3 * tiles.len() as u64);
        for objector in 0..rows {
            let mut q = [1.0f32; 5];
            q[objector] = 0.01;
            assert_eq!(skipped(&q), 3 * (tiles.len() as u64 - 1), "{} {objector}", engine.kernel());
        }
        // The row that votes against skipping may be in any lane of the widest tile.
        let width = tiles[0].len().max(48);
        for objector in (0..width).step_by(if SLOW { 13 } else { 5 }) {
            let mut q = vec![1.0f32; width];
            q[objector] = 0.01;
            let (ran, _, tiles) = within(&engine, &scored(&q, &k, &v), 0.01);
            assert_eq!(ran.report.skipped_blocks, 3 * (tiles.len() as u64 - 1), "{objector}");
        }
    }
}

/// Checks NaN and infinities among the values of blocks that would otherwise be skipped: they reach the rows that
/// attend them.
#[test]
fn kernels_keep_values_that_are_not_finite() {
    let k: Vec<f32> = (0..7 * BLOCK).map(|j| if j < BLOCK { 0.0 } else { -20.0 }).collect();
    for engine in cpu_engines(1) {
        for queries in [1usize, 9] {
            for (at, bad) in
                [(3 * BLOCK + 5, f32::NAN), (6 * BLOCK + 63, f32::INFINITY), (2 * BLOCK, f32::NEG_INFINITY)]
            {
                let mut v = vec![1.0f32; k.len()];
                let q = vec![1.0; queries];
                let (plain, _, tiles) = within(&engine, &scored(&q, &k, &v), 0.1);
                let blocks = tiles.len() as u64;
                assert_eq!(plain.report.skipped_blocks, 6 * blocks);
                v[at] = bad;
                let (found, _, _) = within(&engine, &scored(&q, &k, &v), 0.1);
                assert_eq!(found.report.skipped_blocks, 5 * blocks, "{bad}");
                for i in 0..queries {
                    let y = found.buffers.output.get(i);
                    assert!(
                        if bad.is_nan() { y.is_nan() } else { y == bad },
                        "{} {bad} {y}",
                        engine.kernel()
                    );
                }
                // A NaN in a key poisons all rows.
                let mut case = scored(&q, &k, &vec![1.0; k.len()]);
                case.fill_key(0, at, f32::NAN);
                let (found, _, _) = within(&engine, &case, 0.1);
                assert!((0..queries).all(|i| found.buffers.output.get(i).is_nan()));
            }
        }
    }
}

/// Checks that a budget that is too small to skip any block leaves the bits of all outputs unchanged.
#[test]
fn a_budget_with_nothing_to_skip_changes_no_bit() {
    let step = if SLOW { 17 } else { 3 };
    let mut compared = 0;
    for engine in cpu_engines(2) {
        for case in some_hard_cases().iter().step_by(step) {
            let options = PlanOptions::default().error_budget(1e-30);
            let (ran, _) = run(&engine, case, &options);
            if ran.report.skipped_blocks > 0 {
                // The skipped blocks have keys without any weight.
                continue;
            }
            let plan = engine.plan(&case.problem(), &PlanOptions::default()).unwrap();
            let (mut exact, mut workspace) = (case.buffers(), plan.workspace().unwrap());
            plan.bind(case.inputs(), exact.outputs(), &mut workspace).unwrap().run().unwrap();
            assert!(same(&ran.buffers, &exact), "{} {case:?}", engine.kernel());
            assert!(ran.d.iter().chain(&ran.share).all(|x| *x == 0.0));
            compared += 1;
        }
    }
    assert!(compared > if SLOW { 8 } else { 20 }, "{compared}");
}

#[test]
fn answers_inside_a_budget_are_within_their_bounds() {
    let mut skipped = 0;
    for (n, case) in judged().iter().enumerate() {
        for (e, engine) in cpu_engines(1 + n % 3).iter().enumerate() {
            let budget = [0.01, 0.2, 0.9][(n + e) % 3];
            let (ran, executed, _) = within(engine, case, budget);
            let used = judge_by(case, &Schedule::within(budget), executed, &ran);
            assert!(used <= 1.0, "{used}");
            skipped += ran.report.skipped_blocks;
        }
    }
    assert!(skipped > if SLOW { 8 } else { 20 }, "{skipped}");
}

/// Every second block has small weights. Checks that exactly these blocks are skipped, with 64 queries, blocks of 64
/// keys, and tiles of any width.
#[test]
fn half_of_the_blocks_go() {
    let n = if SLOW { 4 * BLOCK } else { 18 * BLOCK };
    let k: Vec<f32> = (0..n).map(|j| if (j / BLOCK).is_multiple_of(2) { 0.0 } else { -16.0 }).collect();
    let v: Vec<f32> = (0..n).map(|j| (j % 17) as f32).collect();
    let q: Vec<f32> = (0..64).map(|i| 1.0 + i as f32 / 640.0).collect();
    let ran = check_account(&q, &k, &v, 1e-3);
    assert_eq!((ran.report.block_sparsity(), ran.report.row_sparsity()), (0.5, 0.5));
}

/// Checks calls with different parts of the keys: they decide independently, and their states merge within the budget.
#[test]
fn states_of_parts_merge_with_what_they_left_out() {
    let (queries, keys, d, dv) = (20, 640, 1, 1);
    let mut random = seeded(3);
    let mut level = |j: usize| {
        let base = if (j / BLOCK).is_multiple_of(3) { 0.0 } else { -14.0 };
        base + random.normal()
    };
    let k: Vec<f32> = (0..keys).map(&mut level).collect();
    let v: Vec<f32> = (0..keys).map(|j| (j % 11) as f32).collect();
    let q: Vec<f32> = (0..queries).map(|i| 0.8 + i as f32 / 50.0).collect();
    let case = scored(&q, &k, &v);
    let (budget, mut skipped) = (0.2f32, 0);
    for engine in cpu_engines(2) {
        let mut merged = Merged::default();
        for part in [0..200usize, 200..201, 201..640] {
            let view = |n: usize, d: usize| View::dense("x", Layout::Bhnd, &[n, d], None).unwrap();
            let n = part.len();
            let problem = Spec::new(DType::F32, view(queries, d), view(n, d), view(n, dv), view(queries, dv));
            let problem = problem.scale(case.spec.scale).check().unwrap();
            let of = |data: &Data, d: usize| -> Vec<f32> {
                (part.start * d..part.end * d).map(|i| data.get(i)).collect()
            };
            let (k, v) = (of(&case.k, d), of(&case.v, dv));
            let mut inputs = Inputs::new(case.q.elements(), Elements::F32(&k), Elements::F32(&v));
            inputs.lengths.chunk = Some(Chunk::of_keys(part.start, keys));
            let [mut m, mut s] = [(); 2].map(|()| vec![f32::NAN; queries]);
            let mut w = vec![f32::NAN; queries * dv];
            let outputs = Outputs::states(StateOut { m: &mut m, s: &mut s, w: &mut w });
            let options = PlanOptions::default().error_budget(budget);
            let plan = engine.plan(&problem, &options).unwrap();
            let mut workspace = plan.workspace().unwrap();
            plan.bind(inputs, outputs, &mut workspace).unwrap().run().unwrap();
            let traversed = workspace.traversed().unwrap();
            skipped += traversed.report.skipped_blocks;
            merged.add([m, s, traversed.d.to_vec(), w]);
        }
        merged.check(&case.problem(), &case.inputs(), budget, 900, 1e-4);
    }
    assert!(skipped > 0);
}

/// Returns a case whose later blocks have a small share of the weights, and values far from those of the first block.
pub fn little_left() -> Case {
    let k: Vec<f32> = (0..9 * BLOCK).map(|j| if j < BLOCK { 0.0 } else { -7.0 }).collect();
    let v: Vec<f32> = (0..k.len()).map(|j| if j < BLOCK { 1.0 } else { -1.0 }).collect();
    scored(&[1.0, 0.9, 1.1], &k, &v)
}

/// Checks that the certificate of a run of [`little_left`] under `schedule` counts the skipped blocks.
pub fn is_counted(engine: &Engine, case: &Case, options: &PlanOptions, schedule: Schedule) {
    let plan = engine.plan(&case.problem(), &options.certify(true)).unwrap();
    let mut workspace = plan.workspace().unwrap();
    let (buffers, _) = case.run(&plan, &mut workspace);
    let shares = workspace.traversed().unwrap().shares;
    let certified = workspace.certificate().unwrap();
    assert_eq!(certified.left_out, Some((schedule, shares)));
    assert!(shares.worst > 0.01 && shares.p99 == shares.worst && shares.mean <= shares.worst);
    let text = certified.to_string();
    let name = format!("\"left_out\":{{\"schedule\":\"{}\"", schedule.name());
    assert!(text.contains(&name) && text.contains("\"p99\":"), "{text}");
    let bound = certified.largest_absolute().unwrap();
    let mut y = [0.0];
    for i in 0..3 {
        reference::row(&case.problem(), &case.inputs(), 0, 0, i, &mut y);
        let error = (f64::from(buffers.output.get(i)) - y[0]).abs();
        assert!(error > 0.3 * bound && error <= bound, "{error} {bound}");
    }
}

#[test]
fn certificates_count_what_was_left_out() {
    for engine in cpu_engines(1) {
        for schedule in [Schedule::within(0.1), Schedule::vsa(0.1)] {
            is_counted(&engine, &little_left(), &PlanOptions::default().schedule(schedule), schedule);
        }
    }
}
