//! The arguments of the scan over parts: the twins of `Carry` in `kernels/cuda/linear/carry.cuh` and of `Sums` in
//! `kernels/cuda/linear/linear_sums__sm53.cu`, field for field.

use super::args::LinearArgs;
use crate::cuda::tensor::Divisor;

/// Threads of a block of the kernel that carries, and rows of a transition that a block has.
const THREADS: usize = 128;
const ROWS: usize = 32;

/// The only parameter of the kernel that carries the state over parts: from what each part does to a state, `S ← A S + b`, and
/// the state that the first part folds to, the states after all of them, by Blelloch's inclusive scan
/// ([`elsa_core::scan::blelloch`]).
///
/// Matrices have rows of a multiple of four elements: `value_dim` or `key_dim`, rounded up. With dense transitions a launch
/// does the nodes of one step of one sweep. Otherwise a part multiplies rows by its gates, of which [`CarryArgs::sums`] has
/// the logarithms, and one launch does the whole scan.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CarryArgs {
    /// Divisor [`CarryArgs::blocks`].
    pub by_blocks: Divisor,
    /// Divisor [`CarryArgs::nodes`].
    pub by_nodes: Divisor,
    /// Divisor [`CarryArgs::heads`].
    pub by_heads: Divisor,
    /// Blocks of a node, or of a state: [`carry_blocks`].
    pub blocks: i32,
    /// Nodes of the step that are combined; one where a launch does the whole scan. Of the down-sweep the first node is not
    /// among them: it has nothing before it.
    pub nodes: i32,
    /// States of a sequence.
    pub heads: i32,
    /// Places of a state: parts but the last.
    pub items: i32,
    /// Rows of a state.
    pub key_dim: i32,
    /// Columns of a state.
    pub value_dim: i32,
    /// Gates of a token: none, one, or [`CarryArgs::key_dim`]. Without meaning where transitions are dense.
    pub gates: i32,
    /// The step, with dense transitions.
    pub step: i32,
    /// Whether it is one of the down-sweep: one, or zero.
    pub down: i32,
    /// Zero.
    pub unused: i32,
    /// What parts fold to, f32 `[sequence][state][item][key_dim][value_dim]`: a state for the first, `b` for the others. The
    /// scan leaves the state after each part.
    pub states: u64,
    /// `A` of each part but the first, f32 `[sequence][state][item][key_dim][key_dim]`; zero where it is diagonal. The scan
    /// overwrites it.
    pub transitions: u64,
    /// Sums of the logarithms of the gates of each part, f64 `[sequence][state][item][gates]`.
    pub sums: u64,
}

/// Blocks of a node, with `dense` transitions, or of a state.
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
    /// The call, of which parts, sequences and decay are read.
    pub call: LinearArgs,
    /// The sums, f64 `[sequence][state][part][gates]`.
    pub sums: u64,
    /// Gates of a token: one, or `key_dim`.
    pub gates: i32,
    /// Zero.
    pub unused: i32,
}

// The sizes and offsets that the device twins assert too.
const _: () = {
    assert!(core::mem::offset_of!(CarryArgs, blocks) == 24);
    assert!(core::mem::offset_of!(CarryArgs, states) == 64 && size_of::<CarryArgs>() == 88);
    assert!(core::mem::offset_of!(SumsArgs, sums) == size_of::<LinearArgs>());
    assert!(size_of::<SumsArgs>() == size_of::<LinearArgs>() + 16);
};
