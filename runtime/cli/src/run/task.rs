//! `elsa run --task`: computes the states for one task of a division by quorums, and writes the states to a file. The
//! computation needs only the tokens of the task.

use super::args::RunArgs;
use crate::args::warn_without_half_scores;
use crate::error::Error;
use crate::progress;
use crate::task::load::{Loaded, load, refuse};
use crate::task::report::{Finished, tell};
use crate::task::{planned, ran};
use elsa_core::attention::StateOut;
use elsa_files::sums::Sums;
use elsa_files::task::{Description, Kind, Whole};
use elsa_files::{Output, Writer};
use elsa_runtime::{RowStates, TaskPlan};

/// Runs the command.
///
/// # Errors
/// Returns an error if the states are not computed and written completely. A regular target is then unchanged, unless
/// the error is a failed rename.
pub fn run(args: &RunArgs) -> Result<(), Error> {
    refuse(&[
        (args.out.is_some(), "out"),
        (args.lse_out.is_some(), "lse-out"),
        (args.present_k.is_some(), "present-k"),
        (args.present_v.is_some(), "present-v"),
        (args.certificate, "certificate"),
        (args.stream.is_asked(), "host-budget"),
    ])?;
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
    let mut states = RowStates::empty(whole.sequences() * plan.task().query_tokens(), problem.value_dim())
        .map_err(planned("state-out"))?;
    let pairs = plan.task().pair_count() as f64 * whole.sequences() as f64;
    let dims = (problem.head_dim() + problem.value_dim()) as f64;
    let (done, ms) = progress::timed(2.0 * pairs * dims, || {
        plan.run(&inputs, StateOut { m: &mut states.m, s: &mut states.s, w: &mut states.w })
    })
    .map_err(ran)?;
    let bytes_written = 4 * (2 * states.m.len() + states.w.len());
    let description = Description { kind: Kind::States, whole, path: name };
    let arrays = description.states_to_arrays(plan.task(), sums, states);
    job.unchanged()?;
    writer.commit(&[Output::Archive(arrays)])?;
    tell(
        args.json,
        &engine,
        Finished {
            file: path,
            description: &description,
            division: &division,
            task: plan.task(),
            backend: done.backend,
            kernel: done.kernel,
            calls: [done.calls, done.skipped],
            bytes: [bytes_read, bytes_written, plan.workspace_bytes()],
            fallback: done.fallback.map(|reason| reason.to_string()),
            ms,
        },
    )
}
