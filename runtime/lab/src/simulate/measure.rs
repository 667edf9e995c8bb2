//! Measures the costs of this machine. Attention is run at several sizes, a fit is made to the times, and the fit is
//! checked at other sizes. The naive method is measured for comparison, as in figure 5 of Stream-CQSA. The backward
//! pass is measured on request, at the same sizes.

use super::costs::{Costs, Origin, Pass};
use elsa_cli::error::Error;
use elsa_cli::progress::bar;
use elsa_cli::shape::{Data, Shape};
use elsa_core::attention::Outputs;
use elsa_core::attention::backward::{BackwardInputs, BackwardProblem, Gradients, Statistics};
use elsa_core::dtype::DType;
use elsa_core::plan::ChooseError;
use elsa_files::{Buffer, zeros};
use elsa_runtime::{
    Backend, BackwardPlan, BackwardPlanOptions, BackwardWorkspace, Engine, EngineOptions, Method, Plan,
    PlanError, PlanOptions, Workspace,
};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::time::Instant;

/// Time limit in seconds. After this time, another round begins only if fewer than the minimum number of rounds have
/// been completed.
const SECONDS: f64 = 4.0;
/// Minimum and maximum number of rounds.
const ROUNDS: std::ops::RangeInclusive<usize> = 5..=40;
/// Maximum number of tokens for the naive method.
const NAIVE: usize = 4096;

/// Check of the fit at a size that is not among the fit's samples.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Check {
    /// Number of tokens.
    pub tokens: usize,
    /// Measured seconds.
    pub seconds: f64,
    /// Seconds that the fit predicts.
    pub fitted: f64,
    /// Relative error of the fit: fitted over measured seconds, minus one.
    pub off: f64,
}

/// Costs of the naive method and of this library for one number of tokens, as in figure 5.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Kernels {
    /// Number of tokens.
    pub tokens: usize,
    /// Bytes of tensors and workspace, first of the naive method, then of this library. The naive method stores all
    /// scores.
    pub bytes: [f64; 2],
    /// Seconds of the naive method, then of this library; `None` if not measured.
    pub seconds: [Option<f64>; 2],
}

/// Samples of the fits of a pass: pairs of a number of tokens and seconds, then pairs of a number of tokens and bytes.
pub type Samples = [Vec<[f64; 2]>; 2];

/// Costs of this machine, with the measurements behind them.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The fitted costs.
    pub costs: Costs,
    /// Samples of the fits of the forward pass.
    pub samples: Samples,
    /// Samples of the fits of the backward pass, if it was measured.
    pub backward: Option<Samples>,
    /// Checks of the fit at other sizes.
    pub checks: Vec<Check>,
    /// The naive method compared with this library, at each measured size.
    pub kernels: Vec<Kernels>,
}

/// Returns the size in bytes of the tensors and workspace of a call, or `None` if the method has no plan for this
/// number of tokens.
fn bytes(engine: &Engine, shape: &Shape, method: Method) -> Result<Option<f64>, Error> {
    let problem = shape.problem(DType::F32)?;
    let plan = match engine.plan(&problem, &PlanOptions::default().method(method)) {
        Ok(plan) => plan,
        Err(PlanError::Refused(ChooseError::Extent { .. } | ChooseError::Memory { .. })) => return Ok(None),
        Err(e) => return Err(e.into()),
    };
    let spec = problem.spec();
    let elements = spec.query.extent() + spec.key.extent() + spec.value.extent() + spec.output.extent();
    Ok(Some((elements * size_of::<f32>() + plan.workspace_bytes()) as f64))
}

/// A method at one size, with its plan, tensors and measured times.
struct Subject {
    tokens: usize,
    method: Method,
    plan: Plan,
    workspace: Workspace,
    data: Data,
    output: Buffer,
    bytes: f64,
    times: Vec<f64>,
}

impl Subject {
    fn new(engine: &Engine, shape: &Shape, method: Method) -> Result<Subject, Error> {
        let problem = shape.problem(DType::F32)?;
        let data = Data::random(shape, &problem)?;
        let output = Buffer::zeros("measure", DType::F32, problem.spec().output.extent())?;
        let plan = engine.plan(&problem, &PlanOptions::default().method(method))?;
        let workspace = plan.workspace()?;
        let bytes = bytes(engine, shape, method)?.unwrap_or(f64::NAN);
        Ok(Subject { tokens: shape.keys, method, plan, workspace, data, output, bytes, times: Vec::new() })
    }

    /// Runs a call and returns its duration in seconds, measured with the clock `by`.
    fn call(&mut self, by: ClockId) -> Result<f64, Error> {
        let Subject { plan, workspace, data, output, .. } = self;
        let mut bound = plan.bind(data.inputs(), Outputs::new(output.elements_mut()), workspace)?;
        let start = now(by);
        bound.run()?;
        Ok(now(by) - start)
    }
}

