//! `elsa backward`: computes gradients of attention over tensors in files.

mod args;
mod forward;
mod task;

pub use args::BackwardArgs;

use crate::args::{Chunks, needs_task};
use crate::error::{Error, one_line, say};
use crate::flag::flag;
use crate::job::{Job, floats};
use crate::progress;
use crate::report::{self, count, object};
use crate::task::load::Rows;
use crate::task::origin;
use crate::task::planned;
use elsa_core::argument::ArgumentError;
use elsa_core::attention::Operand;
use elsa_core::attention::backward::{BackwardInputs, BackwardProblem, Gradients};
use elsa_core::quorum::Division;
use elsa_core::view::View;
use elsa_files::sums::Sums;
use elsa_files::{Buffer, Content, Output, Writer, leaves_enough, zeros};
use elsa_runtime::{
    BackwardPlan, BackwardPlanOptions, BackwardTaskPlan, Engine, GradientMerge, GradientSizes, PlanError,
    TaskGradients, TaskTokens,
};
use forward::{Forward, like_output};

/// Result of a backward pass.
struct Pass {
    /// Gradients of queries, keys and values, stored as the views of the problem describe.
    gradients: [Vec<f32>; 3],
    tasks: u64,
    kernel: Option<&'static str>,
    workspace_bytes: usize,
    /// Report of the last run.
    last_report: Option<elsa_runtime::Report>,
}

/// Computes the gradients from all pairs of queries and keys in one run.
fn at_once(
    engine: &Engine,
    problem: &BackwardProblem,
    inputs: BackwardInputs<'_>,
    options: &BackwardPlanOptions,
) -> Result<Pass, Error> {
    let plan = engine.backward_plan(problem, options)?;
    let mut gradients = room(problem)?;
    let mut workspace = plan.workspace()?;
    leaves_enough("budget", plan.workspace_bytes())?;
    let [query, key, value] = &mut gradients;
    let last = plan.run(inputs, Gradients { query, key, value }, &mut workspace)?;
    let (kernel, workspace_bytes) = (Some(plan.kernel()), plan.workspace_bytes());
    Ok(Pass { gradients, tasks: 1, kernel, workspace_bytes, last_report: Some(last) })
}

/// Computes the tasks of `division` one after another, and adds up their shares of the gradients.
fn by_tasks(
    engine: &Engine,
    problem: &BackwardProblem,
    inputs: BackwardInputs<'_>,
    options: &BackwardPlanOptions,
    division: &Division,
) -> Result<Pass, Error> {
    let named = |source| Error::Quorum { argument: "quorum", source };
    let count = usize::try_from(division.tasks()).unwrap_or(usize::MAX);
    let sizes = GradientSizes::of_problem(problem.forward());
    let mut merge = GradientMerge::new(&sizes, count).map_err(planned("shares-out"))?;
    let gradients = room(problem)?;
    let mut done =
        Pass { gradients, tasks: division.tasks(), kernel: None, workspace_bytes: 0, last_report: None };
    for number in 0..division.tasks() {
        let path = division.path(number).map_err(named)?;
        let mut plan = BackwardTaskPlan::new(engine, problem, division, &path, TaskTokens::Whole, options)
            .map_err(undivided)?;
        let mut shares = TaskGradients::zeros(&plan.sizes()).map_err(planned("shares-out"))?;
        let report = plan.run(&inputs, shares.borrow())?;
        merge.push(plan.task(), &shares)?;
        done.kernel = done.kernel.or(plan.plans().first().map(BackwardPlan::kernel));
        done.workspace_bytes = done.workspace_bytes.max(plan.workspace_bytes());
        done.last_report = report.last_report.or(done.last_report);
    }
    let (spec, sums) = (problem.spec(), merge.finish());
    let views = [&spec.query, &spec.key, &spec.value];
    for ((view, dense), to) in
        views.into_iter().zip([&sums.query, &sums.key, &sums.value]).zip(&mut done.gradients)
    {
        TaskGradients::lay(dense, view, to);
    }
    Ok(done)
}

/// Builds the error for a problem that `--quorum` cannot divide. The library's error names the argument `task`, but
/// `--task` is not a flag of this call.
fn undivided(error: PlanError) -> Error {
    match error {
        PlanError::Option(ArgumentError::Conflict { argument: "task", other }) => {
            ArgumentError::Conflict { argument: other, other: "quorum" }.into()
        }
        error => planned("shares-out")(error),
    }
}

