//! `elsa backward`: gradients of attention over tensors in files, to files.
// Doc comments of flags are their help texts, where brackets hold shapes.
#![allow(rustdoc::broken_intra_doc_links)]

use crate::args::{Chunks, EngineArgs, FILE, ProblemArgs, chunks};
use crate::error::{Error, one_line, say};
use crate::flag::flag;
use crate::job::Job;
use crate::memory::{Buffer, leaves_enough, zeros};
use crate::progress;
use crate::report;
use crate::tensor::output::{Content, Output, Writer};
use crate::tensor::{Accept, Source, Tensor};
use clap::{Arg, Args};
use elsa_core::argument::ArgumentError;
use elsa_core::attention::backward::{BackwardInputs, BackwardProblem, Gradients, Statistics};
use elsa_core::attention::{Operand, Outputs, StateOut};
use elsa_core::dtype::Elements;
use elsa_core::quorum::{Division, Task};
use elsa_runtime::{BackwardPlanOptions, Engine};
use serde::Serialize;
use std::time::Instant;

/// The text below the flags.
const HELP: &str = "\
Examples:
  elsa backward --q q.npy --k k.npy --v v.npy --d-out dy.npy --dq-out dq.npy --dk-out dk.npy --dv-out dv.npy
  elsa backward --q q.npy --k k.npy --v v.npy --d-out dy.npy --dq-out dq.npy --dk-out dk.npy --dv-out dv.npy --causal \
--out y.npy --lse lse.npy
  elsa backward --q q.npy --k k.npy --v v.npy --d-out dy.npy --dq-out dq.npy --dk-out dk.npy --dv-out dv.npy --quorum 7

With p = exp(s - lse) of the scores s of elsa run, and d-out the gradient of a loss with respect to its output:
  ds = p (<d-out, v> - <d-out, out>), times 1 - tanh^2 with --softcap
  dv = sum_i p d-out;  dq = scale sum_j ds k;  dk = scale sum_i ds q
Query heads that share a key head add to its gradients. Queries without keys, and keys that no query attends, get zeros.
The CPU computes, with the same bits for any number of threads; with a GPU the report says so. Gradients are f32 in the
shapes of q, k and v, whatever their type. Without --out and --lse the forward pass runs first and keeps references and
sums apart, which stays exact where scores are large: a log-sum-exp of 4000 in f32 is off by up to 1.2e-4, and so is every
p of its row. An --out of 16 bits is rounded, and so are the gradients. There is no backward pass of a past.
Exit status: 0 done; 2 the request was wrong, and nothing was written; 3 the device or the system failed.";

/// A flag without which the command cannot run.
fn required(flag: Arg) -> Arg {
    flag.required(true)
}

/// `elsa backward`.
#[derive(Args, Debug)]
#[command(override_usage = "elsa backward --q <FILE> --k <FILE> --v <FILE> --d-out <FILE> --dq-out <FILE> \
    --dk-out <FILE> --dv-out <FILE> [OPTIONS]", after_help = HELP,
    mut_arg("q", required), mut_arg("k", required), mut_arg("v", required))]
pub struct BackwardArgs {
    /// The problem.
    #[command(flatten)]
    pub problem: ProblemArgs,
    /// Gradient of the loss with respect to the output, in its shape; of the inputs' type, or f32
    #[arg(long, value_name = FILE)]
    pub d_out: Source,
    /// Output of the forward pass, of the inputs' type, or f32 [default: computed, as is --lse]
    #[arg(long, value_name = FILE, requires = "lse")]
    pub out: Option<Source>,
    /// Log-sum-exp of the forward pass, f32 [batch, heads, queries]
    #[arg(long, value_name = FILE, requires = "out")]
    pub lse: Option<Source>,
    /// Gradient of q, f32
    #[arg(long, value_name = FILE)]
    pub dq_out: Source,
    /// Gradient of k, f32
    #[arg(long, value_name = FILE)]
    pub dk_out: Source,
    /// Gradient of v, f32
    #[arg(long, value_name = FILE)]
    pub dv_out: Source,
    /// Divide the pairs of queries and keys among the tasks of quorums, the chunks of each level as of elsa run, and add
    /// the gradients of all tasks in their order
    #[arg(long, value_name = "C[,C...]", allow_hyphen_values = true, value_parser = chunks)]
    pub quorum: Option<Chunks>,
    /// What computes.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Print a machine-readable report
    #[arg(long)]
    pub json: bool,
}

/// The object that `--json` prints.
#[derive(Debug, Serialize)]
struct Report {
    what: &'static str,
    backend: String,
    kernel: &'static str,
    threads: usize,
    dtype: &'static str,
    /// Batch, heads, key heads, queries, keys, head size and head size of values.
    shape: [usize; 7],
    /// Whether the forward pass ran, too.
    forward: bool,
    /// Tasks whose gradients were added; one without quorums.
    tasks: u64,
    workspace_bytes: usize,
    /// Why the CPU computed in place of a GPU.
    fallback: Option<String>,
    ms: f64,
}

