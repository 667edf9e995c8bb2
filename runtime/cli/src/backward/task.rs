//! `elsa backward --task`: the shares of one task of a division by quorums, from its own tokens, to a file.

use super::args::BackwardArgs;
use super::given::{Forward, elements, like_output};
use crate::error::{Error, one_line, say};
use crate::progress;
use crate::report;
use crate::task::file::{Description, Kind, Whole};
use crate::task::load::{Loaded, load};
use crate::task::origin;
use crate::task::report::TaskReport;
use crate::task::shares as shares_error;
use crate::task::sums::Sums;
use elsa_core::argument::ArgumentError;
use elsa_core::attention::backward::{BackwardInputs, BackwardProblem};
use elsa_files::{Output, Writer};
use elsa_runtime::{BackwardPlan, BackwardPlanOptions, BackwardTaskPlan, TaskGradients};
use std::time::Instant;

/// Runs the command.
///
/// # Errors
/// Whatever keeps the shares from being complete. No file has changed then.
pub fn task(args: &BackwardArgs) -> Result<(), Error> {
    let outputs = [(&args.dq_out, "dq-out"), (&args.dk_out, "dk-out"), (&args.dv_out, "dv-out")];
    if let Some((_, argument)) = outputs.into_iter().find(|(given, _)| given.is_some()) {
        return Err(ArgumentError::Conflict { argument, other: "task" }.into());
    }
    let Some(path) = &args.shares_out else {
        let (argument, found) = ("shares-out", "missing".into());
        return Err(Error::Argument { argument, found, allowed: "path.npz, with --task".into() });
    };
    let (division, name) = args.task.chosen()?;
    let Loaded { job, held, rows, bytes } = load(&args.problem, &args.task, &division, &name)?;
    let upstream = like_output("d-out", &args.d_out, args, &job, &rows)?;
    let Some(forward) = Forward::read(args, &job, &rows)? else {
        let (argument, found) = ("state", "missing".into());
        let allowed = "path.npz of elsa merge --state-out, or --out and --lse; with --task the forward pass is that of all tasks";
        return Err(Error::Argument { argument, found, allowed: allowed.into() });
    };
    let problem = BackwardProblem::new(&job.problem)?;
    let engine = args.engine.engine()?;
    let options = BackwardPlanOptions::default().budget(args.engine.budget);
    let mut plan =
        BackwardTaskPlan::new(&engine, &problem, &division, &name, held, &options).map_err(shares_error)?;
    let mut writer = Writer::new(args.reads());
    writer.add_archive("shares-out", path)?;

    let given = job.inputs()?;
    let run = args.task.run_id.as_deref();
    let of = |upstream| Sums::of(&job.problem, &given, Some(plan.task()), upstream);
    if let Some(state) = &args.state {
        origin::check(state, run, Some(plan.task()), || of(None))?;
    }
    let whole = Whole::of(&division, &job.problem, plan.totals(), &given.lengths, run);
    let sums = match run {
        Some(_) => Sums::default(),
        None => of(Some(&elements("d-out", &upstream)?))?,
    };
    let shape = whole.shape;
    let tokens = [plan.task().query_tokens(), plan.task().key_tokens()];
    let mut shares = TaskGradients::zeros(&plan.sizes()).map_err(shares_error)?;
    let inputs = BackwardInputs {
        forward: given,
        output: forward.output()?,
        upstream: elements("d-out", &upstream)?,
        statistics: forward.statistics()?,
    };
    let pairs = plan.task().pair_count() as f64;
    let dims = (job.problem.head_dim() + job.problem.value_dim()) as f64;
    // A small board does ten billion operations a second.
    let spinner = progress::spinner(5.0 * pairs * whole.sequences() as f64 * dims / 1e10);
    let start = Instant::now();
    let done = plan.run(&inputs, shares.borrow());
    let ms = start.elapsed().as_secs_f64() * 1e3;
    spinner.finish_and_clear();
    let done = done.map_err(shares_error)?;
    let bytes_written = 4 * (shares.query.len() + shares.key.len() + shares.value.len());
    let description = Description { kind: Kind::Gradients, whole, path: name };
    let arrays = description.shares_to_arrays(plan.task(), sums, shares);
    job.unchanged()?;
    upstream.unchanged()?;
    forward.unchanged()?;
    writer.commit(&[Output::Archive(arrays)])?;

    if args.json {
        let dtype = job.problem.spec().dtype;
        let rows = upstream.shape().iter().product::<usize>() * upstream.dtype().size();
        let fallback = done.last.as_ref().and_then(|last| last.fallback.as_ref());
        let report = TaskReport {
            what: "backward task",
            task: name.to_string(),
            quorum: division.sets().iter().map(|set| set.chunks()).collect(),
            tasks: division.tasks(),
            backend: Some(
                done.last.as_ref().map_or_else(|| engine.backend(), |last| last.backend).to_string(),
            ),
            kernel: plan.plans().first().map(BackwardPlan::kernel),
            threads: engine.threads(),
            dtype: dtype.name(),
            shape,
            tokens,
            pairs,
            calls: done.calls,
            skipped: done.skipped,
            bytes_read: bytes + rows + forward.bytes(),
            bytes_written,
            workspace_bytes: plan.workspace_bytes(),
            fallback: fallback.map(ToString::to_string),
            ms,
        };
        report::json(&mut crate::foreign::stdout(), &report)?;
    } else {
        say(&format!(
            "wrote {}: shares of task {name} of {}, {} of {} queries and {} of {} keys, {} calls in {ms:.3} ms",
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
