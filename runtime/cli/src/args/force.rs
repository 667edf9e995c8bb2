//! The flag that gives up files that a call reads.

use clap::Args;
use elsa_files::Reads;

/// Whether outputs replace what a call reads.
#[derive(Args, Debug, Clone, Copy)]
pub struct ForceArgs {
    /// Let an output replace a file that this command reads. Without it a .safetensors file that is read may get further
    /// tensors, and keeps those that it has
    #[arg(long)]
    pub force: bool,
}

impl ForceArgs {
    /// The files that the call reads: none so far.
    #[must_use]
    pub fn reads(self) -> Reads {
        Reads::new(self.force)
    }
}
