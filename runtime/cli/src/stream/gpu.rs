//! A streamed run on a GPU. Its device memory stays within `--device-budget`. Its page-locked memory stays within the
//! part of `--host-budget` that the process does not use for anything else.

use super::args::StreamArgs;
use super::commit::journal_of;
use super::files::Files;
use super::report::{self, StreamedRun};
use super::request::{OutputRequest, shapes};
use super::sink::Outputs;
use super::start::StreamStart;
use crate::error::{Error, say};
use crate::job::Job;
use crate::progress;
use elsa_core::attention::Problem;
use elsa_files::{FileError, Writer};
use elsa_runtime::{
    Engine, Fallback, Fitted, GpuStream, KeysFrom, PlanOptions, RunError, StreamBudget, StreamDivision,
    StreamError, StreamFit, StreamReport, StreamWants, Times, peak_memory,
};
use serde_json::{Map, Value};
use std::time::{Duration, Instant};

/// Bytes that an error message adds to the smallest sufficient budget. The next process may have more pages of the
/// program in memory than this one. After planning, it also needs some memory to open its files.
pub const MARGIN: usize = 3 << 20;

/// Memory, in bytes, for pieces of files and for modules that the driver loads late. The stream does not include these
/// bytes in its own count.
const SLACK: usize = 4 << 20;

/// Creates a stream that fits the budgets. The inner error is the reason why the CPU computes instead.
fn fitted(
    engine: &Engine,
    problem: &Problem,
    args: &StreamArgs,
    half_scores: bool,
    wanted: OutputRequest,
    division: Option<StreamDivision>,
) -> Result<Result<(GpuStream, StreamFit), StreamError>, Error> {
    let wants = StreamWants {
        keys: KeysFrom::Function,
        output: true,
        lse: wanted.lse,
        states: wanted.states,
        half_scores,
        eta: args.eta(),
        division,
    };
    // A resumed process may already use a little more memory than the process that chose the division.
    let slack = if division.is_some() { SLACK / 2 } else { SLACK };
    let taken = peak_memory().unwrap_or(0).saturating_add(slack);
    let pinned = Some(args.budget().saturating_sub(taken));
    let budget = StreamBudget { device: args.device_budget, pinned };
    // An integrated GPU has one memory, to which the smaller of the two budgets applies.
    let integrated = engine.device().is_some_and(|device| device.profile.integrated);
    match GpuStream::fit(engine, problem, &wants, &budget) {
        Ok(Fitted::Gpu(stream, fit)) => Ok(Ok((*stream, fit))),
        Ok(Fitted::Cpu { reason, .. }) => Ok(Err(reason)),
        Err(reason) if engine.fallback() == Fallback::Cpu => Ok(Err(reason)),
        Err(StreamError::Budget { budget, needed, .. })
            if integrated && args.device_budget == Some(budget) =>
        {
            Err(failed(StreamError::Budget { argument: "device", budget, needed }, taken))
        }
        Err(reason) => Err(failed(reason, taken)),
    }
}

/// Converts a stream's error to an error of the tool. `taken` is the number of bytes of the host budget that are not
/// available for page-locked memory.
fn failed(error: StreamError, taken: usize) -> Error {
    match error {
        StreamError::Argument(error) => Error::Problem(error),
        StreamError::Unsupported { argument, allowed } => Error::Argument {
            argument,
            found: "given in a stream on a GPU".into(),
            allowed: format!("{allowed}, or --fallback cpu"),
        },
        StreamError::Budget { argument, budget, needed } => {
            let (argument, more) = match argument {
                "device" => ("device-budget", 0),
                _ => ("host-budget", taken),
            };
            let margin = if more > 0 { MARGIN } else { 0 };
            let found = budget.saturating_add(more);
            let allowed = needed.saturating_add(more).saturating_add(margin);
            Error::Argument {
                argument,
                found: format!("{found} bytes"),
                allowed: format!("at least {allowed} for this problem"),
            }
        }
        other => Error::Stream(other.to_string()),
    }
}

/// Result of a run on a GPU.
#[derive(Debug)]
pub enum GpuOutcome {
    /// The run is complete, with every output.
    Complete(Box<StreamedRun>),
    /// The CPU has to compute. The text states the reason.
    ByTheCpu(String),
}

