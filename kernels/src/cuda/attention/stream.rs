//! The arguments of the merge of a chunk of keys with earlier chunks. The twin of `Stream` in
//! `kernels/cuda/attention/merge.cuh`, field for field.

use super::args::AttentionArgs;

/// The only parameter of that kernel, which merges the partial states of a row over the splits of a chunk into the
/// state of the chunk, and that state with those of earlier chunks.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StreamArgs {
    /// The call that wrote the partial states.
    pub call: AttentionArgs,
    /// The states of earlier chunks.
    pub pending: Pending,
}

/// The states of earlier chunks, which wait in slots, and their merge with the state of the current chunk.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    /// References and sums, `[row][slot][2]`.
    pub ms: u64,
    /// Weighted sums, `[row][slot][part_dim]`.
    pub w: u64,
    /// Slots of a row.
    pub slots: i32,
    /// Number of pending states to merge with that of the chunk, from the last slot back to slot `into`.
    pub joins: i32,
    /// Slot of the merged state if `more` is not zero.
    pub into: i32,
    /// One if more chunks follow, else zero. After the last chunk the row's results are written.
    pub more: i32,
}

// The device twin asserts the same sizes and offsets.
const _: () = {
    assert!(core::mem::offset_of!(StreamArgs, pending) == size_of::<AttentionArgs>());
    assert!(size_of::<Pending>() == 32);
};
