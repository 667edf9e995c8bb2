//! The arguments of the merge of a chunk of keys with those before it. The twin of `Stream` in
//! `kernels/cuda/attention/merge.cuh`, field for field.

use super::args::AttentionArgs;

/// The only parameter of that kernel: a row's partial states of the splits of a chunk merge into the state of the chunk,
/// which merges with states of earlier chunks.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StreamArgs {
    /// The call that has written the partial states.
    pub call: AttentionArgs,
    /// The states of earlier chunks.
    pub pending: Pending,
}

/// The states of earlier chunks, which are pending in slots, and what the state of the present chunk does with them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    /// References and sums, `[row][slot][2]`.
    pub ms: u64,
    /// Weighted sums, `[row][slot][part_dim]`.
    pub w: u64,
    /// Slots of a row.
    pub slots: i32,
    /// Pending states that merge with that of the chunk, from the last one to that in slot `into`.
    pub joins: i32,
    /// The slot that the merged state takes if `more` is not zero.
    pub into: i32,
    /// Whether more chunks follow; 0 or 1. After the last one the row's results are written.
    pub more: i32,
}

// The sizes and offsets that the device twin asserts too.
const _: () = {
    assert!(core::mem::offset_of!(StreamArgs, pending) == size_of::<AttentionArgs>());
    assert!(size_of::<Pending>() == 32);
};
