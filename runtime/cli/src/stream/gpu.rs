//! A streamed run on a GPU: its memory within `--device-budget`, page-locked memory within what `--host-budget` leaves.

use super::args::StreamArgs;
use super::files::Files;
use super::report::Done;
use super::sink::Outputs;
use super::wanted::{Wanted, shapes};
use crate::error::{Error, say};
use crate::job::Job;
use crate::progress;
use crate::tensor::output::Writer;
use elsa_core::attention::Problem;
use elsa_runtime::{
    Engine, Fallback, Fitted, GpuStream, GpuStreamError, KeysFrom, PlanOptions, StreamBudget, StreamFit,
    StreamReport, StreamWants, Times, peak_memory,
};
use serde_json::{Map, Value};
use std::time::{Duration, Instant};

/// Bytes that the tool takes besides what streams account for: pieces of files, and what the driver loads late.
const SLACK: usize = 4 << 20;

/// What a run on a GPU is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// Bytes of the host's memory.
    pub host_budget: usize,
    /// Bytes of the device's memory; `None` is what is free.
    pub device_budget: Option<usize>,
    /// Whether short chains of f16 products may be summed in f16.
    pub half_scores: bool,
    /// Whether the CPU may compute instead.
    pub fallback: Fallback,
}

/// Makes a stream within the budgets, or returns why the CPU computes.
fn fitted(
    engine: &Engine,
    problem: &Problem,
    asked: &Asked,
    wanted: Wanted,
) -> Result<Result<(GpuStream, StreamFit), GpuStreamError>, Error> {
    let wants = StreamWants {
        keys: KeysFrom::Function,
        output: true,
        lse: wanted.lse,
        states: wanted.states,
        half_scores: asked.half_scores,
    };
    let taken = peak_memory().unwrap_or(0).saturating_add(SLACK);
    let pinned = Some(asked.host_budget.saturating_sub(taken));
    let budget = StreamBudget { device: asked.device_budget, pinned };
    // There one budget holds for both, the smaller one.
    let integrated = engine.device().is_some_and(|device| device.profile.integrated);
    match GpuStream::fit(engine, problem, &wants, &budget) {
        Ok(Fitted::Gpu(stream, fit)) => Ok(Ok((*stream, fit))),
        Ok(Fitted::Cpu { reason, .. }) => Ok(Err(reason)),
        Err(reason) if asked.fallback == Fallback::Cpu => Ok(Err(reason)),
        Err(GpuStreamError::Budget { budget, needed, .. })
            if integrated && asked.device_budget == Some(budget) =>
        {
            Err(failed(GpuStreamError::Budget { argument: "device", budget, needed }, taken))
        }
        Err(reason) => Err(failed(reason, taken)),
    }
}

/// The error of the tool. `taken` are bytes of the host that no page-locked memory may have.
fn failed(error: GpuStreamError, taken: usize) -> Error {
    match error {
        GpuStreamError::Problem(error) => Error::Problem(error),
        GpuStreamError::Argument { argument } => Error::Argument {
            argument,
            found: "given in a stream on a GPU".into(),
            allowed: "without it, or --fallback cpu".into(),
        },
        GpuStreamError::Budget { argument, budget, needed } => {
            let (argument, more) = match argument {
                "device" => ("device-budget", 0),
                _ => ("host-budget", taken),
            };
            let (found, allowed) = (budget.saturating_add(more), needed.saturating_add(more));
            Error::Argument {
                argument,
                found: format!("{found} bytes"),
                allowed: format!("at least {allowed} for this problem"),
            }
        }
        other => Error::Stream(other.to_string()),
    }
}

/// How a run on a GPU ended.
#[derive(Debug)]
pub enum Ran {
    /// With every output.
    Done(Box<Done>),
    /// The CPU is to compute, for this reason.
    ByTheCpu(String),
}

/// Why these flags have the CPU compute.
#[must_use]
pub fn unsupported(args: &StreamArgs, wanted: Wanted) -> Option<String> {
    if wanted.certificate {
        return Some("--certificate: not in a stream on a GPU, which measures no tensors".into());
    }
    let asked = [(args.resume, "resume"), (args.eta.is_some(), "eta")];
    let (_, flag) = asked.into_iter().find(|(given, _)| *given)?;
    Some(format!("--{flag}: not in a stream on a GPU, which divides keys by itself and keeps no journal"))
}

/// Runs a job on a GPU. Where the CPU is to compute, no output was made, or all of them are made anew.
///
/// # Errors
/// Whatever keeps the outputs from being complete, unless the CPU may take the GPU's place.
pub fn run(
    job: &Job,
    engine: &Engine,
    asked: &Asked,
    wanted: Wanted,
    writer: &impl Fn() -> Result<Writer, Error>,
) -> Result<Ran, Error> {
    let problem = &job.problem;
    let (mut stream, fit) = match fitted(engine, problem, asked, wanted)? {
        Ok(fitted) => fitted,
        Err(reason) => return Ok(Ran::ByTheCpu(reason.to_string())),
    };
    let shapes = shapes(job, wanted);
    let prepared = writer()?.prepared();
    let mut files = Files::of(job, &prepared)?;
    let mut outputs = Outputs::new(prepared, &shapes, None)?;
    let division = stream.division();
    let blocks = problem.spec().query.tokens().div_ceil(division.rows.max(1)).max(1);
    let chunks = problem.keys().div_ceil(division.keys.max(1)).max(1);
    let dims = problem.head_dim() + problem.value_dim();
    let operations = 2.0 * problem.rows() as f64 * problem.keys() as f64 * dims as f64;
    outputs.show(progress::bar((blocks * chunks) as u64, operations / 1e12));
    let start = Instant::now();
    let ran = stream.run_between(&job.lengths(), &mut files, &mut outputs);
    let ms = start.elapsed().as_secs_f64() * 1e3;
    job.unchanged()?;
    let times = match ran {
        Ok(times) => times,
        Err(reason @ GpuStreamError::Device(_)) if asked.fallback == Fallback::Cpu => {
            return Ok(Ran::ByTheCpu(reason.to_string()));
        }
        Err(reason) => return Err(failed(reason, 0)),
    };
    let [device, pinned] = stream.bytes();
    if let Err(error) = stream.close() {
        // The answer is complete.
        say(&format!("backend: cuda: {error}"));
    }
    outputs.commit()?;
    let elements = |operand| problem.memory(operand).map_or(0, |memory| memory.bytes() as u64);
    let written = shapes.iter().map(|(operand, ..)| elements(*operand)).sum();
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
    let heads = problem.heads() * problem.spec().query.batch();
    let done = Done {
        report: StreamReport {
            times: Times {
                total: time(times.total_ms),
                read: time(times.copy_ms),
                compute: time(times.compute_ms),
                wait: time(times.wait_ms),
                bytes: times.bytes,
                parts: times.chunks,
            },
            written,
            units: blocks,
        },
        ms,
        threads: engine.threads(),
        peak: peak_memory(),
        budget: asked.host_budget,
        backend: engine.backend(),
        kernel: kernel(engine, problem),
        dtype: problem.spec().dtype,
        resident_rows: division.rows.min(problem.spec().query.tokens()) * heads,
        chunk_keys: division.keys,
        account,
        unpacked: files.unpacked,
        fallback: None,
        certificate: None,
    };
    Ok(Ran::Done(Box::new(done)))
}

/// Name of the kernel that passes the chunks, which is that of the whole.
fn kernel(engine: &Engine, problem: &Problem) -> &'static str {
    engine.plan(problem, &PlanOptions::default()).map_or("", |plan| plan.kernel())
}