/// Allocates the gradients of queries, keys and values, each as large as the view of its tensor.
fn room(problem: &BackwardProblem) -> Result<[Vec<f32>; 3], Error> {
    let spec = problem.spec();
    let of = |argument, view: &View| zeros(flag(argument), view.extent());
    Ok([of("d_q", &spec.query)?, of("d_k", &spec.key)?, of("d_v", &spec.value)?])
}

/// Runs the command.
///
/// # Errors
/// Returns an error if a failure leaves the gradients incomplete. In this case, no file has changed.
pub fn backward(args: &BackwardArgs) -> Result<(), Error> {
    if args.task.is_given() {
        return task::task(args);
    }
    args.task.unused()?;
    args.task.names(args.state.is_some(), "with --state or --task")?;
    needs_task(args.shares_out.is_some(), "shares-out")?;
    let job = Job::load(&args.problem, [false, false])?;
    let forward_problem = &job.problem;
    let problem = BackwardProblem::new(forward_problem)?;
    let upstream = like_output("d-out", &args.d_out, args, &job, &Rows::all())?;
    let division = match &args.task.quorum {
        Some(Chunks(chunks)) => {
            Some(Division::new(chunks).map_err(|source| Error::Quorum { argument: "quorum", source })?)
        }
        None => None,
    };
    let given = Forward::read(args, &job, &Rows::all())?;
    let engine = args.engine.engine()?;
    let options = BackwardPlanOptions::default().budget(args.engine.host.budget);
    let mut writer = Writer::new(args.reads());
    let outputs = [("d_q", &args.dq_out), ("d_k", &args.dk_out), ("d_v", &args.dv_out)];
    for (argument, source) in outputs {
        if let Some(source) = source {
            writer.add(flag(argument), source)?;
        }
    }

    if let Some(state) = &args.state {
        let sums = || Ok(Sums::of(forward_problem, &job.inputs()?, None, None)?);
        origin::check(state, args.task.run_id.as_deref(), None, sums)?;
    }
    let spec = problem.spec();
    let is_given = given.is_some();
    let ((done, forward), ms) = progress::timed(5.0 * job.multiplications(), || -> Result<_, Error> {
        let forward = match given {
            Some(forward) => forward,
            None => Forward::compute(args, &job, &engine)?,
        };
        let inputs = BackwardInputs {
            forward: job.inputs()?,
            output: forward.output()?,
            upstream: floats("d-out", &upstream)?,
            statistics: forward.statistics()?,
        };
        let done = match &division {
            Some(division) => by_tasks(&engine, &problem, inputs, &options, division)?,
            None => at_once(&engine, &problem, inputs, &options)?,
        };
        Ok((done, forward))
    })?;
    let Pass { gradients, tasks, kernel, workspace_bytes, last_report } = done;

    let contents: Vec<Output> = [Operand::Query, Operand::Key, Operand::Value]
        .into_iter()
        .zip(gradients)
        .map(|(operand, data)| Output::Tensor(Content { shape: job.shape(operand), data: Buffer::F32(data) }))
        .collect();
    job.unchanged()?;
    upstream.unchanged()?;
    forward.unchanged()?;
    writer.commit(&contents)?;

    let backend = last_report.as_ref().map_or_else(|| engine.backend(), |last| last.backend).to_string();
    let workers = last_report.as_ref().map_or(0, |last| last.workers);
    let fallback = last_report.and_then(|last| last.fallback).map(|reason| reason.to_string());
    if args.json {
        let report = object! {
            what: "backward",
            backend: backend,
            kernel: kernel,
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
            // `forward` is `true` if the forward pass ran too. `tasks` is the number of tasks whose gradients were
            // added. Without quorums, it is one.
            forward: !is_given,
            tasks: tasks,
            workspace_bytes: workspace_bytes,
            fallback: fallback,
            ms: ms,
        };
        report::json(&mut crate::foreign::stdout(), &report)?;
    } else {
        let passes = if is_given { "backward" } else { "forward and backward" };
        let [dq, dk, dv] = outputs
            .map(|(_, source)| one_line(&source.as_ref().map(ToString::to_string).unwrap_or_default()));
        say(&format!(
            "wrote {dq}, {dk} and {dv} in {ms:.3} ms ({passes}, {backend}, {}, {}, {workspace_bytes} bytes of \
             workspace){}",
            kernel.unwrap_or("no call"),
            count(workers as u64, "thread"),
            fallback.map(|why| format!("; {why}")).unwrap_or_default()
        ));
    }
    Ok(())
}
