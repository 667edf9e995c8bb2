//! Report of a run on Tensor Cores, as `elsa run` and `elsa verify` print it.

use elsa_runtime::RefusedBlocks;
use serde::Serialize;
use std::fmt;

/// Report of a run on Tensor Cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TensorCores {
    /// Number of blocks of rows that the guard refused, so that f32 products computed them.
    pub refused: usize,
    /// Number of blocks of rows.
    pub blocks: usize,
}

impl TensorCores {
    /// Returns the report of a run.
    #[must_use]
    pub fn of(RefusedBlocks { refused, blocks }: RefusedBlocks) -> TensorCores {
        TensorCores { refused, blocks }
    }
}

impl fmt::Display for TensorCores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor Cores; f32 products for {} of {} blocks of rows", self.refused, self.blocks)
    }
}
