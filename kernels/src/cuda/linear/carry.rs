//! The arguments of the scan over parts: the twins of `Carry` in `kernels/cuda/linear/carry.cuh` and of `Sums` in
//! `kernels/cuda/linear/linear_sums__sm53.cu`, field for field.

use super::args::LinearArgs;
use crate::cuda::tensor::Divisor;

/// Threads of a block of the carrying kernel, and transition rows per block.
const THREADS: usize = 128;
const ROWS: usize = 32;

/// The only parameter of the kernel that carries the state over parts. Its input is the state that the first part folds
/// to and the map `S ← A S + b` of each other part; its output is the state after every part, by Blelloch's inclusive
/// scan ([`elsa_core::scan::blelloch`]).
///
///    Rows of matrices are padded to a multiple of four elements, from `value_dim` or `key_dim`. With dense transitions
///    a launch handles the nodes of one step of one sweep. Otherwise a part multiplies rows by its gates, whose
///    logarithms are in [`CarryArgs::sums`], and one launch does the whole scan.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CarryArgs {
    /// Precomputed division by [`CarryArgs::blocks`].
    pub by_blocks: Divisor,
    /// Precomputed division by [`CarryArgs::nodes`].
    pub by_nodes: Divisor,
    /// Precomputed division by [`CarryArgs::heads`].
    pub by_heads: Divisor,
    /// Blocks per node, or per state: [`carry_blocks`].
    pub blocks: i32,
    /// Nodes that the step combines; one if a launch does the whole scan. The first node of the down-sweep is not
    /// counted, because nothing precedes it.
    pub nodes: i32,
    /// States of a sequence.
    pub heads: i32,
    /// Places per state: the parts except the last.
    pub items: i32,
    /// Rows of a state.
    pub key_dim: i32,
    /// Columns of a state.
    pub value_dim: i32,
    /// Gates per token: zero, one, or [`CarryArgs::key_dim`]. Unused with dense transitions.
    pub gates: i32,
    /// The step of the scan, with dense transitions.
    pub step: i32,
    /// One for a step of the down-sweep, else zero.
    pub down: i32,
    /// Zero.
    pub unused: i32,
    /// Folds of the parts, f32 `[sequence][state][item][key_dim][value_dim]`: a state for the first part, `b` for the
    /// others. The scan replaces them by the state after each part.
    pub states: u64,
    /// `A` of each part except the first, f32 `[sequence][state][item][key_dim][key_dim]`; zero if diagonal. The scan
    /// overwrites it.
    pub transitions: u64,
    /// Sums of the logarithms of the gates of each part, f64 `[sequence][state][item][gates]`.
    pub sums: u64,
}

/// Returns the blocks per node with `dense` transitions, or per state otherwise.
#[must_use]
pub const fn carry_blocks(dense: bool, key_dim: usize, value_dim: usize) -> usize {
    match dense {
        true => key_dim.div_ceil(ROWS),
        false => (key_dim * value_dim.div_ceil(4)).div_ceil(THREADS),
    }
}

/// The only parameter of the kernel that sums the logarithms of the gates of each part.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SumsArgs {
    /// The call; its parts, sequences and decay are read.
    pub call: LinearArgs,
    /// The sums, f64 `[sequence][state][part][gates]`.
    pub sums: u64,
    /// Gates per token: one, or `key_dim`.
    pub gates: i32,
    /// Zero.
    pub unused: i32,
}

// The device twins assert the same sizes and offsets.
const _: () = {
    assert!(core::mem::offset_of!(CarryArgs, blocks) == 24);
    assert!(core::mem::offset_of!(CarryArgs, states) == 64 && size_of::<CarryArgs>() == 88);
    assert!(core::mem::offset_of!(SumsArgs, sums) == size_of::<LinearArgs>());
    assert!(size_of::<SumsArgs>() == size_of::<LinearArgs>() + 16);
};
