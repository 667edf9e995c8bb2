//! The arguments of launches inside an error budget. The twin of `kernels/cuda/attention/budget.cuh`, field for field.

use super::args::AttentionArgs;

/// The only parameter of the kernels that attend or merge inside an error budget.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WithinArgs {
    /// The call.
    pub call: AttentionArgs,
    /// The error budget of the call.
    pub budget: Budget,
}

/// The limit of the left-out share, and the outputs that record the left-out sums.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Budget {
    /// `D` of partial states, f32 `[row][split]`; zero without partial states.
    pub part_d: u64,
    /// Finished rows: references in base-2 units, then `S`, then `D`, f32 `[3][row]`.
    pub left_out: u64,
    /// One [`WithinCounts`] per block of the attention kernel, in block order, or at the places of packed sequences.
    pub counts: u64,
    /// The largest `D / S` ([`odds`](elsa_core::attention::traversal::odds)).
    pub odds: f32,
    /// Places per head for packed sequences: the counts of sequence `i` start after as many places as blocks of rows
    /// fit before it, plus `i`. Zero if counts are in block order.
    pub places: i32,
}

/// Counts of one block of threads.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WithinCounts {
    /// Tiles of keys that at least one row attends.
    pub met: u32,
    /// Tiles among them that were left out.
    pub skipped: u32,
    /// Rows of the block.
    pub rows: u32,
    /// Zero.
    pub unused: u32,
}

// The device twin asserts the same sizes and offsets.
const _: () = {
    assert!(core::mem::offset_of!(WithinArgs, budget) == size_of::<AttentionArgs>());
    assert!(size_of::<Budget>() == 32 && size_of::<WithinCounts>() == 16);
};
