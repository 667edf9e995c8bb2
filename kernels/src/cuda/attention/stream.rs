//! The arguments of the kernel that merges the states of a chunk of keys with the states of earlier chunks: the twin of
//! `Stream` in `kernels/cuda/attention/merge.cuh`, field for field.

use super::args::AttentionArgs;

/// The only parameter of the kernel that merges states of chunks. For each row, the kernel first merges the partial
/// states of a chunk's splits into the chunk's state. Then it merges this state with the states of earlier chunks.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StreamArgs {
    /// The attention call that wrote the partial states.
    pub call: AttentionArgs,
    /// The states of earlier chunks.
    pub pending: Pending,
}

/// States of earlier chunks, stored in slots, and how they merge with the state of the current chunk.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    /// References and sums, `[row][slot][2]`.
    pub ms: u64,
    /// Weighted sums, `[row][slot][part_dim]`.
    pub w: u64,
    /// Number of slots per row.
    pub slots: i32,
    /// Number of pending states that merge with the state of the current chunk: those from the last pending state back
    /// to slot `into`.
    pub joins: i32,
    /// Slot that receives the merged state, unless `more` is zero.
    pub into: i32,
    /// One if more chunks follow; zero if not. After the last chunk the results of every row are written.
    pub more: i32,
}

// The device twin asserts the same sizes and offsets.
const _: () = {
    assert!(core::mem::offset_of!(StreamArgs, pending) == size_of::<AttentionArgs>());
    assert!(size_of::<Pending>() == 32);
};
