//! Tests that a GPU computes the same bits for any batch size and any repetition, and that its plans stay within memory
//! budgets.

use elsa_core::attention::Alignment;
use elsa_core::dtype::DType;
use elsa_core::plan::ChooseError as Refused;
use elsa_core::view::View;
use elsa_oracle::cases::{Buffers, Case, Data, Params, hard_cases};
use elsa_oracle::gpu_engine;
use elsa_runtime::{Backend, Engine, Fallback, Plan, PlanError, PlanOptions, Workspace};

fn run(engine: &Engine, case: &Case, budget: Option<usize>) -> Buffers {
    let problem = case.problem();
    let plan = engine.plan(&problem, &PlanOptions::default().budget(budget)).unwrap();
    let mut workspace = plan.workspace().unwrap();
    let mut buffers = case.buffers();
    let mut bound = plan.bind(case.inputs(), buffers.outputs(), &mut workspace).unwrap();
    bound.run().unwrap();
    assert_eq!(bound.run().unwrap().backend, Backend::Cuda);
    buffers
}

/// Panics unless the buffers contain the correct outputs of the case. (If two runs have equal bits, both may still be
/// wrong.)
fn check(case: &Case, b: &Buffers) {
    case.naive().check_all(b, 5000).unwrap_or_else(|e| panic!("{case:?}: {e}"));
}

/// Checks that a shared workspace is large enough for every plan that it was made for, even if a workspace for only the
/// first or only the last plan is too small.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn plans_share_a_workspace() {
    let engine = gpu_engine(Fallback::Fail);
    let cases: Vec<Case> = hard_cases().into_iter().step_by(5).collect();
    let plans: Vec<_> =
        cases.iter().map(|case| engine.plan(&case.problem(), &PlanOptions::default()).unwrap()).collect();
    let all: Vec<_> = plans.iter().collect();
    let mut workspace = Workspace::shared(&all).unwrap();
    for (case, plan) in cases.iter().zip(&plans) {
        let (buffers, report) = case.run(plan, &mut workspace);
        assert_eq!(report.backend, Backend::Cuda);
        assert_eq!(buffers.bits(), run(&engine, case, None).bits(), "{case:?}");
    }
    let of_one = |plan: &Plan| {
        let mut own = plan.workspace().unwrap();
        let fits = |(case, other): (&Case, &Plan)| {
            let mut buffers = case.buffers();
            other.bind(case.inputs(), buffers.outputs(), &mut own).is_ok()
        };
        cases.iter().zip(&plans).map(fits).filter(|fits| !fits).count()
    };
    assert!(of_one(&plans[0]) > 0 && of_one(&plans[plans.len() - 1]) > 0);
    let other = gpu_engine(Fallback::Fail).plan(&cases[0].problem(), &PlanOptions::default()).unwrap();
    assert!(matches!(Workspace::shared(&[&plans[0], &other]), Err(PlanError::OtherGpu)));
    assert!(matches!(Workspace::shared(&[]), Err(PlanError::NoPlan)));
}

