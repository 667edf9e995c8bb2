//! Tests the norm gate in the CPU kernels: if norms prove that scores stay near zero, zero is the reference of all
//! rows, with and without an error budget.

use super::schedules_kernels::{BLOCK, run};
use super::schedules_unseen::{fill, mask};
use elsa_core::attention::certificate::Executed;
use elsa_core::attention::traversal::{Schedule, Skip};
use elsa_core::attention::{Alignment, MaskKind, Windows, reference};
use elsa_core::dtype::DType;
use elsa_oracle::SLOW;
use elsa_oracle::cases::{BiasParams, Case, MaskData, MaskParams, Params};
use elsa_oracle::cpu_engines;
use elsa_oracle::schedules::{ScheduleRun, account, compare, judge_by, same, scored};
use elsa_runtime::{Engine, PlanOptions};
use std::ops::Range;

/// The exact schedule with the norm gate, which kernels support.
const GATE: Schedule = Schedule { gate: true, ..Schedule::EXACT };

/// Returns the schedule of an error budget with the norm gate.
fn inside(budget: f32) -> Schedule {
    Schedule { skip: Skip::Budget(budget), ..GATE }
}

/// Runs a case with a schedule that kernels support. Returns the run, the arithmetic that it executed, and the rows of
/// its tiles.
fn by(engine: &Engine, case: &Case, schedule: Schedule) -> (ScheduleRun, Executed, Vec<Range<usize>>) {
    let options = PlanOptions::default().schedule(schedule);
    let (ran, _) = run(engine, case, &options);
    let plan = engine.plan(&case.problem(), &options.all_workers(true)).unwrap();
    assert_eq!(plan.kernel(), plan.choice().unwrap().kernel.name);
    let tiling = plan.choice().unwrap().tiling(case.spec.query.tokens());
    (ran, plan.certificate().executed, (0..tiling.count()).map(|t| tiling.tile(t).rows).collect())
}

fn gated(engine: &Engine, case: &Case) -> (ScheduleRun, Executed) {
    let (ran, executed, _) = by(engine, case, GATE);
    (ran, executed)
}

/// Returns `true` if a run wrote the bits of the exact plan.
fn is_exact(engine: &Engine, case: &Case, ran: &ScheduleRun) -> bool {
    let plan = engine.plan(&case.problem(), &PlanOptions::default()).unwrap();
    let (mut exact, mut workspace) = (case.buffers(), plan.workspace().unwrap());
    plan.bind(case.inputs(), exact.outputs(), &mut workspace).unwrap().run().unwrap();
    same(&ran.buffers, &exact)
}

/// Fills mask and bias with numbers up to the magnitude `most`, or exactly ±`most` if `most` is large. Some elements are
/// `−∞`.
fn small(case: &mut Case, most: f32) {
    let of = |n: usize| match n % 11 {
        0 => f32::NEG_INFINITY,
        r if most < 30.0 => most * (r as f32 / 5.0 - 1.0),
        r => {
            if r % 2 == 0 {
                most
            } else {
                -most
            }
        }
    };
    if let Some(MaskData::Additive(data)) = &mut case.mask {
        (0..data.len()).for_each(|n| data.set(n, of(n * 7 + n / 13)));
    }
    if let Some(data) = &mut case.bias {
        (0..data.len()).for_each(|n| data.set(n, of(n * 3 + 1 + n / 17)));
    }
}

