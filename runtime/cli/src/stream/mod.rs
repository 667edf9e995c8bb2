//! Streamed runs: tensors stay in their files, and the process stays within a memory budget.
//!
//! [`Files`] reads inputs by range, [`Outputs`] writes outputs part by part, and [`journal`] records the point from
//! which a killed run resumes.

mod args;
mod commit;
mod files;
mod gpu;
pub mod journal;
mod report;
mod request;
mod sink;
mod start;

pub use args::StreamArgs;
pub use files::Files;
pub use report::{StreamedRun, accounted};
pub use request::OutputRequest;
pub use sink::Outputs;

use crate::args::EngineArgs;
use crate::certified::Certified;
use crate::error::{Error, say};
use crate::flag::flag;
use crate::job::Job;
use crate::progress;
use elsa_core::attention::plan::TensorCores;
use elsa_core::attention::{Operand, Problem};
use elsa_core::plan::ChooseError;
use elsa_files::{FileError, MemoryError, Writer};
use elsa_runtime::{
    Backend, Engine, Fallback, PlanError, StreamCertificate, StreamError, StreamOptions, StreamPlan,
    UnitSizes, Written, peak_memory,
};
use request::shapes;
use start::StreamStart;
use std::time::Instant;

/// Runs a job whose tensors stay in their files. `writer` prepares the output files.
///
/// # Errors
/// Returns an error for any failure that leaves the outputs incomplete. The targets are then unchanged. If the run
/// keeps a journal, the partial files stay next to the targets.
pub fn run(
    job: &Job,
    args: &StreamArgs,
    engine: &EngineArgs,
    wanted: OutputRequest,
    writer: impl Fn() -> Result<Writer, Error>,
) -> Result<StreamedRun, Error> {
    let problem = &job.problem;
    let options = engine.plan_options();
    let engine = engine.engine()?;
    let by = format!("{} {}", engine.kernel(), options.block);
    let mut fallback = None;
    if engine.backend() == Backend::Cuda {
        if options.tensor_cores != TensorCores::Off {
            log::warn!("--tensor-cores has no effect: a stream is computed by f32 products");
        }
        let done = match wanted.certificate {
            true => gpu::GpuOutcome::ByTheCpu(
                "--certificate: not in a stream on a GPU, which measures no tensors".into(),
            ),
            false => gpu::run(job, &engine, args, (options.half_scores, &by), wanted, &writer)?,
        };
        match done {
            gpu::GpuOutcome::Complete(done) => return Ok(*done),
            gpu::GpuOutcome::ByTheCpu(reason) if engine.fallback() == Fallback::Fail => {
                return Err(Error::Stream(reason));
            }
            gpu::GpuOutcome::ByTheCpu(reason) => {
                say(&format!("{reason}; the CPU computes"));
                fallback = Some(reason);
            }
        }
    }
    let prepared = writer()?.prepared();
    let shapes = shapes(job, wanted);
    let start = StreamStart::new(job, &prepared, args.resume, &by)?;
    let written = Written { output: true, lse: wanted.lse, states: wanted.states };
    let options = StreamOptions::new(args.budget())
        .plan(options.certify(wanted.certificate))
        .written(written)
        .device_budget(args.device_budget)
        .eta(args.eta())
        .resumable(args.resume)
        .sizes(start.sizes().map(|[sequences, heads, tiles, vectors, chunk]| UnitSizes {
            sequences,
            heads,
            tiles,
            vectors,
            chunk,
        }));
    // The engine checks the budget first, so that a budget that is too small is refused before any archive is unpacked.
    engine.stream(problem, &options).map_err(|e| refused(&engine, problem, &options, e))?;
    let mut files = Files::of(job, &prepared)?;
    let mut outputs = Outputs::new(prepared, &shapes, start.stage())?;
    let mut stream = engine.fit_stream(problem, &options).map_err(|e| match e {
        StreamError::Plan(e) => refused(&engine, problem, &options, e),
        e => failed(job, &outputs, e),
    })?;
    let (plan, refused) = (stream.plan().clone(), stream.fit().refused);
    let (lengths, from) = (job.lengths(), start.finished());
    let (units, parts) = plan.count(&lengths, 0).map_err(|e| failed(job, &outputs, e))?;
    if let Some(line) = report::refusals(refused, plan.resident_rows(), plan.choice().chunk) {
        say(&line);
    }
    let UnitSizes { sequences, heads, tiles, vectors, chunk } = plan.choice().sizes();
    start.note_in(&mut outputs, [sequences, heads, tiles, vectors, chunk], units)?;
    outputs.show(progress::bar(parts as u64, 2.0 * job.multiplications() / 1e10));
    let start = Instant::now();
    let ran = stream.run(&lengths, &mut files, &mut outputs, from);
    let ms = start.elapsed().as_secs_f64() * 1e3;
    // If a file has changed, some of the data may be from its old contents and some from the new.
    job.unchanged()?;
    let report = ran.map_err(|e| failed(job, &outputs, e))?;
    let certificate = report.certificate.as_ref().and_then(StreamCertificate::certificate);
    let certificate = certificate.map(|certificate| Certified::of(&certificate));
    outputs.commit()?;
    Ok(StreamedRun {
        report,
        ms,
        threads: engine.threads(),
        peak: peak_memory(),
        budget: args.budget(),
        backend: plan.backend(),
        kernel: plan.kernel(),
        dtype: problem.spec().dtype,
        resident_rows: plan.resident_rows(),
        chunk_keys: plan.choice().chunk,
        account: accounted(plan.account()),
        refused,
        unpacked: files.unpacked,
        fallback,
        certificate,
    })
}

