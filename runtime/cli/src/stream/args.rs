//! The flags of a streamed run.
// Doc comments of flags are their help texts, where brackets hold shapes.
#![allow(rustdoc::broken_intra_doc_links)]

use crate::args::values::bytes;
use clap::Args;

/// Tensors that stay in their files.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Streaming")]
pub struct StreamArgs {
    /// Hard limit of the memory of the process at its peak: bytes, or a number of KiB, MiB or GiB. Tensors stay in their
    /// files: keys and values pass the queries in chunks, and outputs leave part by part. The answer
    /// has the bits of one in memory
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true, value_parser = bytes, conflicts_with = "budget")]
    pub host_budget: Option<usize>,
    /// Hard limit of the memory that a run takes of a GPU. Where it shares the host's, the smaller of both limits holds
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true, value_parser = bytes, requires = "host_budget")]
    pub device_budget: Option<usize>,
    /// Chunks of X times the default of 4096 keys, rounded up to whole segments of 512 (ELSA-Lean). On a GPU of X times its
    /// own default, rounded up to a power of two of splits
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = multiple, requires = "host_budget")]
    pub eta: Option<f64>,
    /// Keep a journal beside the output, and go on where a run of the same inputs was killed
    #[arg(long, requires = "host_budget")]
    pub resume: bool,
}

impl StreamArgs {
    /// Whether the run is streamed.
    #[must_use]
    pub const fn is_asked(&self) -> bool {
        self.host_budget.is_some()
    }
}

/// A multiple of the default chunk.
fn multiple(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(x) if x > 0.0 && x <= 65536.0 => Ok(x),
        _ => Err("allowed: a positive number, at most 65536".into()),
    }
}