/// Returns the seconds of the clock `by`.
fn now(by: ClockId) -> f64 {
    let now = clock_gettime(by);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

/// Returns the shortest of the measured times. Disturbances by other programs only add to the time of a call.
fn least(times: &[f64]) -> f64 {
    times.iter().copied().fold(f64::INFINITY, f64::min)
}

/// The backward pass at one size, with its plan, tensors and measured times.
struct Backward {
    tokens: usize,
    plan: BackwardPlan,
    workspace: BackwardWorkspace,
    data: Data,
    output: Buffer,
    lse: Vec<f32>,
    gradients: [Vec<f32>; 3],
    bytes: f64,
    times: Vec<f64>,
}

impl Backward {
    /// Runs the forward pass of `shape`, and plans the backward pass.
    fn new(engine: &Engine, shape: &Shape) -> Result<Backward, Error> {
        let Subject { tokens, plan: forward, mut workspace, data, mut output, .. } =
            Subject::new(engine, shape, Method::Elsa)?;
        let problem = shape.problem(DType::F32)?;
        let mut lse = zeros::<f32>("measure", problem.rows())?;
        let outputs = Outputs { lse: Some(&mut lse[..]), ..Outputs::new(output.elements_mut()) };
        forward.run(data.inputs(), outputs, &mut workspace)?;
        let backward = BackwardProblem::new(&problem)?;
        let plan = engine.backward_plan(&backward, &BackwardPlanOptions::default())?;
        let spec = backward.spec();
        let [query, key, value] = [&spec.query, &spec.key, &spec.value].map(|view| view.extent());
        let room = |elements| zeros::<f32>("measure", elements);
        let gradients = [room(query)?, room(key)?, room(value)?];
        // The tensors of the forward pass, the upstream gradient, the row statistics and the gradients.
        let elements = 2 * (query + key + value + output.elements().len()) + lse.len();
        let bytes = (elements * size_of::<f32>() + plan.workspace_bytes()) as f64;
        let workspace = plan.workspace()?;
        Ok(Backward { tokens, plan, workspace, data, output, lse, gradients, bytes, times: Vec::new() })
    }

    /// Runs a call and returns its duration in seconds, measured with the clock `by`.
    fn call(&mut self, by: ClockId) -> Result<f64, Error> {
        let Backward { plan, workspace, data, output, lse, gradients: [query, key, value], .. } = self;
        // The time does not depend on the numbers, so the output is the upstream gradient too.
        let inputs = BackwardInputs {
            forward: data.inputs(),
            output: output.elements(),
            upstream: output.elements(),
            statistics: Statistics::LogSumExp(lse),
        };
        let mut bound = plan.bind(inputs, Gradients { query, key, value }, workspace)?;
        let start = now(by);
        bound.run()?;
        Ok(now(by) - start)
    }
}

/// Returns sizes at which the fit is checked: one between every two neighbours in `sizes`, and one above the largest
/// size.
fn unseen(sizes: &[usize]) -> Vec<usize> {
    let between = sizes.windows(2).map(|two| (two[0] as f64 * two[1] as f64).sqrt().round() as usize);
    let beyond = sizes.last().map(|last| last + last / 2);
    between.chain(beyond).filter(|n| !sizes.contains(n)).collect()
}

/// Measures attention with `heads` heads of size `dim` at each number of tokens in `sizes`, in f32 on the default
/// engine with `threads` threads.
///
/// Each round runs one call for each measured combination of size and method. The shortest call of each combination
/// counts. If the engine has a single thread, this is the calling thread, and its processor time is measured. With
/// `backward`, each round also runs the backward pass at each of `sizes`.
///
/// # Errors
/// Returns errors of a plan or a run, and an error if the times cannot be fitted.
pub fn measure(
    sizes: &[usize],
    heads: usize,
    dim: usize,
    threads: Option<usize>,
    backward: bool,
) -> Result<Measured, Error> {
    let engine = Engine::new(&EngineOptions::default().threads(threads))?;
    let alone = engine.backend() != Backend::Cuda && engine.threads() == 1;
    let by = if alone { ClockId::ThreadCPUTime } else { ClockId::Monotonic };
    let unseen = unseen(sizes);
    let shape = |tokens: usize| Shape::plain(1, heads, tokens, tokens, dim);
    let naive = sizes.iter().filter(|n| **n <= NAIVE).map(|n| (*n, Method::Math));
    let ours = sizes.iter().chain(&unseen).map(|n| (*n, Method::Elsa));
    let mut subjects = Vec::new();
    for (tokens, method) in ours.chain(naive) {
        match Subject::new(&engine, &shape(tokens), method) {
            Err(Error::Plan(PlanError::Refused(_))) if method == Method::Math => {}
            subject => subjects.push(subject?),
        }
    }
    let of_backward = if backward { sizes } else { &[] };
    let of_backward = of_backward.iter().map(|tokens| Backward::new(&engine, &shape(*tokens)));
    let mut of_backward = of_backward.collect::<Result<Vec<Backward>, Error>>()?;
    let progress = bar(*ROUNDS.end() as u64, SECONDS);
    let start = Instant::now();
    for round in 0..=*ROUNDS.end() {
        if round > *ROUNDS.start() && start.elapsed().as_secs_f64() > SECONDS {
            break;
        }
        for subject in &mut subjects {
            let seconds = subject.call(by)?;
            // The first round warms up.
            if round > 0 {
                subject.times.push(seconds);
            }
        }
        for subject in &mut of_backward {
            let seconds = subject.call(by)?;
            if round > 0 {
                subject.times.push(seconds);
            }
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    let find = |tokens: usize, method: Method| {
        subjects.iter().find(|subject| subject.tokens == tokens && subject.method == method)
    };
    let mut samples = [Vec::new(), Vec::new()];
    let mut kernels = Vec::new();
    for &tokens in sizes {
        let Some(ours) = find(tokens, Method::Elsa) else { continue };
        samples[0].push([tokens as f64, least(&ours.times)]);
        samples[1].push([tokens as f64, ours.bytes]);
        if let Some(naive) = find(tokens, Method::Math) {
            let seconds = [Some(least(&naive.times)), Some(least(&ours.times))];
            kernels.push(Kernels { tokens, bytes: [naive.bytes, ours.bytes], seconds });
        }
    }
    let fitted = |[seconds, bytes]: &Samples| {
        Pass::fitted(seconds, bytes).map_err(|e| Error::Argument {
            argument: "measure",
            found: e.to_string(),
            allowed: "three sizes or more whose calls take measurable time".into(),
        })
    };
    let forward = fitted(&samples)?;
    let point = |subject: &Backward, y: f64| [subject.tokens as f64, y];
    let of_backward: Option<Samples> = backward.then(|| {
        let seconds = of_backward.iter().map(|subject| point(subject, least(&subject.times)));
        [seconds.collect(), of_backward.iter().map(|subject| point(subject, subject.bytes)).collect()]
    });
    let check = |tokens: &usize| {
        let seconds = least(&find(*tokens, Method::Elsa)?.times);
        let fitted = forward.time.formula(*tokens as f64);
        Some(Check { tokens: *tokens, seconds, fitted, off: fitted / seconds - 1.0 })
    };
    let checks = unseen.iter().filter_map(check).collect();
    let costs = Costs {
        name: "here".into(),
        title: elsa_cli::machine::cpu_model().unwrap_or_else(|| "this machine".into()),
        origin: Origin::Measured,
        source: format!(
            "shortest calls of {} with {} worker thread{}{}; bytes are tensors and workspace",
            engine.backend(),
            engine.threads(),
            if engine.threads() == 1 { "" } else { "s" },
            if alone { ", by its time on a processor" } else { "" }
        ),
        heads,
        dim,
        element: size_of::<f32>(),
        limit: None,
        forward,
        backward: of_backward.as_ref().map(fitted).transpose()?,
    };
    Ok(Measured { costs, samples, backward: of_backward, checks, kernels })
}

/// Computes the bytes of the naive method and of this library for growing numbers of tokens, from plans that are not
/// run.
///
/// # Errors
/// Returns errors of a plan.
pub fn kernels(costs: &Costs) -> Result<Vec<Kernels>, Error> {
    let engine = Engine::new(&EngineOptions::default().threads(1))?;
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
        let measured = measure(&[16, 32, 64], 1, 16, Some(1), false).unwrap();
        assert!(measured.costs.backward.is_none() && measured.backward.is_none());
        assert_eq!(measured.checks.iter().map(|check| check.tokens).collect::<Vec<_>>(), [23, 45, 96]);
        assert!(measured.checks.iter().all(|check| check.seconds > 0.0 && check.fitted > 0.0));
        assert!(measured.costs.forward.time.is_sound() && measured.costs.forward.worst.is_some());
        assert_eq!((measured.kernels.len(), measured.samples[0].len()), (3, 3));
    }

    #[test]
    fn the_backward_pass_is_measured_on_request() {
        let measured = measure(&[16, 32, 64], 2, 16, Some(1), true).unwrap();
        let [seconds, bytes] = measured.backward.unwrap();
        assert!(seconds.iter().map(|[tokens, _]| *tokens).eq([16.0, 32.0, 64.0]), "{seconds:?}");
        assert!(seconds.iter().all(|[_, seconds]| *seconds > 0.0 && seconds.is_finite()));
        // Eight tensors and the statistics of the rows are in memory, besides the workspace.
        let tensors = |tokens: f64| 4.0 * 2.0 * tokens * (8.0 * 16.0 + 1.0);
        assert!(bytes.iter().all(|[tokens, bytes]| *bytes >= tensors(*tokens)), "{bytes:?}");
        assert!(measured.costs.backward.is_some_and(|pass| pass.time.is_sound()));
    }

    #[test]
    fn the_naive_method_needs_the_square() {
        let costs = super::super::sets::named("jetson-tx2").unwrap();
        let all = kernels(&costs).unwrap();
        assert!(all.len() >= 4, "{all:?}");
        for two in all.windows(2) {
            // The number of tokens grows fourfold from one entry to the next.
            let grown = |i: usize| two[1].bytes[i] / two[0].bytes[i];
            assert!(grown(1) < 4.1, "{two:?}");
        }
        let last = all.last().unwrap();
        assert!(last.bytes[0] > 2.0 * last.bytes[1], "{last:?}");
    }
}
