//! On a GPU: outputs alone, as most callers want them. Without states the kernels finish by themselves where the
//! keys are not divided, which is another path than that of `conformance`.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use elsa_core::problem::Alignment;
use elsa_core::view::DType;
use elsa_kernels::cuda::{GPU_KERNELS, Role};
use elsa_runtime::{Backend, Engine, EngineOptions, Fallback, PlanOptions};
use elsa_tests::cases::{Case, Params, any_case, hard_cases};
use proptest::prelude::*;

fn engine() -> Engine {
    let options = EngineOptions {
        backend: Some(Backend::Cuda),
        threads: Some(1),
        fallback: Fallback::Fail,
        ..EngineOptions::default()
    };
    Engine::new(&options).unwrap()
}

/// Runs for the output, and log-sum-exp if wanted. Gives the share of the tolerance that was used.
fn check(engine: &Engine, case: &Case, lse: bool) -> Result<f64, String> {
    let problem = case.problem();
    let plan = engine.plan(&problem, &PlanOptions::default()).map_err(|e| format!("{case:?}: {e}"))?;
    let mut workspace = plan.workspace().unwrap();
    let mut buffers = case.buffers();
    let mut outputs = buffers.outputs();
    outputs.state = None;
    if !lse {
        outputs.lse = None;
    }
    let report = plan.bind(case.inputs(), outputs, &mut workspace).unwrap().run().unwrap();
    assert_eq!(report.backend, Backend::Cuda);
    let additions = case.spec.key.tokens() + case.spec.past_key.map_or(0, |view| view.tokens());
    let lse = lse.then_some(&buffers.lse[..]);
    let answer = case.naive().check(&buffers.output, lse, additions.max(64));
    answer.map_err(|e| format!("{} {case:?}: {e}", plan.kernel()))
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only cuda, or gpu-test"]
fn hard_cases_without_states() {
    let engine = engine();
    let cases = hard_cases();
    for (i, case) in cases.iter().enumerate() {
        check(&engine, case, i % 2 == 0).unwrap_or_else(|e| panic!("{e}"));
    }
    let kernels: Vec<&str> = engine.loaded_kernels().iter().map(|k| k.name).collect();
    println!("{} cases, {}", cases.len(), kernels.join(" "));
}

/// Head sizes and types such that every attention kernel of the build runs, with one sequence of few and one of
/// many queries.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only cuda, or gpu-test"]
fn every_kernel_runs() {
    let engine = engine();
    let mut ran = 0;
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        for (queries, keys) in [(1, 300), (5, 70), (70, 130), (1000, 70)] {
            let sizes = GPU_KERNELS.iter().filter_map(|k| match k.role {
                Role::Attention { head_dim, half, most_queries, .. } => {
                    (half == (dtype != DType::F32) && queries <= most_queries).then_some(head_dim)
                }
                _ => None,
            });
            let largest = sizes.max().unwrap();
            assert!(largest >= 128, "{dtype}: {largest}");
            let sizes = [8, 24, 32, 33, 64, 80, 96, 100, 128, 160, 192, 200, 256];
            for d in sizes.into_iter().filter(|d| *d <= largest) {
                for causal in [None, Some(Alignment::BottomRight)] {
                    let p = Params { dtype, causal, ..Params::plain(queries, keys, d, d.min(2 * d - 7)) };
                    check(&engine, &p.build("kernel"), true).unwrap_or_else(|e| panic!("{e}"));
                    ran += 1;
                }
            }
        }
    }
    // So many rows that the largest blocks fill any device.
    check(&engine, &Params::plain(9000, 64, 64, 64).build("many rows"), true)
        .unwrap_or_else(|e| panic!("{e}"));
    ran += 1;
    let loaded = engine.loaded_kernels();
    let idle: Vec<&str> = GPU_KERNELS
        .iter()
        .filter(|k| {
            k.score_relative == 0.0 && k.name != "present" && !loaded.iter().any(|l| l.name == k.name)
        })
        .map(|k| k.name)
        .collect();
    assert!(idle.is_empty(), "no problem had these run: {idle:?}");
    println!("{ran} problems, {} kernels", loaded.len());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[ignore = "needs a CUDA driver: cargo xtask test --only cuda, or gpu-test"]
    fn random_problems_without_states(case in any_case(), lse in any::<bool>()) {
        if let Err(e) = check(&engine(), &case, lse) {
            prop_assert!(false, "{}", e);
        }
    }
}
