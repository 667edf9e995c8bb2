//! Schedules on every back end of the CPU: error budgets in the kernels, and everything else by the core's scalar run.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use elsa_core::argument::ArgumentError;
use elsa_core::attention::traversal::{Schedule, Skip, TABLE_3, TABLE_4, Tile};
use elsa_core::attention::{Alignment, MaskKind, Window};
use elsa_core::dtype::DType;
use elsa_runtime::{CertifyError, Engine, EngineOptions, Method, PlanError, PlanOptions};
use elsa_tests::SLOW;
use elsa_tests::cases::{Buffers, Case, MaskParams, Params, some_hard_cases};
use elsa_tests::present;
use elsa_tests::schedules::{Ran, judge, try_run};

fn engines(threads: usize) -> Vec<Engine> {
    let options = |b| EngineOptions { backend: Some(b), threads: Some(threads), ..EngineOptions::default() };
    present().into_iter().map(|p| Engine::new(&options(p.backend)).unwrap()).collect()
}

/// Runs a case twice in one workspace. The schedule is not the exact one.
fn run(engine: &Engine, case: &Case, options: &PlanOptions) -> (Ran, Tile) {
    let problem = case.problem();
    let plan = engine.plan(&problem, &PlanOptions { all_workers: true, ..*options }).unwrap();
    let mut workspace = plan.workspace().unwrap();
    let mut once = || {
        let mut buffers = case.buffers();
        plan.bind(case.inputs(), buffers.outputs(), &mut workspace).unwrap().run().unwrap();
        let traversed = workspace.traversed().unwrap();
        let (d, share) = (traversed.d.to_vec(), traversed.share.to_vec());
        (Ran { buffers, report: traversed.report, d, share }, traversed.tile)
    };
    let (first, tile) = once();
    let (again, _) = once();
    assert!(same(&first.buffers, &again.buffers) && first.d == again.d && first.report == again.report);
    (first, tile)
}

/// Whether two runs wrote the same bits, or both NaN.
fn same(a: &Buffers, b: &Buffers) -> bool {
    let alike = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    let lists = [(&a.lse, &b.lse), (&a.m, &b.m), (&a.s, &b.s), (&a.w, &b.w)];
    (0..a.output.len()).all(|i| alike(a.output.get(i), b.output.get(i)))
        && lists.iter().all(|(a, b)| a.iter().zip(b.iter()).all(|(a, b)| alike(*a, *b)))
}

/// Every setting of the article and the budget on hard cases: bit for bit what the core's scalar run answers in tiles of as
/// many rows, whatever the number of threads.
#[test]
fn any_schedule_is_the_scalar_run() {
    let settings: Vec<Schedule> = TABLE_3
        .iter()
        .chain(&TABLE_4)
        .map(|(_, schedule)| *schedule)
        .chain([Schedule { skip: Skip::Budget(0.2), ..Schedule::VFA }])
        .chain([Schedule { gate: true, ..Schedule::VFA }])
        .collect();
    let (one, three) = (engines(1), engines(3));
    let step = if SLOW { 31 } else { 5 };
    for (n, case) in some_hard_cases().iter().enumerate().step_by(step) {
        let schedule = settings[n / step % settings.len()];
        let options = PlanOptions { schedule, block: [64, 128][n % 2], ..PlanOptions::default() };
        let engine = n / step % one.len();
        let (found, tile) = run(&one[engine], case, &options);
        let (threads, _) = run(&three[engine], case, &options);
        assert!(same(&found.buffers, &threads.buffers) && found.report == threads.report, "{case:?}");
        let want = try_run(case, &schedule, tile).unwrap();
        // Where tiles end elsewhere than those of the core, rows vote with others.
        let aligned = case.spec.query.tokens() <= tile.rows || tile.rows == 1;
        if aligned
            || schedule.skip == Skip::Never && schedule.first == elsa_core::attention::traversal::First::None
        {
            assert!(same(&found.buffers, &want.buffers), "{case:?} {schedule:?}");
        }
        if aligned {
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
    for engine in engines(2) {
        for (n, case) in judged().iter().enumerate() {
            for schedule in [Schedule::VFA, Schedule::vsa(0.01), Schedule::blasst_rows(0.1)] {
                if n % 3 == 1 && schedule != Schedule::vsa(0.01) {
                    continue;
                }
                let (ran, tile) = run(&engine, case, &PlanOptions { schedule, ..PlanOptions::default() });
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
    for engine in engines(1) {
        let refusal = |options: PlanOptions| match engine.plan(&problem, &options) {
            Err(PlanError::Option(e)) => e,
            other => panic!("{other:?}"),
        };
        let plain = PlanOptions::default();
        for bad in [0.0, -0.0, 1.0, -0.5, 2.0, f32::NAN, f32::INFINITY] {
            let budget = refusal(PlanOptions { error_budget: Some(bad), ..plain });
            assert!(matches!(budget, ArgumentError::Number { argument: "error_budget", .. }), "{budget}");
            let lambda = refusal(PlanOptions { schedule: Schedule::vsa(bad), ..plain });
            assert!(matches!(lambda, ArgumentError::Number { argument: "lambda", .. }), "{lambda}");
        }
        let threshold = Schedule { threshold: 9.0, ..Schedule::VFA };
        let refused = refusal(PlanOptions { schedule: threshold, ..plain });
        assert!(matches!(refused, ArgumentError::Number { argument: "rescale_threshold", .. }), "{refused}");
        let conflict = |argument, other| ArgumentError::Conflict { argument, other };
        let budget = PlanOptions { error_budget: Some(0.1), ..plain };
        for (options, argument, other) in [
            (PlanOptions { method: Method::Math, ..budget }, "error_budget", "method math"),
            (
                PlanOptions { method: Method::Math, schedule: Schedule::VFA, ..plain },
                "schedule",
                "method math",
            ),
            (PlanOptions { schedule: Schedule::vsa(0.1), ..budget }, "error_budget", "lambda"),
            (PlanOptions { schedule: Schedule::within(0.1), ..budget }, "error_budget", "schedule"),
        ] {
            assert_eq!(refusal(options), conflict(argument, other));
        }
        // The workspace of an exact run knows of nothing left out.
        let plan = engine.plan(&problem, &plain).unwrap();
        let mut workspace = plan.workspace().unwrap();
        assert_eq!(workspace.traversed().unwrap_err(), CertifyError::Exact);
        let mut buffers = case.buffers();
        plan.bind(case.inputs(), buffers.outputs(), &mut workspace).unwrap().run().unwrap();
        assert_eq!(workspace.traversed().unwrap_err(), CertifyError::Exact);
    }
}
