//! Tests a real GPU on problems that are large enough to reveal errors or memory use that grow with the size of the
//! problem.

use elsa_core::dtype::DType;
use elsa_core::view::{Layout, View};
use elsa_oracle::cases::{Case, Data, Params};
use elsa_oracle::gpu_engine;
use elsa_runtime::{Backend, Engine, Fallback, PlanOptions};

/// Largest allowed relative error of the output with 16,384 keys.
const ERROR: f64 = 5e-7;
/// Largest allowed device memory beyond inputs and outputs, in bytes, for 8 heads of 4096 tokens.
const BYTES: usize = 2_600_000;

fn output(engine: &Engine, case: &Case) -> (Data, Vec<f32>) {
    let plan = engine.plan(&case.problem(), &PlanOptions::default()).unwrap();
    let (buffers, report) =
        case.run_with(&plan, &mut plan.workspace().unwrap(), |outputs| outputs.state = None);
    assert_eq!(report.backend, Backend::Cuda);
    println!("{}: {}, {} bytes of workspace", case.name, plan.kernel(), plan.workspace_bytes());
    (buffers.output, buffers.lse)
}

#[test]
#[ignore = "needs a GPU: cargo xtask gpu-test"]
fn scale_a_million_keys() {
    let engine = gpu_engine(Fallback::Fail);
    for queries in [1, 4] {
        let case =
            Params::plain(queries, 1 << 20, 64, 64).build(format!("a million keys, {queries} queries"));
        let (output, lse) = output(&engine, &case);
        // The path has the additions of one part of the keys and of the tree over the parts, far fewer than there are
        // keys.
        case.naive().check(&output, Some(&lse), 1 << 15).unwrap();
    }
}

/// Compares 64 rows, distributed over a long sequence, with f64.
#[test]
#[ignore = "needs a GPU: cargo xtask gpu-test"]
fn scale_the_error_at_16384_tokens() {
    let engine = gpu_engine(Fallback::Fail);
    let n = 16_384;
    let case = Params::plain(n, n, 64, 64).build("16384 tokens");
    let (output, _) = output(&engine, &case);
    let rows: Vec<usize> = (0..64).map(|i| i * 257 % n).collect();
    let mut sample = Params::plain(rows.len(), n, 64, 64).build("a sample of them");
    for (to, from) in rows.iter().enumerate() {
        (0..64).for_each(|x| sample.q.set(to * 64 + x, case.q.get(from * 64 + x)));
    }
    (sample.k, sample.v) = (case.k.clone(), case.v.clone());
    let answer = sample.naive();
    let (mut error, mut norm) = (0.0, 0.0);
    for (at, row) in rows.iter().enumerate() {
        for x in 0..64 {
            let want = answer.y[at * 64 + x];
            error += (f64::from(output.get(row * 64 + x)) - want).powi(2);
            norm += want * want;
        }
    }
    let error = (error / norm).sqrt();
    println!("relative error at {n} tokens: {error:.2e}");
    assert!(error <= ERROR, "{error:e}");
}

#[test]
#[ignore = "needs a GPU: cargo xtask gpu-test"]
fn scale_the_memory_at_4096_tokens() {
    let view = View::dense("x", Layout::Bhnd, &[8, 4096, 64], None).unwrap();
    let problem = elsa_core::attention::Spec::new(DType::F32, view, view, view, view).check().unwrap();
    let plan = gpu_engine(Fallback::Fail).plan(&problem, &PlanOptions::default()).unwrap();
    println!("8 heads, 4096 tokens, d = 64: {} bytes", plan.workspace_bytes());
    assert!(plan.workspace_bytes() <= BYTES);
}
