//! Tests what CPU runs report about skipped keys, and certificates of runs whose reference is zero.

use elsa_core::attention::reference;
use elsa_core::attention::traversal::{Schedule, TileSize};
use elsa_oracle::cpu_engines;
use elsa_oracle::schedules::scores::{little_beside_one, rising_once};
use elsa_oracle::schedules::{ScheduleRun, account, compare, rounded_outwards, run_and_judge, scored};
use elsa_runtime::{Engine, PlanOptions};

/// Number of keys per block.
const BLOCK: usize = 64;

/// Runs a case with given scores within an error budget. Returns the run, and the number of additions between a weight and
/// its sum.
fn run(engine: &Engine, [q, k, v]: [&[f32]; 3], budget: f32) -> (ScheduleRun, usize) {
    let case = scored(q, k, v);
    let options = PlanOptions::default().error_budget(budget);
    let plan = engine.plan(&case.problem(), &options).unwrap();
    let (ran, _) = ScheduleRun::twice(&case, &plan, &mut plan.workspace().unwrap());
    (ran, plan.choice().unwrap().longest_path().into_s)
}

#[test]
fn shares_are_rounded_outwards() {
    let mut rows = 0;
    let [q, k, v] = little_beside_one(BLOCK, 6, 61);
    for engine in cpu_engines(1) {
        let (ran, additions) = run(&engine, [&q, &k, &v], 0.5);
        rows += rounded_outwards(&ran, additions);
    }
    assert!(rows >= 61, "{rows}");
    // The scalar run of the core must round shares up as well.
    let tile = TileSize { rows: 8, keys: BLOCK };
    let case = scored(&q, &k, &v);
    let schedule = Schedule::within(0.5);
    let additions =
        elsa_core::attention::traversal::scalar::executed(&case.problem(), &schedule, tile).into_s;
    assert_eq!(rounded_outwards(&run_and_judge(&case, &schedule, tile), additions), 61);
}

/// Checks that the skipped sum of a one-row tile is rescaled to the reference of the block that is being decided.
#[test]
fn totals_follow_the_reference_in_tiles_of_any_height() {
    let ([k, v], mut seen) = (rising_once(BLOCK), 0);
    for engine in cpu_engines(1) {
        for rows in [1usize, 2, 37] {
            let q = vec![1.0; rows];
            let (ran, _) = run(&engine, [&q, &k, &v], 0.1);
            // All rows are equal, so their division among tiles does not matter.
            let all = 0..rows;
            let (want, skipped) = account([&q, &k, &v], 0.1, std::slice::from_ref(&all), BLOCK);
            assert_eq!(skipped, 2);
            assert_eq!(2 * ran.report.skipped_blocks, ran.report.blocks, "{}: {rows} rows", engine.kernel());
            compare(&ran, &want);
            seen += 1;
        }
    }
    assert!(seen >= 3, "{seen}");
}

/// Checks that a certificate allows for products that underflow: with a reference of zero, a sum may be as small as
/// 2^-49, and products of its weights with small values may be zero.
#[test]
fn certificates_of_gated_rows_allow_for_products_that_vanish() {
    let value = (-116.0f32).exp2();
    let case = scored(&[1.0; 3], &[-47.0, -47.0], &[value, value]);
    let schedule = Schedule { gate: true, ..Schedule::VFA };
    let mut seen = 0;
    for engine in cpu_engines(1) {
        let options = PlanOptions::default().certify(true).schedule(schedule);
        let plan = engine.plan(&case.problem(), &options).unwrap();
        let (mut buffers, mut workspace) = (case.buffers(), plan.workspace().unwrap());
        plan.bind(case.inputs(), buffers.outputs(), &mut workspace).unwrap().run().unwrap();
        let report = workspace.traversed().unwrap().report;
        assert_eq!((report.gated, report.recomputed), (3, 0), "{report:?}");
        let bound = workspace.certificate().unwrap().largest_absolute().unwrap();
        let mut y = [0.0];
        for i in 0..3 {
            reference::row(&case.problem(), &case.inputs(), 0, 0, i, &mut y);
            let error = (f64::from(buffers.output.get(i)) - y[0]).abs();
            assert!(error > 0.5 * f64::from(value) && error <= bound, "{error:e} {bound:e}");
            seen += 1;
        }
    }
    assert!(seen >= 3, "{seen}");
}