/// Panics unless all runs have the same bits and the first run has the correct outputs. For each number in `runs`, the
/// case runs that many times in a new workspace and new buffers.
fn repeat(engine: &Engine, case: &Case, runs: &[usize]) {
    let mut want: Option<Vec<u32>> = None;
    for times in runs {
        let plan = engine.plan(&case.problem(), &PlanOptions::default()).unwrap();
        let (mut workspace, mut buffers) = (plan.workspace().unwrap(), case.buffers());
        for _ in 0..*times {
            let report = plan.bind(case.inputs(), buffers.outputs(), &mut workspace).unwrap().run().unwrap();
            assert_eq!(report.backend, Backend::Cuda);
            let found = buffers.bits();
            if want.is_none() {
                check(case, &buffers);
            }
            assert_eq!(*want.get_or_insert_with(|| found.clone()), found, "{case:?}");
        }
    }
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn repeats_change_no_bit() {
    let engine = gpu_engine(Fallback::Fail);
    for case in hard_cases() {
        repeat(&engine, &case, &[2, 1]);
    }
    let long =
        Params { heads: 3, kv_heads: 1, dtype: DType::F16, ..Params::plain(300, 1300, 64, 64) }.build("long");
    repeat(&engine, &long, &[3, 1, 2, 1, 1, 2, 1]);
}

/// Checks that each sequence of a batch has the same bits alone, in smaller batches and in the entire batch.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn the_batch_changes_no_bit() {
    let engine = gpu_engine(Fallback::Fail);
    for (queries, keys, d) in [(150, 1200, 24), (1, 900, 64), (5, 70, 64), (300, 300, 128)] {
        for causal in [None, Some(Alignment::BottomRight)] {
            let p = Params { heads: 2, kv_heads: 2, causal, ..Params::plain(queries, keys, d, d) };
            let whole = Params { batch: 5, ..p.clone() }.build("whole");
            let all = run(&engine, &whole, None);
            for (from, batch) in [(0, 1), (4, 1), (1, 2), (2, 3)] {
                let mut part = Params { batch, ..p.clone() }.build("part");
                let copy = |data: &Data, view: &View| {
                    let each = view.heads() * view.tokens() * view.dim();
                    let mut to = Data::filled(DType::F32, batch * each, 0.0);
                    (0..batch * each).for_each(|i| to.set(i, data.get(from * each + i)));
                    to
                };
                part.q = copy(&whole.q, &whole.spec.query);
                part.k = copy(&whole.k, &whole.spec.key);
                part.v = copy(&whole.v, &whole.spec.value);
                let alone = run(&engine, &part, None);
                let each = 2 * queries * d;
                for i in 0..batch * each {
                    let (a, b) = (all.output.get(from * each + i), alone.output.get(i));
                    assert_eq!(
                        a.to_bits(),
                        b.to_bits(),
                        "{batch} sequences from {from}, element {i}, {queries} queries"
                    );
                }
                check(&part, &alone);
                let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                let rows = 2 * queries;
                for (all, alone, dim) in [
                    (&all.lse, &alone.lse, 1),
                    (&all.m, &alone.m, 1),
                    (&all.s, &alone.s, 1),
                    (&all.w, &alone.w, d),
                ] {
                    assert_eq!(bits(&all[from * rows * dim..(from + batch) * rows * dim]), bits(alone));
                }
            }
        }
    }
}

/// Checks that a memory budget is a hard limit: a plan fits it, or is refused with the number of bytes that it needs.
/// Outputs under the smallest budget are as accurate as without one.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn a_budget_is_kept() {
    let engine = gpu_engine(Fallback::Fail);
    let mut divided = 0;
    let packed = Params { packed: Some(vec![(5, 900), (70, 300), (0, 4)]), ..Params::plain(0, 0, 32, 32) };
    let cases = [
        Params { heads: 2, kv_heads: 2, ..Params::plain(90, 2000, 64, 64) }.build("long"),
        Params::plain(3, 5000, 64, 64).build("few queries"),
        packed.build("packed"),
        Params::plain(20, 30, 16, 16).build("small"),
    ];
    for case in &cases {
        let problem = case.problem();
        let plan = |budget| engine.plan(&problem, &PlanOptions::default().budget(budget));
        let free = plan(None).unwrap().workspace_bytes();
        let mut budget = free;
        // The budget is lowered until a plan is refused.
        let needed = loop {
            match plan(Some(budget)) {
                Ok(plan) => {
                    let bytes = plan.workspace_bytes();
                    assert!(bytes <= budget, "{bytes} of {budget}");
                    divided += usize::from(bytes > 0);
                    // States are not requested, because they need more memory than the budget of this plan.
                    let mut workspace = plan.workspace().unwrap();
                    let (buffers, _) = case.run_with(&plan, &mut workspace, |outputs| outputs.state = None);
                    case.naive().check(&buffers.output, Some(&buffers.lse), 5000).unwrap();
                    if bytes == 0 {
                        break 0;
                    }
                    budget = bytes - 1;
                }
                Err(PlanError::Refused(Refused::Budget { needed, budget: told })) => {
                    assert!(told == budget && needed > budget, "{needed} {told} {budget}");
                    break needed;
                }
                Err(other) => panic!("{other}"),
            }
        };
        assert!(needed <= free);
        assert!(needed == 0 || plan(Some(needed)).is_ok());
    }
    assert!(divided > 0);
}
