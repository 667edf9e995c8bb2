//! `elsa run --task`: the states of one task of a division by quorums, from its own tokens, to a file.

pub mod file;
pub mod load;
pub mod origin;
pub mod report;
pub mod sums;

use crate::args::warn_without_half_scores;
use crate::error::{Error, one_line, say};
use crate::progress;
use crate::run::RunArgs;
use elsa_core::argument::ArgumentError;
use elsa_core::attention::StateOut;
use elsa_files::{MemoryError, Output, Writer};
use elsa_runtime::{PlanError, RowStates, RunError, TaskPlan};
use file::{Description, Kind, Whole};
use load::{Loaded, load};
use report::TaskReport;
use std::time::Instant;
use sums::Sums;

/// Returns a function that builds the error of a task's plan, or of memory for its results, which `argument` takes.
pub fn planned(argument: &'static str) -> impl Fn(PlanError) -> Error {
    move |e| match e {
        PlanError::TaskMemory { bytes } => MemoryError { argument, bytes }.into(),
        e => e.into(),
    }
}

/// Builds the error of a task's run.
#[must_use]
pub fn ran(e: RunError) -> Error {
    match e {
        RunError::Bind(e) => e.into(),
        e => e.into(),
    }
}

/// Runs the command.
///
/// # Errors
/// Whatever keeps the states from being complete. No file has changed then.
pub fn run(args: &RunArgs) -> Result<(), Error> {
    let given = [
        (args.out.is_some(), "out"),
        (args.lse_out.is_some(), "lse-out"),
        (args.present_k.is_some(), "present-k"),
        (args.present_v.is_some(), "present-v"),
        (args.certificate, "certificate"),
        (args.stream.is_asked(), "host-budget"),
    ];
    if let Some((_, argument)) = given.into_iter().find(|(given, _)| *given) {
        return Err(ArgumentError::Conflict { argument, other: "task" }.into());
    }
    args.traversal.excluded_by("task", true)?;
    let Some(path) = &args.state_out else {
        let (argument, found) = ("state-out", "missing".into());
        return Err(Error::Argument { argument, found, allowed: "path.npz, with --task".into() });
    };
    let (division, name) = args.task.chosen()?;
    let Loaded { job, held, bytes: bytes_read, .. } = load(&args.problem, &args.task, &division, &name)?;
    let problem = job.problem;
    let engine = args.engine.engine()?;
    let options = args.engine.plan_options();
    let mut plan =
        TaskPlan::new(&engine, &problem, &division, &name, held, &options).map_err(planned("state-out"))?;
    if let Some(plan) = plan.plans().first() {
        warn_without_half_scores(&options, plan);
    }
    let mut writer = Writer::new(args.reads());
    writer.add_archive("state-out", path)?;

    let inputs = job.inputs()?;
    let run = args.task.run_id.as_deref();
    let whole = Whole::of(&division, &problem, plan.totals(), &inputs.lengths, run);
    let sums = match run {
        Some(_) => Sums::default(),
        None => Sums::of(&problem, &inputs, Some(plan.task()), None)?,
    };
    let shape = whole.shape;
    let tokens = [plan.task().query_tokens(), plan.task().key_tokens()];
    let mut states =
        RowStates::empty(whole.sequences() * tokens[0], problem.value_dim()).map_err(planned("state-out"))?;
    let pairs = plan.task().pair_count() as f64;
    let dims = (problem.head_dim() + problem.value_dim()) as f64;
    // A small board does ten billion operations a second.
    let spinner = progress::spinner(2.0 * pairs * whole.sequences() as f64 * dims / 1e10);
    let start = Instant::now();
    let out = StateOut { m: &mut states.m, s: &mut states.s, w: &mut states.w };
    let done = plan.run(&inputs, out);
    let ms = start.elapsed().as_secs_f64() * 1e3;
    spinner.finish_and_clear();
    let done = done.map_err(ran)?;
    let bytes_written = 4 * (2 * states.m.len() + states.w.len());
    let description = Description { kind: Kind::States, whole, path: name };
    let arrays = description.states_to_arrays(plan.task(), sums, states);
    job.unchanged()?;
    writer.commit(&[Output::Archive(arrays)])?;

    let dtype = problem.spec().dtype;
    if args.json {
        let report = TaskReport {
            what: "task",
            task: name.to_string(),
            quorum: division.sets().iter().map(|set| set.chunks()).collect(),
            tasks: division.tasks(),
            backend: done.backend.map(|backend| backend.to_string()),
            kernel: done.kernel,
            threads: engine.threads(),
            dtype: dtype.name(),
            shape,
            tokens,
            pairs,
            calls: done.calls,
            skipped: done.skipped,
            bytes_read,
            bytes_written,
            workspace_bytes: plan.workspace_bytes(),
            fallback: done.fallback.map(|reason| reason.to_string()),
            ms,
        };
        crate::report::json(&mut crate::foreign::stdout(), &report)?;
    } else {
        say(&format!(
            "wrote {}: task {name} of {}, {} of {} queries and {} of {} keys, {} calls in {ms:.3} ms",
            one_line(&path.display().to_string()),
            division.tasks(),
            tokens[0],
            shape[3],
            tokens[1],
            shape[4],
            done.calls
        ));
    }
    Ok(())
}
