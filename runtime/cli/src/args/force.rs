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
    /// Creates the empty set of files that the call reads.
    #[must_use]
    pub fn reads(self) -> Reads {
        Reads::new(self.force)
    }
}
