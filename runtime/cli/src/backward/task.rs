//! `elsa backward --task`: computes the shares of the gradients for one task of a division by quorums, and writes the
//! shares to a file. The computation needs only the tokens of the task.

use super::args::BackwardArgs;
use super::forward::{Forward, like_output};
use crate::error::Error;
use crate::job::floats;
use crate::progress;
use crate::task::load::{Loaded, load, refuse};
use crate::task::origin;
use crate::task::planned;
use crate::task::report::{Finished, tell};
use elsa_core::attention::backward::{BackwardInputs, BackwardProblem};
use elsa_files::sums::Sums;
use elsa_files::task::{Description, Kind, Whole};
use elsa_files::{Output, Writer};
use elsa_runtime::{BackwardPlan, BackwardPlanOptions, BackwardTaskPlan, TaskGradients};

/// Runs the command.
///
/// # Errors
/// Returns an error if a failure leaves the shares incomplete. In this case, no file has changed.
pub fn task(args: &BackwardArgs) -> Result<(), Error> {
    let outputs = [(&args.dq_out, "dq-out"), (&args.dk_out, "dk-out"), (&args.dv_out, "dv-out")];
    refuse("task", &outputs.map(|(source, argument)| (source.is_some(), argument)))?;
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
    let options = BackwardPlanOptions::default().budget(args.engine.host.budget);
    let mut plan = BackwardTaskPlan::new(&engine, &problem, &division, &name, held, &options)
        .map_err(planned("shares-out"))?;
    let mut writer = Writer::new(args.reads());
    writer.add_archive("shares-out", path)?;

    let given = job.inputs()?;
    let run = args.task.run_id.as_deref();
    let of = |upstream| Sums::of(&job.problem, &given, Some(plan.task()), upstream);
    if let Some(state) = &args.state {
        origin::check(state, run, Some(plan.task()), || Ok(of(None)?))?;
    }
    let whole = Whole::of(&division, &job.problem, plan.totals(), &given.lengths, run);
    let sums = match run {
        Some(_) => Sums::default(),
        None => of(Some(&floats("d-out", &upstream)?))?,
    };
    let mut shares = TaskGradients::zeros(&plan.sizes()).map_err(planned("shares-out"))?;
    let inputs = BackwardInputs {
        forward: given,
        output: forward.output()?,
        upstream: floats("d-out", &upstream)?,
        statistics: forward.statistics()?,
    };
    let pairs = plan.task().pair_count() as f64 * whole.sequences() as f64;
    let dims = (job.problem.head_dim() + job.problem.value_dim()) as f64;
    let (done, ms) = progress::timed(5.0 * pairs * dims, || plan.run(&inputs, shares.borrow()))?;
    let bytes_written = 4 * (shares.query.len() + shares.key.len() + shares.value.len());
    let description = Description { kind: Kind::Gradients, whole, path: name };
    let arrays = description.shares_to_arrays(plan.task(), sums, shares);
    job.unchanged()?;
    upstream.unchanged()?;
    forward.unchanged()?;
    writer.commit(&[Output::Archive(arrays)])?;

    let rows = upstream.shape().iter().product::<usize>() * upstream.dtype().size();
    let last = done.last_report.as_ref();
    tell(
        args.json,
        &engine,
        Finished {
            file: path,
            description: &description,
            division: &division,
            task: plan.task(),
            backend: Some(last.map_or_else(|| engine.backend(), |last| last.backend)),
            kernel: plan.plans().first().map(BackwardPlan::kernel),
            calls: [done.calls, done.skipped],
            bytes: [bytes + rows + forward.bytes(), bytes_written, plan.workspace_bytes()],
            fallback: last.and_then(|last| last.fallback.as_ref()).map(ToString::to_string),
            ms,
        },
    )
}