/// What the forward pass leaves behind.
enum Forward {
    /// Output and log-sum-exp, from files.
    Given(Box<[Tensor; 2]>),
    /// Output, in the view of the output, and references and sums of the states.
    Computed([Vec<f32>; 3]),
}

impl Forward {
    /// The output.
    fn output(&self) -> Result<Elements<'_>, Error> {
        match self {
            Forward::Given(files) => elements("out", &files[0]),
            Forward::Computed([output, ..]) => Ok(Elements::F32(output)),
        }
    }

    /// What the rows of the output come from.
    fn statistics(&self) -> Result<Statistics<'_>, Error> {
        match self {
            Forward::Given(files) => Ok(Statistics::LogSumExp(log_sum_exp(&files[1])?)),
            Forward::Computed([_, m, s]) => Ok(Statistics::State { m, s }),
        }
    }
}

/// A tensor of floating-point elements in the shape of the output.
fn like_output(argument: &'static str, source: &Source, shape: &[usize]) -> Result<Tensor, Error> {
    let tensor = Tensor::load(argument, source, Accept::Float)?;
    if tensor.shape() != shape {
        return Err(Error::Argument {
            argument,
            found: format!("shape {:?}", tensor.shape()),
            allowed: format!("{shape:?}, the shape of the output"),
        });
    }
    Ok(tensor)
}

/// The elements of a tensor that was loaded as floating-point.
fn elements<'a>(argument: &'static str, tensor: &'a Tensor) -> Result<Elements<'a>, Error> {
    let other = "floating-point elements";
    tensor.elements().ok_or(Error::Problem(ArgumentError::Needs { argument, other }))
}

/// The log-sum-exp of a tensor that was loaded for it.
fn log_sum_exp(lse: &Tensor) -> Result<&[f32], Error> {
    match lse.elements() {
        Some(Elements::F32(rows)) => Ok(rows),
        _ => {
            let found = format!("type {}", lse.dtype().name());
            Err(Error::Argument { argument: "lse", found, allowed: "f32".into() })
        }
    }
}

/// Reads the output and the log-sum-exp.
fn read(job: &Job, [out, lse]: [&Source; 2]) -> Result<Forward, Error> {
    let out = like_output("out", out, &job.shapes[Operand::Output])?;
    let lse = Tensor::load("lse", lse, Accept::Float)?;
    elements("out", &out)?;
    if log_sum_exp(&lse)?.len() != job.problem.rows() {
        return Err(Error::Argument {
            argument: "lse",
            found: format!("shape {:?}", lse.shape()),
            allowed: format!("{:?}, one number for each query row", job.shapes[Operand::LogSumExp]),
        });
    }
    Ok(Forward::Given(Box::new([out, lse])))
}

/// Runs the forward pass. The output is `W / S` in f32, whatever the type of the inputs.
fn compute(args: &BackwardArgs, job: &Job, engine: &Engine) -> Result<Forward, Error> {
    let problem = &job.problem;
    let plan = engine.plan(problem, &args.engine.plan_options())?;
    let (rows, dim, view) = (problem.rows(), problem.value_dim(), problem.spec().output);
    let [mut m, mut s] = [zeros::<f32>("out", rows)?, zeros::<f32>("out", rows)?];
    let mut w = zeros::<f32>("out", rows.saturating_mul(dim))?;
    let mut workspace = plan.workspace()?;
    leaves_enough("budget", plan.workspace_bytes())?;
    let state = StateOut { m: &mut m, s: &mut s, w: &mut w };
    plan.bind(job.inputs()?, Outputs::states(state), &mut workspace)?.run()?;
    let mut output = zeros::<f32>("out", view.extent())?;
    let places = (0..view.batch()).flat_map(|b| {
        (0..view.heads()).flat_map(move |h| (0..view.tokens()).map(move |t| view.row(b, h, t)))
    });
    for ((at, s), w) in places.zip(&s).zip(w.chunks_exact(dim)) {
        for (y, w) in output[at..at + dim].iter_mut().zip(w) {
            *y = if *s == 0.0 { 0.0 } else { w / s };
        }
    }
    Ok(Forward::Computed([output, m, s]))
}

/// Borrows the gradients.
fn borrow([query, key, value]: &mut [Vec<f32>; 3]) -> Gradients<'_> {
    Gradients { query, key, value }
}