/// Runs a job on a GPU. `half_scores` allows the GPU to sum short chains of f16 products in f16. `by_the_cpu` is the
/// line with which the journal of a run on the CPU names its kernel. If the result is [`GpuOutcome::ByTheCpu`], the caller
/// must compute all outputs on the CPU.
///
/// # Errors
/// Returns an error if the GPU does not complete the outputs and the CPU must not compute them instead.
pub fn run(
    job: &Job,
    engine: &Engine,
    args: &StreamArgs,
    (half_scores, by_the_cpu): (bool, &str),
    wanted: OutputRequest,
    writer: &impl Fn() -> Result<Writer, Error>,
) -> Result<GpuOutcome, Error> {
    let problem = &job.problem;
    let (prepared, lengths) = (writer()?.prepared(), job.lengths());
    let device = engine.device().map_or("", |device| &device.name);
    let sums = if half_scores { " half scores" } else { "" };
    let by = format!("{device} {}{sums}", kernel(engine, problem));
    let start = match StreamStart::new(job, &prepared, args.resume, &by) {
        Err(_)
            if engine.fallback() == Fallback::Cpu
                && StreamStart::new(job, &prepared, args.resume, by_the_cpu).is_ok() =>
        {
            return Ok(GpuOutcome::ByTheCpu("--resume: the journal is of a run on the CPU".into()));
        }
        start => start?,
    };
    let division = start.sizes().map(|[rows, keys, splits, ..]| StreamDivision { rows, keys, splits });
    let (mut stream, fit) = match fitted(engine, problem, args, half_scores, wanted, division)? {
        Ok(fitted) => fitted,
        Err(reason) => return Ok(GpuOutcome::ByTheCpu(reason.to_string())),
    };
    let shapes = shapes(job, wanted);
    let mut files = Files::of(job, &prepared)?;
    let journal = prepared.first().map(|file| journal_of(&file.path));
    let mut outputs = Outputs::new(prepared, &shapes, start.stage())?;
    let (division, from) = (stream.division(), start.finished());
    let (units, parts) = stream.count(&lengths, 0).map_err(|e| failed(e, 0))?;
    start.note_in(&mut outputs, [division.rows, division.keys, division.splits, 1, 1], units)?;
    if let Some(line) = report::refusals(fit.refused, stream.resident_rows(), division.keys) {
        say(&line);
    }
    outputs.show(progress::bar(parts as u64, 2.0 * job.multiplications() / 1e12));
    let start = Instant::now();
    let ran = stream.run_between(&lengths, &mut files, &mut outputs, from);
    let ms = start.elapsed().as_secs_f64() * 1e3;
    job.unchanged()?;
    let times = match ran {
        Ok(times) => times,
        Err(reason @ StreamError::Run(RunError::Device(_))) if engine.fallback() == Fallback::Cpu => {
            // The CPU starts from the beginning, because it has other units and produces other bits.
            if let Some(path) = journal.filter(|_| args.resume) {
                let gone = std::fs::remove_file(&path);
                gone.map_err(|source| FileError::Write { argument: "resume", path, source })?;
            }
            return Ok(GpuOutcome::ByTheCpu(reason.to_string()));
        }
        Err(reason) => return Err(failed(reason, 0)),
    };
    let ([device, pinned], resident_rows) = (stream.bytes(), stream.resident_rows());
    if let Err(error) = stream.close() {
        // The outputs are complete, so the failure is only reported.
        say(&format!("backend: cuda: {error}"));
    }
    outputs.commit()?;
    let time = |ms: f64| Duration::from_secs_f64(ms.max(0.0) / 1e3);
    let account: Map<String, Value> = [
        ("device", device),
        ("pinned", pinned),
        ("n_cap", fit.n_cap),
        ("n_parallel", fit.n_parallel),
        ("refused", fit.refused),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), Value::from(value)))
    .collect();
    let done = StreamedRun {
        report: StreamReport {
            times: Times {
                total: time(times.total_ms),
                read: time(times.copy_ms),
                compute: time(times.compute_ms),
                wait: time(times.wait_ms),
                bytes: times.bytes,
                parts: times.chunks,
            },
            written: times.written,
            units,
            certificate: None,
        },
        ms,
        threads: engine.threads(),
        peak: peak_memory(),
        budget: args.budget(),
        backend: engine.backend(),
        kernel: kernel(engine, problem),
        dtype: problem.spec().dtype,
        resident_rows,
        chunk_keys: division.keys,
        account,
        refused: fit.refused,
        unpacked: files.unpacked,
        fallback: None,
        certificate: None,
    };
    Ok(GpuOutcome::Complete(Box::new(done)))
}

/// Returns the name of the kernel that processes the chunks. It is the kernel that a plan of the complete problem
/// would use.
fn kernel(engine: &Engine, problem: &Problem) -> &'static str {
    engine.plan(problem, &PlanOptions::default()).map_or("", |plan| plan.kernel())
}
