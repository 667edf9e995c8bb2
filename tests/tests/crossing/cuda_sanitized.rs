//! Runs some of the small hard cases on the stand-in driver, with and without states, and calls from several threads at
//! once, so that the sanitizers can check them.

use elsa_oracle::cases::{Case, hard_cases};
use elsa_oracle::gpu_engine;
use elsa_runtime::{Engine, Fallback, PlanOptions};

fn check(engine: &Engine, case: &Case, states: bool) {
    let plan = engine.plan(&case.problem(), &PlanOptions::default()).unwrap();
    let (buffers, _) = case.run_with(&plan, &mut plan.workspace().unwrap(), |outputs| {
        outputs.state = outputs.state.take().filter(|_| states);
    });
    let naive = case.naive();
    let checked = if states {
        naive.check_all(&buffers, 600)
    } else {
        naive.check(&buffers.output, Some(&buffers.lse), 600)
    };
    checked.unwrap_or_else(|e| panic!("{case:?}: {e}"));
}

/// Returns the number of scores of a case, which determines how long the stand-in takes to compute the case.
fn scores(case: &Case) -> usize {
    let [batch, heads, queries, _] = case.spec.query.shape();
    batch * heads * queries * case.spec.key.tokens()
}

#[test]
#[ignore = "needs the stand-in driver: cargo xtask test --only host"]
fn a_share_of_the_hard_cases() {
    let engine = gpu_engine(Fallback::Fail);
    let cases: Vec<Case> =
        hard_cases().into_iter().filter(|case| scores(case) <= 15_000).step_by(8).collect();
    assert!(cases.len() > 30, "{}", cases.len());
    for (i, case) in cases.iter().enumerate() {
        check(&engine, case, i % 2 == 0);
    }
    println!("{} cases", cases.len());
}

#[test]
#[ignore = "needs the stand-in driver: cargo xtask test --only host"]
fn threads_share_an_engine() {
    let engine = gpu_engine(Fallback::Fail);
    let cases: Vec<Case> = hard_cases().into_iter().filter(|case| scores(case) <= 2000).step_by(60).collect();
    std::thread::scope(|scope| {
        for states in [false, true] {
            let (engine, cases) = (&engine, &cases);
            scope.spawn(move || cases.iter().for_each(|case| check(engine, case, states)));
        }
    });
}

#[test]
#[ignore = "needs the stand-in driver: cargo xtask test --only host"]
fn streams_in_chunks() {
    crate::cuda_stream::a_few_streams();
}