/// Runs the command.
///
/// # Errors
/// Whatever keeps the gradients from being complete. No file has changed then.
pub fn backward(args: &BackwardArgs) -> Result<(), Error> {
    let job = Job::load(&args.problem, [false, false])?;
    let forward_problem = &job.problem;
    let problem = BackwardProblem::new(forward_problem)?;
    let upstream = like_output("d-out", &args.d_out, &job.shapes[Operand::Output])?;
    let division = match &args.quorum {
        Some(Chunks(chunks)) => {
            Some(Division::new(chunks).map_err(|source| Error::Quorum { argument: "quorum", source })?)
        }
        None => None,
    };
    let given = match args.out.as_ref().zip(args.lse.as_ref()) {
        Some((out, lse)) => Some(read(&job, [out, lse])?),
        None => None,
    };
    let engine = args.engine.engine()?;
    let budget = args.engine.budget;
    let plan = engine.backward_plan(&problem, &BackwardPlanOptions { budget, all_workers: false })?;
    let mut writer = Writer::default();
    for (argument, source) in [("d_q", &args.dq_out), ("d_k", &args.dk_out), ("d_v", &args.dv_out)] {
        writer.add(flag(argument), source)?;
    }

    let spec = problem.spec();
    let room = || -> Result<[Vec<f32>; 3], Error> {
        Ok([
            zeros(flag("d_q"), spec.query.extent())?,
            zeros(flag("d_k"), spec.key.extent())?,
            zeros(flag("d_v"), spec.value.extent())?,
        ])
    };
    let mut sums = room()?;
    let mut part = division.as_ref().map(|_| room()).transpose()?;
    let dims = forward_problem.head_dim() + forward_problem.value_dim();
    let pairs = forward_problem.rows() as f64 * forward_problem.keys() as f64;
    // A small board does ten billion operations a second.
    let spinner = progress::spinner(5.0 * pairs * dims as f64 / 1e10);
    let start = Instant::now();
    let is_given = given.is_some();
    let forward = match given {
        Some(forward) => forward,
        None => compute(args, &job, &engine)?,
    };
    let inputs = BackwardInputs {
        forward: job.inputs()?,
        output: forward.output()?,
        upstream: elements("d-out", &upstream)?,
        statistics: forward.statistics()?,
        task: None,
    };
    let mut workspace = plan.workspace()?;
    leaves_enough("budget", plan.workspace_bytes())?;
    let (done, tasks) = match (&division, &mut part) {
        (Some(division), Some(part)) => {
            let (queries, keys) = (spec.query.tokens(), spec.key.tokens());
            let mut done = None;
            for number in 0..division.tasks() {
                let named = |source| Error::Quorum { argument: "quorum", source };
                let path = division.path(number).map_err(named)?;
                let task = Task::new(division, &path, queries, keys).map_err(named)?;
                let of_task = BackwardInputs { task: Some(&task), ..inputs };
                done = Some(plan.bind(of_task, borrow(part), &mut workspace)?.run()?);
                borrow(&mut sums).add(&problem, &task, &borrow(part))?;
            }
            (done, division.tasks())
        }
        _ => (Some(plan.bind(inputs, borrow(&mut sums), &mut workspace)?.run()?), 1),
    };
    let ms = start.elapsed().as_secs_f64() * 1e3;
    spinner.finish_and_clear();

    let contents: Vec<Output> = [Operand::Query, Operand::Key, Operand::Value]
        .into_iter()
        .zip(sums)
        .map(|(operand, data)| Output::Tensor(Content { shape: job.shape(operand), data: Buffer::F32(data) }))
        .collect();
    job.unchanged()?;
    upstream.unchanged()?;
    if let Forward::Given(tensors) = &forward {
        tensors.iter().try_for_each(Tensor::unchanged)?;
    }
    writer.commit(&contents)?;

    let backend = done.map_or_else(|| engine.backend().to_string(), |done| done.backend.to_string());
    let fallback =
        done.and_then(|done| done.instead_of).map(|gpu| format!("backend: {gpu} has no backward pass"));
    let workers = done.map_or(0, |done| done.workers);
    if args.json {
        let report = Report {
            what: "backward",
            backend,
            kernel: plan.kernel(),
            threads: engine.threads(),
            dtype: forward_problem.spec().dtype.name(),
            shape: [
                forward_problem.sequences(),
                forward_problem.heads(),
                forward_problem.kv_heads(),
                spec.query.tokens(),
                forward_problem.keys(),
                forward_problem.head_dim(),
                forward_problem.value_dim(),
            ],
            forward: !is_given,
            tasks,
            workspace_bytes: plan.workspace_bytes(),
            fallback,
            ms,
        };
        report::json(&mut std::io::stdout().lock(), &report)?;
    } else {
        let passes = if is_given { "backward" } else { "forward and backward" };
        say(&format!(
            "wrote {}, {} and {} in {ms:.3} ms ({passes}, {backend}, {}, {workers} threads, {} bytes of workspace){}",
            one_line(&args.dq_out.to_string()),
            one_line(&args.dk_out.to_string()),
            one_line(&args.dv_out.to_string()),
            plan.kernel(),
            plan.workspace_bytes(),
            fallback.map(|why| format!("; {why}")).unwrap_or_default()
        ));
    }
    Ok(())
}
