//! `elsa run --task`: computes the states for one task of a division by quorums, and writes the states to a file. The
//! computation needs only the tokens of the task. `elsa run --quorum` without `--task` calls it for every task.

use super::args::RunArgs;
use crate::args::warn_without_effect;
use crate::error::Error;
use crate::progress;
use crate::task::load::{Loaded, load, refuse};
use crate::task::planned;
use crate::task::report::{Finished, tell};
use elsa_core::attention::StateOut;
use elsa_core::quorum::{Division, Task, TaskPath};
use elsa_files::sums::Sums;
use elsa_files::task::{Description, Kind, Whole};
use elsa_files::{Output, Writer};
use elsa_runtime::{Engine, RowStates, TaskPlan, TaskReport};
use std::path::Path;

/// Runs the command.
///
/// # Errors
/// Returns an error if the states are not computed and written completely. A regular target is then unchanged, unless
/// the error is a failed rename.
pub fn run(args: &RunArgs) -> Result<(), Error> {
    refuse(
        "task",
        &[
            (args.out.is_some(), "out"),
            (args.lse_out.is_some(), "lse-out"),
            (args.present_k.is_some(), "present-k"),
            (args.present_v.is_some(), "present-v"),
            (args.certificate, "certificate"),
            (args.stream.is_asked(), "host-budget"),
        ],
    )?;
    args.traversal.excluded_by("task", true)?;
    let Some(path) = &args.state_out else {
        let (argument, found) = ("state-out", "missing".into());
        return Err(Error::Argument { argument, found, allowed: "path.npz, with --task".into() });
    };
    let (division, name) = args.task.chosen()?;
    let target = Target { argument: "state-out", path, alone: true };
    let computed = compute(args, || args.engine.engine(), (&division, name), target, |_, _| false)?;
    let Some((done, ms)) = computed.done else { return Ok(()) };
    tell(
        args.json,
        &computed.engine,
        Finished {
            file: path,
            description: &computed.description,
            division: &division,
            task: &computed.task,
            backend: done.backend,
            kernel: done.kernel,
            calls: [done.calls, done.skipped],
            bytes: computed.bytes,
            fallback: done.fallback.map(|reason| reason.to_string()),
            ms,
        },
    )
}

/// The file of a task's states.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// The flag that names the file or its folder.
    pub argument: &'static str,
    /// The file.
    pub path: &'a Path,
    /// `true` if the command computes only this task, and shows its progress.
    pub alone: bool,
}

/// A task whose states are in its file.
pub struct Computed {
    /// Description of the task, as its file contains it.
    pub description: Description,
    /// The task.
    pub task: Task,
    /// The engine that computed it.
    pub engine: Engine,
    /// Report of the run, and its time in milliseconds; `None` if the file had the states already.
    pub done: Option<(TaskReport, f64)>,
    /// Three sizes in bytes: of the tensors that were read, of the states that were written, and of the workspace.
    pub bytes: [usize; 3],
}

/// Computes the states of a task and writes them to its file, unless `found` returns `true` for the task's description
/// and checksums. `engine` returns the engine, once the tensors are read.
///
/// # Errors
/// Returns an error if the states are not computed and written completely. A regular target is then unchanged, unless
/// the error is a failed rename.
pub fn compute(
    args: &RunArgs,
    engine: impl FnOnce() -> Result<Engine, Error>,
    (division, name): (&Division, TaskPath),
    Target { argument, path, alone }: Target<'_>,
    found: impl FnOnce(&Description, &Sums) -> bool,
) -> Result<Computed, Error> {
    let Loaded { job, held, bytes: bytes_read, .. } = load(&args.problem, &args.task, division, &name)?;
    let problem = job.problem;
    let engine = engine()?;
    let options = args.engine.plan_options();
    let mut plan =
        TaskPlan::new(&engine, &problem, division, &name, held, &options).map_err(planned(argument))?;
    if let Some(plan) = plan.plans().first() {
        warn_without_effect(&options, plan);
    }
    let mut writer = Writer::new(args.reads());
    writer.add_archive(argument, path)?;

    let inputs = job.inputs()?;
    let run = args.task.run_id.as_deref();
    let whole = Whole::of(division, &problem, plan.totals(), &inputs.lengths, run);
    let sums = match run {
        Some(_) => Sums::default(),
        None => Sums::of(&problem, &inputs, Some(plan.task()), None)?,
    };
    let sequences = whole.sequences();
    let description = Description { kind: Kind::States, whole, path: name };
    let task = plan.task().clone();
    if found(&description, &sums) {
        job.unchanged()?;
        return Ok(Computed { description, task, engine, done: None, bytes: [bytes_read, 0, 0] });
    }
    let mut states =
        RowStates::empty(sequences * task.query_tokens(), problem.value_dim()).map_err(planned(argument))?;
    let pairs = task.pair_count() as f64 * sequences as f64;
    let dims = (problem.head_dim() + problem.value_dim()) as f64;
    let operations = if alone { 2.0 * pairs * dims } else { 0.0 };
    let (done, ms) = progress::timed(operations, || {
        plan.run(&inputs, StateOut { m: &mut states.m, s: &mut states.s, w: &mut states.w })
    })?;
    let bytes = [bytes_read, 4 * (2 * states.m.len() + states.w.len()), plan.workspace_bytes()];
    let arrays = description.states_to_arrays(&task, sums, states);
    job.unchanged()?;
    writer.commit(&[Output::Archive(arrays)])?;
    Ok(Computed { description, task, engine, done: Some((done, ms)), bytes })
}
