//! What a streamed run did.

use elsa_runtime::{Account, StreamPlan, StreamReport};
use serde::Serialize;
use serde_json::{Map, Value};
use std::fmt;
use std::time::Duration;

/// A streamed run that is complete.
#[derive(Debug)]
pub struct Done {
    /// What the run did.
    pub report: StreamReport,
    /// Its duration.
    pub ms: f64,
    /// Threads of the engine.
    pub threads: usize,
    /// Most memory that the process has had, in bytes.
    pub peak: Option<usize>,
    /// Its plan.
    pub plan: StreamPlan,
    /// Bytes that the process may have had.
    pub budget: usize,
}

/// The object that `--json` prints.
#[derive(Debug, Serialize)]
pub struct Report<S> {
    what: &'static str,
    backend: String,
    kernel: &'static str,
    threads: usize,
    dtype: &'static str,
    shape: S,
    ms: f64,
    read_ms: f64,
    compute_ms: f64,
    wait_ms: f64,
    total_ms: f64,
    overlap_eff: f64,
    bytes_read: u64,
    bytes_written: u64,
    resident_rows: usize,
    chunk_keys: usize,
    units: usize,
    parts: u64,
    host_budget: usize,
    peak_rss_bytes: Option<usize>,
    account: Map<String, Value>,
}

/// The parts of an account that have bytes, and their sum.
#[must_use]
pub fn accounted(account: &Account) -> Map<String, Value> {
    let parts = account.iter().filter(|(_, bytes)| *bytes > 0);
    let parts = parts.map(|(part, bytes)| (part.name().to_string(), Value::from(bytes)));
    parts.chain([("total".to_string(), Value::from(account.total()))]).collect()
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

impl Done {
    /// The object that `--json` prints, for a problem of these sizes.
    #[must_use]
    pub fn report<S: Serialize>(&self, shape: S) -> Report<S> {
        let (times, plan) = (&self.report.times, &self.plan);
        Report {
            what: "run",
            backend: plan.backend().to_string(),
            kernel: plan.kernel(),
            threads: self.threads,
            dtype: plan.problem().spec().dtype.name(),
            shape,
            ms: self.ms,
            read_ms: ms(times.read),
            compute_ms: ms(times.compute),
            wait_ms: ms(times.wait),
            total_ms: ms(times.total),
            overlap_eff: times.overlap(),
            bytes_read: times.bytes,
            bytes_written: self.report.written,
            resident_rows: plan.resident_rows(),
            chunk_keys: plan.choice().chunk,
            units: self.report.units,
            parts: times.parts,
            host_budget: self.budget,
            peak_rss_bytes: self.peak,
            account: accounted(plan.account()),
        }
    }
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (times, plan) = (&self.report.times, &self.plan);
        write!(
            f,
            "in {:.3} ms ({}, {}, {} threads; read {:.3} ms, computed {:.3} ms, waited {:.3} ms, overlap {:.3}; {} bytes \
             read, {} written; {} resident rows, chunks of {} keys, {} units",
            self.ms,
            plan.backend(),
            plan.kernel(),
            self.threads,
            ms(times.read),
            ms(times.compute),
            ms(times.wait),
            times.overlap(),
            times.bytes,
            self.report.written,
            plan.resident_rows(),
            plan.choice().chunk,
            self.report.units,
        )?;
        if let Some(peak) = self.peak {
            write!(f, "; peak {peak} of {} bytes", self.budget)?;
        }
        write!(f, ")")
    }
}
