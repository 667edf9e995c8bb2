//! Checks that one workspace works for every plan that needs at most as many bytes as the workspace has. The plans may have
//! any shapes and may run in any order.

use elsa_core::attention::Alignment;
use elsa_core::linear::Rule;
use elsa_core::random::Random;
use elsa_oracle::cases::{Case, Params};
use elsa_oracle::engines;
use elsa_oracle::gradients::{GradientBuffers, GradientCase};
use elsa_oracle::linear;
use elsa_oracle::random::seeded;
use elsa_runtime::{
    BackwardPlan, BackwardPlanOptions, BackwardWorkspace, BindError, LinearPlan, LinearPlanOptions,
    LinearWorkspace, Plan, PlanOptions, Workspace,
};

/// Number of seeds; Miri is an interpreter, so it tests one.
const SEEDS: u64 = if cfg!(miri) { 1 } else { 12 };

/// Numbers of sequences; large batches get few tokens.
const BATCHES: [usize; 5] = [1, 2, 8, 40, 121];
const TOKENS: [usize; 5] = [1, 2, 7, 33, 130];
const DIMS: [usize; 4] = [1, 4, 24, 64];

/// Returns a random element of `of`.
fn one(random: &mut Random, of: &[usize]) -> usize {
    of[random.below(of.len())]
}

fn shapes(random: &mut Random) -> Vec<[usize; 4]> {
    let count = 2 + random.below(19);
    let mut shapes = Vec::new();
    for _ in 0..count {
        let batch = one(random, &BATCHES);
        let most = if batch > 8 { 3 } else { TOKENS.len() };
        let (queries, keys) = (one(random, &TOKENS[..most]), one(random, &TOKENS[..most]));
        shapes.push([batch, queries, keys, one(random, &DIMS)]);
    }
    shapes
}

fn case([batch, queries, keys, dim]: [usize; 4], seed: u64) -> Case {
    let causal = seed.is_multiple_of(3).then_some(Alignment::BottomRight);
    let lengths = seed.is_multiple_of(2);
    Params { batch, heads: 2, causal, lengths, seed, ..Params::plain(queries, keys, dim, dim) }.build("any")
}

/// Runs every case whose plan needs a workspace of at most `bytes` bytes, and checks that `workspace`, which has `bytes`
/// bytes, is refused for the other cases.
fn attend(plans: &[(Case, Plan)], bytes: usize, workspace: &mut Workspace) {
    for (case, plan) in plans {
        let (mut buffers, needed) = (case.buffers(), plan.workspace_bytes());
        match plan.bind(case.inputs(), buffers.outputs(), workspace) {
            Ok(mut bound) => {
                assert!(needed <= bytes, "{needed} bytes in {bytes}: {case:?}");
                bound.run().unwrap();
                case.naive().check_all(&buffers, 1024).unwrap();
            }
            Err(error) => {
                assert!(needed > bytes, "{case:?}: {error}");
                assert_eq!(error, BindError::Room { found: bytes, needed }, "{case:?}");
            }
        }
    }
}

#[test]
fn any_sequence_of_calls_passes_through_one_workspace() {
    for engine in engines(2) {
        for seed in 0..SEEDS {
            let mut random = seeded(seed);
            let planned = |shape| {
                let case = case(shape, seed);
                let plan = engine.plan(&case.problem(), &PlanOptions::default()).unwrap();
                (case, plan)
            };
            let plans: Vec<(Case, Plan)> = shapes(&mut random).into_iter().map(planned).collect();
            let bytes = |of: &(Case, Plan)| of.1.workspace_bytes();
            let most = plans.iter().map(bytes).max().unwrap();
            let all: Vec<&Plan> = plans.iter().map(|(_, plan)| plan).collect();
            attend(&plans, most, &mut Workspace::shared(&all).unwrap());
            // The workspace may also be that of the most demanding plan alone, or that of any plan.
            let (_, largest) = plans.iter().max_by_key(|of| bytes(of)).unwrap();
            attend(&plans, most, &mut largest.workspace().unwrap());
            let any = &plans[random.below(plans.len())].1;
            attend(&plans, any.workspace_bytes(), &mut any.workspace().unwrap());
        }
    }
}

#[test]
fn any_sequence_of_linear_calls_passes_through_one_workspace() {
    for engine in engines(2) {
        for seed in 0..SEEDS {
            let mut random = seeded(seed);
            let planned = |[batch, tokens, _, dim]: [usize; 4]| {
                let plain = linear::Params::plain(Rule::Linear, tokens, [dim, dim]);
                let case = linear::Params { batch, ..plain }.build();
                let plan = engine.linear_plan(&case.problem, &LinearPlanOptions::default()).unwrap();
                (case, plan)
            };
            let plans: Vec<(linear::Case, LinearPlan)> =
                shapes(&mut random).into_iter().map(planned).collect();
            let (_, largest) = plans.iter().max_by_key(|(_, plan)| plan.workspace_bytes()).unwrap();
            let all: Vec<&LinearPlan> = plans.iter().map(|(_, plan)| plan).collect();
            for mut workspace in [LinearWorkspace::shared(&all).unwrap(), largest.workspace().unwrap()] {
                for (case, plan) in &plans {
                    let (found, report) = case.run(plan, &mut workspace);
                    found.check(case, &case.answer(|tokens| plan.executed_of(report.backend, tokens)));
                }
            }
        }
    }
}

#[test]
fn any_sequence_of_gradients_passes_through_one_workspace() {
    let engine = engines(2).into_iter().next().unwrap();
    for seed in 0..SEEDS {
        let mut random = seeded(seed);
        let planned = |[batch, queries, keys, dim]: [usize; 4]| {
            let given =
                GradientCase::of(&Params { batch, ..Params::plain(queries, keys, dim, dim) }.build("any"));
            let given = given.unwrap();
            let plan = engine.backward_plan(&given.problem, &BackwardPlanOptions::default()).unwrap();
            (given, plan)
        };
        let plans: Vec<(GradientCase, BackwardPlan)> = shapes(&mut random).into_iter().map(planned).collect();
        let (_, largest) = plans.iter().max_by_key(|(_, plan)| plan.workspace_bytes()).unwrap();
        let all: Vec<&BackwardPlan> = plans.iter().map(|(_, plan)| plan).collect();
        for mut workspace in [BackwardWorkspace::shared(&all).unwrap(), largest.workspace().unwrap()] {
            for (given, plan) in &plans {
                let run = |workspace: &mut BackwardWorkspace| {
                    let mut found = GradientBuffers::room(&given.problem);
                    plan.bind(given.inputs(), found.gradients(), workspace).unwrap().run().unwrap();
                    found.bits()
                };
                assert_eq!(run(&mut workspace), run(&mut plan.workspace().unwrap()));
            }
        }
    }
}
