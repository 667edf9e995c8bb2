//! Streams within a budget of GPU memory: chunks of keys and values pass queries that stay on the device.

use super::rows::{Reader, Writer};
use crate::fault::Fault;
use crate::text;
use crate::types::*;
use elsa_core::attention::{Lengths, Problem};
use elsa_runtime::{
    Engine, Fitted, GpuStream, KeysFrom, StreamBudget, StreamDivision, StreamError, StreamOptions,
    StreamTimes, StreamWants, peak_memory,
};
use std::sync::{Mutex, PoisonError, TryLockError};

/// Stream on a GPU, with the facts that its description states even while it runs.
#[derive(Debug)]
pub(crate) struct OnGpu {
    stream: Mutex<Box<GpuStream>>,
    problem: Problem,
    kernel: &'static str,
    resident_rows: usize,
    chunk_keys: usize,
    division: StreamDivision,
    /// Number of units of a run; 0 if it depends on the lengths of a run.
    units: usize,
    /// Bytes of device memory and of page-locked memory.
    bytes: [usize; 2],
}

/// Names the field of the options in an error of a budget. `taken` is the part of the host budget that the process already
/// uses.
fn refused(error: StreamError, given: &elsa_stream_options, taken: usize) -> Fault {
    let StreamError::Budget { budget, needed, .. } = error else { return error.into() };
    let (argument, budget, needed) = match budget == given.device_budget {
        true => ("device_budget", budget, needed),
        false => ("host_budget", given.host_budget, needed.saturating_add(taken)),
    };
    StreamError::Budget { argument, budget, needed }.into()
}

/// Returns an error in a library without GPU kernels, which then contains no code of streams on a GPU.
fn has_kernels() -> Result<(), Fault> {
    if cfg!(feature = "cuda") { Ok(()) } else { Err(StreamError::NoGpu.into()) }
}

impl OnGpu {
    /// Creates the stream with the most resident queries that the budgets allow.
    #[inline(never)]
    pub(crate) fn new(
        engine: &Engine,
        problem: &Problem,
        given: &elsa_stream_options,
        options: &StreamOptions,
    ) -> Result<OnGpu, Fault> {
        has_kernels()?;
        if given.block != 0 {
            let found = given.block;
            return Err(Fault::argument(format_args!("block: {found}; allowed: 0 with a device_budget")));
        }
        let taken = peak_memory().unwrap_or(0);
        let pinned = Some(given.host_budget.saturating_sub(taken));
        let budget = StreamBudget { device: Some(given.device_budget), pinned };
        let [rows, keys, splits, ..] = given.sizes;
        let division = StreamDivision { rows, keys, splits };
        let wants = StreamWants {
            output: options.written.output,
            lse: options.written.lse,
            states: options.written.states,
            eta: options.eta,
            division: (given.sizes != [0; 5]).then_some(division),
            ..StreamWants::new(KeysFrom::Function)
        };
        let stream = match GpuStream::fit(engine, problem, &wants, &budget) {
            Ok(Fitted::Gpu(stream, _)) => stream,
            Ok(Fitted::Cpu { reason, .. }) | Err(reason) => {
                return Err(refused(reason, given, taken));
            }
        };
        Ok(OnGpu {
            problem: *problem,
            kernel: stream.kernel(),
            resident_rows: stream.resident_rows(),
            chunk_keys: stream.division().keys,
            division: stream.division(),
            units: stream.count(&Lengths::default(), 0).map_or(0, |(units, _)| units),
            bytes: stream.bytes(),
            stream: Mutex::new(stream),
        })
    }

    pub(crate) fn problem(&self) -> &Problem {
        &self.problem
    }

    pub(crate) fn info(&self) -> elsa_stream_info {
        let [device_bytes, host_bytes] = self.bytes;
        let StreamDivision { rows, keys, splits, .. } = self.division;
        elsa_stream_info {
            backend: ELSA_BACKEND_CUDA,
            kernel: text::name(self.kernel),
            resident_rows: self.resident_rows,
            chunk_keys: self.chunk_keys,
            units: self.units,
            host_bytes,
            device_bytes,
            sizes: [rows, keys, splits, 1, 1],
            ..elsa_stream_info::default()
        }
    }

    /// Runs the units from `from` on. If a callback ended the run, the report comes with the failure.
    #[inline(never)]
    pub(crate) fn run(
        &self,
        lengths: &Lengths<'_>,
        source: &mut Reader,
        sink: &mut Writer,
        from: usize,
    ) -> Result<(elsa_stream_report, Option<Fault>), Fault> {
        has_kernels()?;
        let mut stream = match self.stream.try_lock() {
            Ok(stream) => stream,
            // A run overwrites anything that an earlier one has left in the memory.
            Err(TryLockError::Poisoned(stream)) => PoisonError::into_inner(stream),
            Err(TryLockError::WouldBlock) => {
                return Err(Fault::new(
                    ELSA_STATUS_BUSY,
                    &"stream: at work in another call; allowed: one call at a time on a GPU",
                ));
            }
        };
        let (units, _) = stream.count(lengths, from)?;
        match stream.run_between(lengths, source, sink, from) {
            Ok(times) => Ok((report_of(units, &times), None)),
            Err(e) => {
                let Some((operand, code)) = source.ended.or(sink.ended) else { return Err(e.into()) };
                let finished = sink.finished;
                let done = elsa_stream_report { code, operand, units, finished, ..Default::default() };
                Ok((done, Some(Fault::new(ELSA_STATUS_CALLBACK, &e))))
            }
        }
    }
}

fn report_of(units: usize, times: &StreamTimes) -> elsa_stream_report {
    elsa_stream_report {
        units,
        finished: units,
        parts: times.chunks,
        read_bytes: times.bytes,
        written_bytes: times.written,
        total_ms: times.total_ms,
        read_ms: times.fetch_ms,
        compute_ms: times.compute_ms,
        wait_ms: times.wait_ms,
        overlap: times.overlap(),
        ..elsa_stream_report::default()
    }
}
