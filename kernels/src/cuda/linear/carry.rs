//! The arguments of the scan over parts: the twins of `Carry` in `kernels/cuda/linear/carry.cuh` and of `Sums` in
//! `kernels/cuda/linear/linear_sums__sm53.cu`, field for field.

use super::args::LinearArgs;
use crate::cuda::tensor::Divisor;

/// Number of threads per block of the kernel that carries states. A thread block computes [`ROWS`] rows of transitions.
const THREADS: usize = 128;
const ROWS: usize = 32;

/// The only parameter of the kernel that carries the state over parts, by Blelloch's inclusive scan
/// ([`elsa_core::scan::blelloch`]). Its input is the state after the first part and the map `S ← A S + b` of each other
/// part; its output is the state after every part.
///
/// Rows of matrices are padded from `value_dim` or `key_dim` to a multiple of four elements. With dense transitions a
/// launch computes the nodes of one step of one sweep. With diagonal transitions one launch computes the entire scan;
/// in this case a part multiplies each row by a product of gates, whose logarithm is in [`CarryArgs::sums`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CarryArgs {
    /// Precomputed division by [`CarryArgs::blocks`].
    pub by_blocks: Divisor,
    /// Precomputed division by [`CarryArgs::nodes`].
    pub by_nodes: Divisor,
    /// Precomputed division by [`CarryArgs::heads`].
    pub by_heads: Divisor,
    /// Number of thread blocks per node or per state, as returned by [`carry_blocks`].
    pub blocks: i32,
    /// Number of nodes that the step combines; one if a launch computes the entire scan. The first node of the
    /// down-sweep is not counted, because nothing precedes it.
    pub nodes: i32,
    /// Number of states per sequence.
    pub heads: i32,
    /// Number of items of the scan per state: one for each part except the last.
    pub items: i32,
    /// Number of rows of a state.
    pub key_dim: i32,
    /// Number of columns of a state.
    pub value_dim: i32,
    /// Number of gates per token: zero, one, or [`CarryArgs::key_dim`]. Unused with dense transitions.
    pub gates: i32,
    /// Level of the step in its sweep. The nodes of the step combine runs of `2^step` items. Used only with dense
    /// transitions.
    pub step: i32,
    /// One for a step of the down-sweep; zero for any other step.
    pub down: i32,
    /// Padding, zero.
    pub unused: i32,
    /// Last state of the first part, then `b` of each other part, f32 `[sequence][state][item][key_dim][value_dim]`.
    /// The scan replaces them with the state after each part.
    pub states: u64,
    /// Transition `A` of each part except the first, f32 `[sequence][state][item][key_dim][key_dim]`; zero if
    /// transitions are diagonal. The scan overwrites it.
    pub transitions: u64,
    /// Sums of the logarithms of the gates over each part, f64 `[sequence][state][item][gates]`.
    pub sums: u64,
}

/// Returns the number of thread blocks per node if transitions are `dense`, or per state if they are diagonal.
#[must_use]
pub const fn carry_blocks(dense: bool, key_dim: usize, value_dim: usize) -> usize {
    match dense {
        true => key_dim.div_ceil(ROWS),
        false => (key_dim * value_dim.div_ceil(4)).div_ceil(THREADS),
    }
}

/// The only parameter of the kernel that sums the logarithms of the gates over each part.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SumsArgs {
    /// The linear attention call. The kernel reads the parts, sequences and decay of this call.
    pub call: LinearArgs,
    /// The sums, f64 `[sequence][state][part][gates]`.
    pub sums: u64,
    /// Number of gates per token: one, or `key_dim`.
    pub gates: i32,
    /// Padding, zero.
    pub unused: i32,
}

// The device twins assert the same sizes and offsets.
const _: () = {
    assert!(core::mem::offset_of!(CarryArgs, blocks) == 24);
    assert!(core::mem::offset_of!(CarryArgs, states) == 64 && size_of::<CarryArgs>() == 88);
    assert!(core::mem::offset_of!(SumsArgs, sums) == size_of::<LinearArgs>());
    assert!(size_of::<SumsArgs>() == size_of::<LinearArgs>() + 16);
};
