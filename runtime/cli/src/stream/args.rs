//! The flags of a streamed run.
// Doc comments of flags are their help texts, in which brackets enclose shapes and are not links.
#![allow(rustdoc::broken_intra_doc_links)]

use crate::args::values::bytes;
use clap::Args;

/// Tensors that stay in their files.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Streaming")]
pub struct StreamArgs {
    /// Hard limit of the process's peak memory. Bytes, or a number of KiB, MiB or GiB. Tensors stay in their files:
    /// keys and values are read in chunks, and outputs are written part by part. On the CPU the
    /// results have the bits of an in-memory run. With --quorum, tasks are divided until they fit
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true, value_parser = bytes, conflicts_with = "budget")]
    pub host_budget: Option<usize>,
    /// Hard limit of the GPU memory of a run. If the GPU shares the host's memory, the smaller of both limits holds
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true, value_parser = bytes, requires = "host_budget")]
    pub device_budget: Option<usize>,
    /// Chunk size as a multiple X of the default of 4096 keys, rounded up to whole segments of 512 (ELSA-Lean). On a
    /// GPU, X times its own default, rounded up to a power of two of splits
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = multiple, requires = "host_budget")]
    pub eta: Option<f64>,
    /// Keep a journal next to the output, and resume a killed run of the same inputs
    #[arg(long, requires = "host_budget")]
    pub resume: bool,
}

impl StreamArgs {
    /// Returns `true` if the run is streamed.
    #[must_use]
    pub const fn is_asked(&self) -> bool {
        self.host_budget.is_some()
    }

    /// Returns the limit of the process's memory.
    #[must_use]
    pub fn budget(&self) -> usize {
        self.host_budget.unwrap_or(usize::MAX)
    }

    /// Returns the chunk size as a multiple of the default chunk.
    #[must_use]
    pub fn eta(&self) -> f64 {
        self.eta.unwrap_or(1.0)
    }
}

/// Parses a chunk size that is given as a multiple of the default chunk.
fn multiple(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(x) if x > 0.0 && x <= 65536.0 => Ok(x),
        _ => Err("allowed: a positive number, at most 65536".into()),
    }
}
