//! Report of a run on Tensor Cores, as `elsa run` and `elsa verify` print it.

use elsa_core::attention::certificate::Executed;
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
    /// `true` if operands were rounded to one f16 value each.
    pub one_product: bool,
}

impl TensorCores {
    /// Returns the report of a run that executed `executed`.
    #[must_use]
    pub fn of(RefusedBlocks { refused, blocks }: RefusedBlocks, executed: &Executed) -> TensorCores {
        TensorCores { refused, blocks, one_product: executed.one_product }
    }
}

impl fmt::Display for TensorCores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TensorCores { refused, blocks, one_product } = *self;
        let products = if one_product { ", one f16 product each" } else { "" };
        write!(f, "Tensor Cores{products}; f32 products for {refused} of {blocks} blocks of rows")
    }
}
