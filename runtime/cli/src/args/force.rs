//! The flag that allows outputs to replace inputs.

use clap::Args;
use elsa_files::Reads;

/// Permission for outputs to replace inputs of a call.
#[derive(Args, Debug, Clone, Copy)]
pub struct ForceArgs {
    /// Let an output replace a file that this command reads. Without it, an output may still add tensors to a
    /// .safetensors input, which keeps its own
    #[arg(long)]
    pub force: bool,
}

impl ForceArgs {
    /// Creates an empty list of input files. With `--force`, outputs may replace the files that are added to it.
    #[must_use]
    pub fn reads(self) -> Reads {
        Reads::new(self.force)
    }
}
