//! Costs of this machine: attention is run at some sizes, fitted, and the fit is held against sizes that it was not made
//! from. The naive method is measured beside it, as in figure 5 of Stream-CQSA.

use super::costs::{Costs, Origin, Pass};
use crate::error::Error;
use crate::memory::Buffer;
use crate::progress::bar;
use crate::shape::{Data, Shape};
use elsa_core::attention::Outputs;
use elsa_core::attention::plan::ChooseError;
use elsa_core::drift::percentile;
use elsa_core::dtype::DType;
use elsa_runtime::{Engine, EngineOptions, Method, PlanError, PlanOptions};
use serde::Serialize;
use std::time::Instant;

/// Seconds that a size is measured for, at least.
const SECONDS: f64 = 0.1;
/// Calls of a size, at least.
const CALLS: usize = 5;
/// The largest number of tokens at which the naive method is run.
const NAIVE: usize = 4096;

/// A size that the fit was not made from.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Check {
    /// Tokens.
    pub tokens: usize,
    /// Measured.
    pub seconds: f64,
    /// As the fit says.
    pub fitted: f64,
    /// Fitted over measured, less one.
    pub off: f64,
}

/// Both methods at a size: figure 5.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Kernels {
    /// Tokens.
    pub tokens: usize,
    /// Bytes of the naive method, which keeps scores, and of this one: tensors and workspace.
    pub bytes: [f64; 2],
    /// Seconds, where they were measured.
    pub seconds: [Option<f64>; 2],
}

/// What was measured.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The fit.
    pub costs: Costs,
    /// Seconds and bytes by tokens, of which it is made.
    pub samples: [Vec<[f64; 2]>; 2],
    /// How good it is.
    pub checks: Vec<Check>,
    /// The naive method beside this one.
    pub kernels: Vec<Kernels>,
}

/// What a method needs and takes.
struct Taken {
    bytes: f64,
    seconds: f64,
}

/// Bytes of tensors and workspace. None where the method has no plan for so many tokens.
fn bytes(engine: &Engine, shape: &Shape, method: Method) -> Result<Option<f64>, Error> {
    let problem = shape.problem(DType::F32)?;
    let plan = match engine.plan(&problem, &PlanOptions { method, ..PlanOptions::default() }) {
        Ok(plan) => plan,
        Err(PlanError::Refused(ChooseError::Extent { .. } | ChooseError::Memory { .. })) => return Ok(None),
        Err(e) => return Err(e.into()),
    };
    let spec = problem.spec();
    let elements = spec.query.extent() + spec.key.extent() + spec.value.extent() + spec.output.extent();
    Ok(Some((elements * size_of::<f32>() + plan.workspace_bytes()) as f64))
}

/// The median of calls that take [`SECONDS`] together. The first call is not counted.
fn taken(engine: &Engine, shape: &Shape, method: Method) -> Result<Taken, Error> {
    let problem = shape.problem(DType::F32)?;
    let data = Data::random(shape, &problem)?;
    let mut output = Buffer::zeros("measure", DType::F32, problem.spec().output.extent())?;
    let plan = engine.plan(&problem, &PlanOptions { method, ..PlanOptions::default() })?;
    let mut workspace = plan.workspace()?;
    let mut bound = plan.bind(data.inputs(), Outputs::new(output.elements_mut()), &mut workspace)?;
    bound.run()?;
    let (start, mut times) = (Instant::now(), Vec::new());
    while times.len() < CALLS || start.elapsed().as_secs_f64() < SECONDS {
        let call = Instant::now();
        bound.run()?;
        times.push(call.elapsed().as_secs_f64());
    }
    let seconds = percentile(&mut times, 50).unwrap_or(f64::NAN);
    let bytes = bytes(engine, shape, method)?.unwrap_or(f64::NAN);
    Ok(Taken { bytes, seconds })
}

/// Sizes between those of the fit, and one beyond the last.
fn unseen(sizes: &[usize]) -> Vec<usize> {
    let between = sizes.windows(2).map(|two| (two[0] as f64 * two[1] as f64).sqrt().round() as usize);
    let beyond = sizes.last().map(|last| last + last / 2);
    between.chain(beyond).filter(|n| !sizes.contains(n)).collect()
}