/// Returns cases with additive masks and biases. Their elements of `−∞` do not count for the gate; all other elements
/// count in addition to the norms.
fn with_numbers() -> Vec<Case> {
    let numbers = |dtype, dims: &[usize]| {
        Some(MaskParams { kind: MaskKind::Additive(dtype), dims: dims.to_vec(), density: 1.0 })
    };
    let heads = Params { heads: 4, kv_heads: 2, ..Params::plain(70, 330, 8, 3) };
    let causal = Some(Alignment::BottomRight);
    let dense = |dtype, dims: &[usize]| numbers(dtype, dims).map(BiasParams::Dense);
    let windows = Windows { size: [9, 8], shift: [0, 0], picture: [9, 8] };
    let table = BiasParams::Table { dtype: DType::F32, entries: None, density: 1.0 };
    let index = BiasParams::Table { dtype: DType::F16, entries: Some(21), density: 1.0 };
    let cases = [
        Params { mask: numbers(DType::F32, &[70, 330]), ..heads.clone() }.build("a mask of all heads"),
        Params { mask: numbers(DType::F16, &[4, 70, 330]), causal, ..heads.clone() }
            .build("a mask of each head"),
        Params { mask: numbers(DType::F32, &[330]), causal, ..heads.clone() }.build("a row of a mask"),
        Params { mask: numbers(DType::F32, &[70, 1]), ..heads.clone() }.build("a column of a mask"),
        Params { mask: numbers(DType::F32, &[70, 200]), lengths: true, batch: 2, ..heads.clone() }
            .build("a short mask"),
        Params { bias: dense(DType::Bf16, &[4, 70, 330]), ..heads.clone() }.build("a bias"),
        Params { mask: numbers(DType::F32, &[70, 330]), bias: dense(DType::F32, &[330]), ..heads.clone() }
            .build("mask and bias"),
        Params { windows: Some(windows), bias: Some(table), queries: 72, keys: 72, ..heads.clone() }
            .build("a table"),
        Params { bias: Some(index), ..heads.clone() }.build("a table with an index"),
        Params { mask: numbers(DType::F32, &[1, 330]), queries: 1, gain: 3.0, ..heads }.build("one query"),
    ];
    cases
        .into_iter()
        .map(|mut case| {
            small(&mut case, 3.0);
            case
        })
        .collect()
}

#[test]
fn numbers_that_are_added_join_the_norms() {
    for (e, engine) in cpu_engines(2).iter().enumerate() {
        for (n, case) in with_numbers().iter().enumerate() {
            if SLOW && (n + e) % 3 != 0 {
                continue;
            }
            let (ran, executed) = gated(engine, case);
            assert_eq!(ran.report.gated, case.problem().rows() as u64, "{case:?} {:?}", ran.report);
            assert!(judge_by(case, &GATE, executed, &ran) <= 1.0);
            assert!(!is_exact(engine, case, &ran), "{case:?}: zero is never the reference");
            // Mask and bias together exceed the limit of the gate, although neither does alone. If they do so in every
            // row, the bits are those of the exact schedule.
            let mut far = case.clone();
            small(&mut far, 32.0);
            let (ran, _) = gated(engine, &far);
            assert!(ran.report.gated < far.problem().rows() as u64, "{case:?} {:?}", ran.report);
            small(&mut far, 34.0);
            let (ran, _) = gated(engine, &far);
            assert_eq!(ran.report.gated, 0, "{case:?}");
            assert!(is_exact(engine, &far, &ran), "{case:?}");
        }
    }
}

/// Checks that a single large element closes the gate for its tile, at any position, and that masked elements do not.
#[test]
fn every_number_of_a_tile_counts() {
    let (queries, keys) = (120, 200);
    let case = || {
        let mut case =
            Params { mask: mask(&[queries, keys]), ..Params::plain(queries, keys, 8, 4) }.build("numbers");
        small(&mut case, 2.0);
        case
    };
    for engine in cpu_engines(1) {
        let tiles = by(&engine, &case(), GATE).2;
        for (row, key, x) in [
            (0, 0, 40.0),
            (119, 199, -40.0),
            (60, 77, f32::NAN),
            (61, 199, f32::INFINITY),
            (119, 0, -1e9),
            (33, 64, f32::NEG_INFINITY),
        ] {
            let mut one = case();
            let Some(MaskData::Additive(data)) = &mut one.mask else { panic!() };
            data.set(row * keys + key, x);
            let (ran, _) = gated(&engine, &one);
            let of = tiles.iter().find(|tile| tile.contains(&row)).unwrap();
            let shut = if x == f32::NEG_INFINITY { 0 } else { of.len() as u64 };
            assert_eq!(ran.report.gated, queries as u64 - shut, "{} {row} {key} {x}", engine.kernel());
            if x.is_nan() {
                assert!((0..queries).all(|i| ran.buffers.output.get(i * 4).is_nan() == (i == row)));
            }
        }
        // Keys that no row of a tile attends do not count.
        let mut causal = case();
        causal.spec.causal = Some(Alignment::TopLeft);
        let Some(MaskData::Additive(data)) = &mut causal.mask else { panic!() };
        data.set(199, 1e3);
        assert_eq!(gated(&engine, &causal).0.report.gated, queries as u64);
    }
}

