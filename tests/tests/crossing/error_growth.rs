//! Tests the number of additions on the longest path from a key to the output. Segments and the merge tree keep it
//! small, and the certificate reports it exactly. If the number of keys grows, the error grows no faster than the
//! number of additions.

use elsa_oracle::cases::{Case, Params};
use elsa_oracle::cpu_engines;
use elsa_oracle::longest::{Probe, SLACK, multiples, powers};
use elsa_runtime::{Engine, Method, PlanOptions};

/// Number of keys of the longest case.
const LONGEST: usize = if cfg!(target_arch = "x86_64") { 65_536 } else { 16_384 };
/// Largest allowed error with 256 keys, relative to the norm of the output.
const AT_256: f64 = 4.5e-7;

/// Returns the relative L2 error of all rows compared with `truth`, and the number of additions on the longest path.
fn error(engine: &Engine, case: &Case, truth: &[f64]) -> (f64, usize) {
    let plan = engine.plan(&case.problem(), &PlanOptions::default()).unwrap();
    let mut workspace = plan.workspace().unwrap();
    let (buffers, _) = case.run(&plan, &mut workspace);
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
    for engine in cpu_engines(1) {
        let (_, depth) = error(&engine, &cases[0], &truths[0]);
        for (case, truth) in cases.iter().zip(&truths) {
            let (error, additions) = error(&engine, case, truth);
            let allowed = AT_256 * additions as f64 / depth as f64;
            println!("{}, {}: {error:.2e}, {additions} additions", engine.backend(), case.name);
            assert!(error <= allowed, "{}, {}: {error:e} exceeds {allowed:e}", engine.backend(), case.name);
        }
    }
}

#[test]
fn the_longest_path_is_the_one_that_is_counted() {
    let keys = if cfg!(miri) { 1024 } else { 16_384 };
    for engine in cpu_engines(1) {
        for queries in [1, 20] {
            let probe = |method| Probe::new(&engine, queries, keys, method);
            let agrees = |what: &str, measured: f64, counted: usize| {
                let off = (measured - counted as f64).abs();
                assert!(off <= SLACK, "{} {queries} {what}: {measured} for {counted}", engine.backend());
            };
            // The path has a chain of 64 keys, the eight blocks of a segment, and the tree over segments.
            let elsa = probe(Method::Elsa);
            let small = [multiples(1, 64), multiples(64, 512), powers(512, keys / 512)].concat();
            agrees("W", elsa.of_values(&small), elsa.counted());
            assert_eq!(elsa.counted(), small.len());
            // Method math adds the weighted values of all blocks one after another. Each lane that has keys sums the
            // weights of a row in one chain.
            let math = probe(Method::Math);
            let blocks = [multiples(1, 64), multiples(64, keys)].concat();
            agrees("W of math", math.of_quotients(&blocks), blocks.len());
            let sums = math.weight_sums();
            let small = [multiples(sums, keys), powers(1, sums)].concat();
            agrees("S of math", math.of_weights(&small), math.counted());
            assert_eq!(math.counted(), small.len());
        }
    }
}