/// Measures `heads` heads of size `dim` at `sizes` tokens, in f32 on the engine that this machine chooses.
///
/// # Errors
/// What a plan or a run reports, and times from which there is no fit.
pub fn measure(sizes: &[usize], heads: usize, dim: usize) -> Result<Measured, Error> {
    let engine = Engine::new(&EngineOptions::default())?;
    let shape = |tokens: usize| Shape::plain(1, heads, tokens, tokens, dim);
    let unseen = unseen(sizes);
    let naive = sizes.iter().filter(|n| **n <= NAIVE).count();
    let progress = bar((sizes.len() + unseen.len() + naive) as u64, 2.0);
    let step = |tokens: usize, method: Method| {
        progress.set_message(format!("{tokens} tokens"));
        let taken = taken(&engine, &shape(tokens), method);
        progress.inc(1);
        taken
    };
    let mut samples = [Vec::new(), Vec::new()];
    let mut kernels = Vec::new();
    for &tokens in sizes {
        let ours = step(tokens, Method::Elsa)?;
        samples[0].push([tokens as f64, ours.seconds]);
        samples[1].push([tokens as f64, ours.bytes]);
        let theirs = if tokens <= NAIVE { Some(step(tokens, Method::Math)?) } else { None };
        if let Some(theirs) = theirs {
            let seconds = [Some(theirs.seconds), Some(ours.seconds)];
            kernels.push(Kernels { tokens, bytes: [theirs.bytes, ours.bytes], seconds });
        }
    }
    let forward = Pass::fitted(&samples[0], &samples[1]).map_err(|e| Error::Argument {
        argument: "measure",
        found: e.to_string(),
        allowed: "three sizes or more whose calls take measurable time".into(),
    })?;
    let mut checks = Vec::new();
    for tokens in unseen {
        let seconds = step(tokens, Method::Elsa)?.seconds;
        let fitted = forward.time.formula(tokens as f64);
        checks.push(Check { tokens, seconds, fitted, off: fitted / seconds - 1.0 });
    }
    progress.finish_and_clear();
    let costs = Costs {
        name: "here".into(),
        title: crate::machine::cpu_model().unwrap_or_else(|| "this machine".into()),
        origin: Origin::Measured,
        source: format!(
            "median times of {} by {} worker threads; bytes are tensors and workspace",
            engine.backend(),
            engine.threads()
        ),
        heads,
        dim,
        element: size_of::<f32>(),
        limit: None,
        forward,
        backward: None,
    };
    Ok(Measured { costs, samples, checks, kernels })
}

/// Bytes of both methods at growing sizes, from their plans; nothing is run.
///
/// # Errors
/// What a plan reports.
pub fn kernels(costs: &Costs) -> Result<Vec<Kernels>, Error> {
    let engine = Engine::new(&EngineOptions { threads: Some(1), ..EngineOptions::default() })?;
    let mut all = Vec::new();
    for power in (10..=18).step_by(2) {
        let tokens = 1usize << power;
        let shape = Shape::plain(1, costs.heads, tokens, tokens, costs.dim);
        let of = |method| bytes(&engine, &shape, method);
        if let (Some(naive), Some(ours)) = (of(Method::Math)?, of(Method::Elsa)?) {
            all.push(Kernels { tokens, bytes: [naive, ours], seconds: [None, None] });
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fit_is_checked_on_other_sizes() {
        assert_eq!(unseen(&[512, 1024, 2048]), [724, 1448, 3072]);
        assert_eq!(unseen(&[1, 2, 3]), [4]);
        let measured = measure(&[16, 32, 64], 1, 16).unwrap();
        assert_eq!(measured.checks.iter().map(|check| check.tokens).collect::<Vec<_>>(), [23, 45, 96]);
        assert!(measured.checks.iter().all(|check| check.seconds > 0.0 && check.fitted > 0.0));
        assert!(measured.costs.forward.time.is_sound() && measured.costs.forward.worst.is_some());
        assert_eq!((measured.kernels.len(), measured.samples[0].len()), (3, 3));
    }

    #[test]
    fn the_naive_method_needs_the_square() {
        let costs = super::super::sets::named("jetson-tx2").unwrap();
        let all = kernels(&costs).unwrap();
        assert!(all.len() >= 4, "{all:?}");
        for two in all.windows(2) {
            // Four times the tokens.
            let grown = |i: usize| two[1].bytes[i] / two[0].bytes[i];
            assert!(grown(1) < 4.1, "{two:?}");
        }
        let last = all.last().unwrap();
        assert!(last.bytes[0] > 2.0 * last.bytes[1], "{last:?}");
    }
}
