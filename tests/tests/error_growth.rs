//! The error grows with the number of keys no faster than the additions on the longest path from a key to the
//! output, which segments and the merge tree keep few.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use elsa_runtime::{Backend, Engine, EngineOptions, PlanOptions, backends};
use elsa_tests::cases::{Case, Params};

/// Keys of the longest case.
const LONGEST: usize = if cfg!(target_arch = "x86_64") { 65_536 } else { 16_384 };
/// The error allowed at 16,384 keys, relative to the norm of the output.
const AT_16384: f64 = 4e-7;

/// Relative L2 error of all rows against `truth`, and the additions on the longest path.
fn error(engine: &Engine, case: &Case, truth: &[f64]) -> (f64, usize) {
    let plan = engine.plan(&case.problem(), &PlanOptions::default()).unwrap();
    let mut workspace = plan.workspace().unwrap();
    let mut buffers = case.buffers();
    plan.bind(case.inputs(), buffers.outputs(), &mut workspace).unwrap().run().unwrap();
    let (mut off, mut norm) = (0.0, 0.0);
    for (i, want) in truth.iter().enumerate() {
        off += (f64::from(buffers.output.get(i)) - want).powi(2);
        norm += want * want;
    }
    ((off / norm).sqrt(), plan.certificate().executed.additions)
}

#[test]
#[cfg_attr(miri, ignore = "millions of multiply-adds")]
fn the_error_grows_no_faster_than_the_depth() {
    let rows = if cfg!(target_arch = "x86_64") { 20 } else { 12 };
    let lengths = [256, 1024, 4096, 16_384, 65_536].into_iter().filter(|keys| *keys <= LONGEST);
    let cases: Vec<Case> =
        lengths.map(|keys| Params::plain(rows, keys, 64, 64).build(format!("{keys} keys"))).collect();
    let truths: Vec<Vec<f64>> = cases.iter().map(|case| case.naive().y).collect();
    for present in backends().into_iter().filter(|p| p.present && p.backend != Backend::Cuda) {
        let options =
            EngineOptions { backend: Some(present.backend), threads: Some(1), ..EngineOptions::default() };
        let engine = Engine::new(&options).unwrap();
        let (first, depth) = error(&engine, &cases[0], &truths[0]);
        for (case, truth) in cases.iter().zip(&truths) {
            let (error, additions) = error(&engine, case, truth);
            let growth = additions as f64 / depth as f64;
            println!("{}, {}: {error:.2e}, {additions} additions", present.backend, case.name);
            assert!(error <= first * growth, "{}, {}: {error:e} after {first:e}", present.backend, case.name);
            if case.problem().keys() == 16_384 {
                assert!(error <= AT_16384, "{}: {error:e}", present.backend);
            }
        }
    }
}