/// Checks that a budget that skips nothing keeps the bits of rows whose reference is zero, and that a closed gate gives
/// the bits of the exact schedule.
#[test]
fn a_budget_with_nothing_to_skip_changes_no_bit_of_the_gate() {
    let mut cases = with_numbers();
    cases.push(Params { heads: 4, kv_heads: 2, ..Params::plain(50, 700, 8, 4) }.build("plain"));
    cases.push(Params { gain: 5.0, ..Params::plain(1, 700, 8, 4) }.build("one query"));
    for (e, engine) in cpu_engines(2).iter().enumerate() {
        for (n, case) in cases.iter().enumerate() {
            if SLOW && (n + e) % 3 != 0 {
                continue;
            }
            let (alone, _) = gated(engine, case);
            let (ran, _, _) = by(engine, case, inside(1e-20));
            assert_eq!((ran.report.gated, ran.report.skipped_blocks), (alone.report.gated, 0), "{case:?}");
            assert!(same(&alone.buffers, &ran.buffers), "{} {case:?}", engine.kernel());
            assert!(ran.d.iter().chain(&ran.share).all(|x| *x == 0.0));
            let mut far = case.clone();
            (0..far.q.len()).for_each(|i| far.q.set(i, far.q.get(i) * 60.0));
            let (ran, _, _) = by(engine, &far, inside(1e-30));
            assert!(ran.report.gated == 0 && (ran.report.skipped_blocks > 0 || is_exact(engine, &far, &ran)));
        }
    }
}

/// Checks, for one query and for tiles, that a reference of zero does not change which blocks are skipped. The results
/// must agree with an account in f64.
#[test]
fn a_budget_is_kept_beside_zero() {
    let budget = 0.01f32;
    let keys = 13 * BLOCK - 9;
    // The scores of each block are near one level, from −40 to 40 bits. A moving reference would follow most rises.
    let level = |j: usize| {
        [-3.0f32, -21.0, 7.0, -9.0, -40.0, 30.0, 10.0, -2.0, 40.0, 25.0, 28.0, 0.0, 39.0][j / BLOCK]
    };
    let k: Vec<f32> = (0..keys).map(|j| level(j) + (j % 7) as f32 * 0.05).collect();
    let v: Vec<f32> = (0..keys).map(|j| (j % 5) as f32 - 1.0).collect();
    let exact = Schedule::within(budget);
    for engine in cpu_engines(2) {
        for q in [vec![1.0f32], (0..70).map(|i| 1.0 - i as f32 / 900.0).collect()] {
            let case = scored(&q, &k, &v);
            let (ran, executed, tiles) = by(&engine, &case, inside(budget));
            let (rows, skipped) = account([&q, &k, &v], f64::from(budget), &tiles, BLOCK);
            let report = &ran.report;
            assert_eq!((report.skipped_blocks, report.gated), (skipped, q.len() as u64), "{report:?}");
            assert!(skipped > 3 * tiles.len() as u64 && report.rescaled_blocks == 0, "{report:?}");
            assert!(ran.buffers.m.iter().all(|m| *m == 0.0));
            compare(&ran, &rows);
            assert!(judge_by(&case, &inside(budget), executed, &ran) <= 1.0);
            // Moving references skip the same number of blocks.
            let (moving, _, _) = by(&engine, &case, exact);
            assert_eq!(moving.report.skipped_blocks, skipped);
            assert!(moving.report.gated == 0 && moving.report.rescaled_blocks > 0);
        }
        // A value that is not finite closes the gate, and its block is kept.
        let mut bad = v.clone();
        bad[BLOCK + 3] = f32::NAN;
        let (ran, _, _) = by(&engine, &scored(&[1.0; 9], &k, &bad), inside(budget));
        assert!(ran.report.gated == 0 && (0..9).all(|i| ran.buffers.output.get(i).is_nan()));
    }
}

