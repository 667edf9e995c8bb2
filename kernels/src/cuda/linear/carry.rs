//! The arguments of the scan over parts: the twins of `Carry` in `kernels/cuda/linear/carry.cuh` and of `Sums` in
//! `kernels/cuda/linear/linear_sums__sm53.cu`, field for field.

use super::args::{LinearArgs, States};
use crate::cuda::tensor::Divisor;

/// Columns of a state that a block of the kernel that carries has.
pub const CARRY_COLUMNS: usize = 32;

/// The only parameter of the kernel that carries the state over parts: the state before each part from what parts do to a
/// state, `S ← A S + b`.
///
/// With dense transitions, their rows are aligned to four elements. Otherwise a part multiplies rows by its gates, of which
/// [`CarryArgs::sums`] has the logarithms.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CarryArgs {
    /// Divisor [`CarryArgs::columns`].
    pub by_columns: Divisor,
    /// Divisor [`CarryArgs::heads`].
    pub by_heads: Divisor,
    /// Blocks of [`CARRY_COLUMNS`] columns of a state.
    pub columns: i32,
    /// States of a sequence.
    pub heads: i32,
    /// Sequences.
    pub sequence_count: i32,
    /// Parts of a sequence.
    pub parts: i32,
    /// Rows of a state.
    pub key_dim: i32,
    /// Columns of a state.
    pub value_dim: i32,
    /// Gates of a token: none, one, or [`CarryArgs::key_dim`]. Without meaning where transitions are dense.
    pub gates: i32,
    /// Zero.
    pub unused: i32,
    /// The state before the first part; zero where there is none.
    pub initial: States,
    /// `b` of each part: its last state, from zero states.
    pub folds: States,
    /// `A` of each part, `[key_dim, key_dim]`: its last state, from the identity; the address is zero where it is diagonal.
    pub transitions: States,
    /// The state before each part. It may be the memory of [`CarryArgs::folds`].
    pub before: States,
    /// The state after the last part; the address is zero where it is not wanted. It may be the memory of
    /// [`CarryArgs::initial`].
    pub last: States,
    /// Sums of the logarithms of the gates of each part, f64 `[sequence][state][part][gates]`.
    pub sums: u64,
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
    assert!(core::mem::offset_of!(CarryArgs, columns) == 16);
    assert!(core::mem::offset_of!(CarryArgs, initial) == 48);
    assert!(core::mem::offset_of!(CarryArgs, sums) == 248 && size_of::<CarryArgs>() == 256);
    assert!(core::mem::offset_of!(SumsArgs, sums) == size_of::<LinearArgs>());
    assert!(size_of::<SumsArgs>() == size_of::<LinearArgs>() + 16);
};
