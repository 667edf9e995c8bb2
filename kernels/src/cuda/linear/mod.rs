//! Linear attention on a GPU: the arguments of its kernels, and the table of them.
//!
//! # Launches of a form
//!
//! Two kinds of kernels take [`LinearArgs`]. Those that *prepare* compute what is quadratic in the tokens of a chunk, of
//! all chunks at once: [`prepare_blocks`] blocks. Those that *walk* carry a state through the chunks of a part:
//! [`walk_blocks`] blocks, each with [`LinearWalk::columns`] columns of the state of a head and a part. The rule is told by
//! the presence of decay and beta.
//!
//! | form | launches |
//! |---|---|
//! | `recurrent` | walk with [`STEPS`], one part |
//! | `fused-chunk` | prepare; walk, one part |
//! | `chunk` | prepare; walk without output, one part, with `boundaries`; walk, a part for each boundary, from `boundaries` |
//! | `scan` | prepare; walk without output from zero states, with parts, to the folds `b`; with a delta rule, walk with [`IDENTITY`] to the transitions `A`, else the *sums* of the logarithms of each part ([`SumsArgs`]); *carry* ([`CarryArgs`]) to the state before each part, and the present; walk, with parts, from these |
//!
//! The kernel that prepares is that of the rule and the gates. Of those that walk, the one with the least
//! [`LinearWalk::dims`] that holds the keys fits its tiles.
//!
//! Non-causal: walk without output to the last states; walk with [`READ`] from these, with as many parts as fill the device.
//! Bidirectional: a run whose output is an f32 buffer, then one with [`REVERSE`] that adds it as
//! [`LinearArgs::partial`].

mod args;
mod carry;
#[cfg(feature = "cuda")]
mod table;

pub use args::*;
pub use carry::*;
#[cfg(feature = "cuda")]
pub(super) use table::KERNELS;

/// What a kernel that walks is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearWalk {
    /// Largest `key_dim`; smaller ones are padded with zeros.
    pub dims: usize,
    /// Whether it has a gate for each dim; else it has one per head, or none.
    pub per_dim: bool,
    /// Columns of a state that a block carries.
    pub columns: usize,
}

/// Chunks that a block of a kernel that prepares takes: a warp each.
const PREPARED: usize = 4;

/// Blocks of a kernel that prepares: of `heads` output heads with `chunks` chunks each, of all sequences.
#[must_use]
pub const fn prepare_blocks(heads: usize, chunks: usize) -> usize {
    (heads * chunks).div_ceil(PREPARED)
}

/// Blocks of a kernel that walks: of `columns` blocks of columns, `parts`, output `heads` and `sequences`.
#[must_use]
pub const fn walk_blocks(columns: usize, parts: usize, heads: usize, sequences: usize) -> usize {
    columns * parts * heads * sequences
}