/// Converts the error of a streamed run to an error of the tool.
fn failed(job: &Job, outputs: &Outputs, e: StreamError) -> Error {
    match e {
        StreamError::Plan(e) => Error::Plan(e),
        StreamError::Argument(e) => Error::Problem(e),
        StreamError::Run(e) => Error::Run(e),
        StreamError::Memory { bytes } => MemoryError { argument: "host-budget", bytes }.into(),
        StreamError::Read { operand, source, .. } => match job.tensor(operand) {
            Some(tensor) => {
                let (argument, path) = (flag(operand.argument()), tensor.path().to_path_buf());
                FileError::Read { argument, path, source }.into()
            }
            None => Error::Stream(source.to_string()),
        },
        StreamError::Write { operand, source, .. } => {
            let (argument, path) = outputs.target(operand);
            FileError::Write { argument, path, source }.into()
        }
        StreamError::Note { source, .. } => {
            let (_, path) = outputs.target(Operand::Output);
            FileError::Write { argument: "resume", path: commit::journal_of(&path), source }.into()
        }
        other => Error::Stream(other.to_string()),
    }
}

/// Builds the plan of a streamed run within `host_budget` bytes, for `elsa info`.
///
/// # Errors
/// Returns an error if the budget is too small, or exceeds the memory of the machine.
pub fn plan(engine: &Engine, problem: &Problem, host_budget: usize) -> Result<StreamPlan, Error> {
    let options = StreamOptions::new(host_budget);
    engine.stream(problem, &options).map_err(|e| refused(engine, problem, &options, e))
}

/// Converts the error of a plan to an error of the tool. If a budget is too small, the message names a sufficient
/// budget; for a resumed run, it also names a budget that is sufficient for a new run.
fn refused(engine: &Engine, problem: &Problem, options: &StreamOptions, error: PlanError) -> Error {
    let PlanError::Refused(ChooseError::HostBudget { needed, budget }) = error else { return error.into() };
    let enough = needed.saturating_add(gpu::MARGIN);
    let anew = options.host_budget(0).sizes(None);
    let allowed = match (options.sizes, engine.stream(problem, &anew)) {
        (Some(_), Err(PlanError::Refused(ChooseError::HostBudget { needed, .. }))) => format!(
            "at least {enough} for this problem as the journal divides it, or {} for a run from the start, without the journal",
            needed.saturating_add(gpu::MARGIN)
        ),
        _ => format!("at least {enough} for this problem"),
    };
    Error::Argument { argument: "host-budget", found: format!("{budget} bytes"), allowed }
}
