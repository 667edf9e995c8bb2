//! The arguments of launches within an error budget: the twin of `kernels/cuda/attention/budget.cuh`, field for field.

use super::args::AttentionArgs;

/// The only parameter of the kernels that compute or merge attention within an error budget.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WithinArgs {
    /// The attention call.
    pub call: AttentionArgs,
    /// The error budget of the call.
    pub budget: Budget,
}

/// Limit on the weights that may be left out, and the outputs that record the left-out weights.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Budget {
    /// Sums `D` of left-out weights for partial states, f32 `[row][split]`; zero without partial states.
    pub part_d: u64,
    /// Results of finished rows: references in base-2 units, then sums `S` of kept weights, then sums `D` of left-out
    /// weights, f32 `[3][row]`.
    pub left_out: u64,
    /// One [`WithinCounts`] per thread block of the attention kernel. Counts are in block order; for packed sequences
    /// they are in the order that `places` describes.
    pub counts: u64,
    /// Largest allowed `D / S` ([`odds`](elsa_core::attention::traversal::odds)).
    pub odds: f32,
    /// For packed sequences, the number of entries per head in `counts`; zero if counts are in block order. The entries
    /// of sequence `i` start at `i` plus the number of complete row blocks that the tokens before the sequence would
    /// fill.
    pub places: i32,
}

/// Counts of one thread block.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WithinCounts {
    /// Number of key tiles that at least one row attends.
    pub met: u32,
    /// Number of these tiles that were left out.
    pub skipped: u32,
    /// Number of rows of the block.
    pub rows: u32,
    /// Padding, zero.
    pub unused: u32,
}

// The device twin asserts the same sizes and offsets.
const _: () = {
    assert!(core::mem::offset_of!(WithinArgs, budget) == size_of::<AttentionArgs>());
    assert!(size_of::<Budget>() == 32 && size_of::<WithinCounts>() == 16);
};