/// Checks blocks that are skipped without computing their scores when the reference is zero. The mask decreases with
/// the distance as far as the gate allows.
#[test]
fn blocks_go_unseen_beside_zero() {
    let (budget, queries, keys) = (0.01f32, 80, 5 * BLOCK);
    for (causal, slope) in [(None, 0.09f32), (Some(Alignment::BottomRight), 0.09)] {
        let params =
            Params { gain: 0.3, causal, mask: mask(&[queries, keys]), ..Params::plain(queries, keys, 8, 4) };
        let mut case = params.build("falls");
        let first = if causal.is_some() { keys - queries } else { 0 };
        fill(&mut case, keys, |i, j| {
            let fall = -slope * (first + i).abs_diff(j) as f32;
            if (i * 5 + j * 3) % 29 == 0 && j != first + i { f32::NEG_INFINITY } else { fall.max(-28.0) }
        });
        for engine in cpu_engines(2) {
            let (ran, executed, _) = by(&engine, &case, inside(budget));
            let report = &ran.report;
            assert_eq!(report.gated, queries as u64, "{report:?}");
            assert!(report.unseen_blocks > report.blocks / 4, "{report:?}");
            assert!(judge_by(&case, &inside(budget), executed, &ran) <= 1.0);
            assert!(ran.buffers.m.iter().all(|m| *m == 0.0));
            // Keys and values are measured block by block, so a key or a value in the last block also closes the gate.
            let mut long = case.clone();
            long.fill_key(0, keys - 3, 90.0);
            let (ran, executed, _) = by(&engine, &long, inside(budget));
            assert!(ran.report.gated == 0 && judge_by(&long, &inside(budget), executed, &ran) <= 1.0);
            for value in [f32::NAN, 1e30, 1e-30] {
                let mut other = case.clone();
                other.fill_value(0, keys - 3, value);
                assert_eq!(by(&engine, &other, inside(budget)).0.report.gated, 0, "{value}");
            }
        }
    }
}

/// Checks that certified bounds hold for runs whose reference is zero, with additive masks and biases.
#[test]
fn certificates_hold_beside_zero() {
    for engine in cpu_engines(1) {
        for case in with_numbers().iter().step_by(2) {
            let problem = case.problem();
            if problem.spec().query.batch() > 1 {
                continue;
            }
            let [near, exact] = [GATE, Schedule::EXACT].map(|schedule| {
                let options = PlanOptions::default().certify(true).schedule(schedule);
                let plan = engine.plan(&problem, &options).unwrap();
                let (mut buffers, mut workspace) = (case.buffers(), plan.workspace().unwrap());
                plan.bind(case.inputs(), buffers.outputs(), &mut workspace).unwrap().run().unwrap();
                let bound = workspace.certificate().unwrap().largest_absolute().unwrap();
                let mut y = vec![0.0; problem.value_dim()];
                for head in 0..problem.heads() {
                    for i in 0..problem.spec().query.tokens() {
                        let row = reference::row(&problem, &case.inputs(), 0, head, i, &mut y);
                        let at = problem.spec().output.row(0, head, i);
                        for (x, y) in y.iter().enumerate().filter(|_| row.lse > f64::NEG_INFINITY) {
                            let error = (f64::from(buffers.output.get(at + x)) - y).abs();
                            assert!(error <= bound, "{case:?} row {i}: {error:e} {bound:e}");
                        }
                    }
                }
                bound
            });
            assert!(near > exact && near < 100.0 * exact, "{case:?} {near:e} {exact:e}");
        }
    }
}

