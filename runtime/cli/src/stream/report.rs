//! Report of a streamed run.

use crate::certified::Certified;
use crate::report::{count, object};
use elsa_core::dtype::DType;
use elsa_runtime::{Account, Backend, StreamReport};
use serde::Serialize;
use serde_json::{Map, Value};
use std::fmt;
use std::time::Duration;

/// A completed streamed run.
#[derive(Debug)]
pub struct StreamedRun {
    /// Report of the run. For a run on a GPU, the times are measured on the device, and the time of the copies to the
    /// device counts as reading time.
    pub report: StreamReport,
    /// Duration of the run in milliseconds.
    pub ms: f64,
    /// Number of threads of the engine.
    pub threads: usize,
    /// Peak memory of the process, in bytes.
    pub peak: Option<usize>,
    /// The host budget: the maximum memory of the process, in bytes.
    pub budget: usize,
    /// Back end of the run.
    pub backend: Backend,
    /// Name of the kernel.
    pub kernel: &'static str,
    /// Element type of the tensors.
    pub dtype: DType,
    /// Number of query rows that stayed in memory while the keys streamed past.
    pub resident_rows: usize,
    /// Number of keys per chunk.
    pub chunk_keys: usize,
    /// Memory by purpose, in bytes.
    pub account: Map<String, Value>,
    /// Number of times that the system or the driver refused memory. After each refusal, a division with smaller parts
    /// was tried.
    pub refused: usize,
    /// Size of the nameless files into which inputs were unpacked for the run, in bytes.
    pub unpacked: u64,
    /// Reason why the CPU computed instead of a GPU; `None` if the CPU did not replace a GPU.
    pub fallback: Option<String>,
    /// The certificate, if requested.
    pub certificate: Option<Certified>,
}

/// Returns the entries of an account that are not zero, and the total.
#[must_use]
pub fn accounted(account: &Account) -> Map<String, Value> {
    let parts = account.iter().filter(|(_, bytes)| *bytes > 0);
    let parts = parts.map(|(part, bytes)| (part.name().to_string(), Value::from(bytes)));
    parts.chain([("total".to_string(), Value::from(account.total()))]).collect()
}

/// Returns a message about refused memory; `None` if no memory was refused. The message contains the number of rows and
/// the number of keys per chunk of the division that fits.
#[must_use]
pub fn refusals(refused: usize, rows: usize, keys: usize) -> Option<String> {
    let times = if refused == 1 { "once".to_owned() } else { format!("{refused} times") };
    (refused > 0).then(|| format!("memory was refused {times}: {rows} rows stay, in chunks of {keys} keys"))
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

impl StreamedRun {
    /// Builds the object that `--json` prints, for a problem of the given shape.
    pub fn report(&self, shape: impl Serialize) -> impl Serialize {
        let times = &self.report.times;
        object! {
            what: "run",
            backend: self.backend.to_string(),
            kernel: self.kernel,
            threads: self.threads,
            dtype: self.dtype.name(),
            shape: shape,
            ms: self.ms,
            read_ms: ms(times.read),
            compute_ms: ms(times.compute),
            wait_ms: ms(times.wait),
            total_ms: ms(times.total),
            overlap_eff: times.overlap(),
            bytes_read: times.bytes,
            bytes_written: self.report.written,
            resident_rows: self.resident_rows,
            chunk_keys: self.chunk_keys,
            units: self.report.units,
            parts: times.parts,
            host_budget: self.budget,
            peak_rss_bytes: self.peak,
            account: &self.account,
            refused: self.refused,
            unpacked_bytes: self.unpacked,
            fallback: &self.fallback,
        }
    }
}

impl fmt::Display for StreamedRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = &self.report.times;
        write!(
            f,
            "in {:.3} ms ({}, {}, {}; read {:.3} ms, computed {:.3} ms, waited {:.3} ms, overlap {:.3}; {} bytes \
             read, {} written; {} resident rows, chunks of {} keys, {}",
            self.ms,
            self.backend,
            self.kernel,
            count(self.threads as u64, "thread"),
            ms(times.read),
            ms(times.compute),
            ms(times.wait),
            times.overlap(),
            times.bytes,
            self.report.written,
            self.resident_rows,
            self.chunk_keys,
            count(self.report.units as u64, "unit"),
        )?;
        if let Some(peak) = self.peak {
            write!(f, "; peak {peak} of {} bytes", self.budget)?;
        }
        write!(f, ")")
    }
}
