//! The arguments of launches inside an error budget. The twin of `kernels/cuda/attention/budget.cuh`, field for field.

use super::args::AttentionArgs;

/// The only parameter of the kernels that attend, and merge, inside an error budget.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WithinArgs {
    /// The call.
    pub call: AttentionArgs,
    /// What may be left out.
    pub budget: Budget,
}

/// What may be left out, and where what was left out is written.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Budget {
    /// `D` of partial states, f32 `[row][split]`; zero without partial states.
    pub part_d: u64,
    /// Of finished rows the references in base-2 units, then `S`, then `D`: f32 `[3][row]`.
    pub left_out: u64,
    /// A [`WithinCounts`] of each block of the attention kernel, in the order of blocks, or in places of packed sequences.
    pub counts: u64,
    /// The largest `D / S` ([`odds`](elsa_core::attention::traversal::odds)).
    pub odds: f32,
    /// Of packed sequences the number of places of a head, of which sequence `i` counts behind as many as blocks of rows fit
    /// before it and `i` more; zero where blocks count in their order.
    pub places: i32,
}

/// What a block of threads counts.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WithinCounts {
    /// Tiles of keys that some row attends.
    pub met: u32,
    /// Of these, tiles that were left out.
    pub skipped: u32,
    /// Rows of the block.
    pub rows: u32,
    /// Zero.
    pub unused: u32,
}

// The sizes and offsets that the device twin asserts too.
const _: () = {
    assert!(core::mem::offset_of!(WithinArgs, budget) == size_of::<AttentionArgs>());
    assert!(size_of::<Budget>() == 32 && size_of::<WithinCounts>() == 16);
};