/// Checks that zero is the reference of every row if norms are small. Masked keys, their values and rows without keys
/// do not matter.
#[test]
fn kernels_take_zero_as_the_reference_where_scores_stay_near_it() {
    let mask = |density| Some(MaskParams { kind: MaskKind::Bool, dims: vec![40, 330], density });
    let causal = Some(Alignment::BottomRight);
    let heads =
        |queries, keys, d, dv| Params { heads: 4, kv_heads: 2, ..Params::plain(queries, keys, d, dv) };
    let cases = [
        // The first ten rows attend no key.
        Params { causal, ..heads(90, 80, 8, 3) }.build("fewer keys than queries"),
        Params { mask: mask(0.6), ..heads(40, 330, 8, 3) }.build("a mask"),
        Params { mask: mask(0.01), ..heads(40, 330, 8, 3) }.build("a mask that leaves little"),
        Params { dtype: DType::F16, ..heads(150, 280, 16, 2) }.build("halves"),
        Params { gain: 300.0, softcap: Some(20.0), ..heads(70, 150, 16, 2) }.build("a cap"),
        Params { lengths: true, batch: 3, ..heads(20, 700, 8, 2) }.build("lengths"),
        Params { gain: 5.0, ..heads(1, 700, 8, 2) }.build("one query"),
        Params { gain: 2.0, ..heads(64, 1200, 4, 5) }.build("several segments"),
    ];
    for engine in cpu_engines(2) {
        for case in cases.iter().step_by(if SLOW { 3 } else { 1 }) {
            let (ran, executed) = gated(&engine, case);
            assert_eq!(
                (ran.report.gated, ran.report.recomputed),
                (case.problem().rows() as u64, 0),
                "{case:?}"
            );
            assert!(ran.report.blocks > 0 && ran.report.skipped_blocks == 0);
            assert!(judge_by(case, &GATE, executed, &ran) <= 1.0);
        }
        // One score is 46 bits below or above zero. Its weight is neither clamped nor lost.
        for (score, y) in [(-46.0f32, 1.0f32), (46.0, -1.0)] {
            let (ran, _) = gated(&engine, &scored(&[1.0; 20], &[0.0, score], &[1.0, -1.0]));
            assert!(ran.report.gated == 20 && (ran.buffers.output.get(3) - y).abs() < 1e-6);
            let lse = f64::from(score.max(0.0)) * std::f64::consts::LN_2;
            assert!((f64::from(ran.buffers.lse[3]) - lse).abs() < 1e-5);
        }
    }
}

/// Checks calls whose norms do not prove that scores stay near zero: they have the bits of the exact schedule.
#[test]
fn kernels_keep_the_gate_shut_where_it_is_not_known_to_be_open() {
    let plain = || Params::plain(50, 90, 8, 4).build("a shut gate");
    let changed = |change: &dyn Fn(&mut Case)| {
        let mut case = plain();
        change(&mut case);
        case
    };
    let cases = [
        Params { gain: 60.0, ..Params::plain(50, 90, 8, 4) }.build("large scores"),
        changed(&|case| case.fill_key(0, 70, f32::NAN)),
        changed(&|case| case.fill_key(0, 70, f32::INFINITY)),
        changed(&|case| (0..50 * 8).for_each(|x| case.q.set(x, f32::NAN))),
        changed(&|case| case.v.set(333, f32::NAN)),
        changed(&|case| case.v.set(333, f32::NEG_INFINITY)),
        changed(&|case| case.v.set(333, 1e30)),
        // All values of one key are tiny.
        changed(&|case| (80 * 4..81 * 4).for_each(|x| case.v.set(x, 1e-30))),
    ];
    for engine in cpu_engines(2) {
        for case in &cases {
            let (ran, _) = gated(&engine, case);
            assert_eq!(ran.report.gated, 0, "{case:?}");
            assert!(is_exact(&engine, case, &ran), "{} {case:?}", engine.kernel());
        }
        assert_eq!(gated(&engine, &plain()).0.report.gated, 50);
    }
}
