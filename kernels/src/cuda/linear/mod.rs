//! Linear attention on a GPU: the arguments of its kernels, and the table of them.
//!
//! # Launches of a form
//!
//! Three kinds of kernels take [`LinearArgs`]. Those that *prepare* compute what is quadratic in the tokens of a chunk, of
//! all chunks at once: [`prepare_blocks`] blocks. Those that *walk* carry a state through the chunks of a part:
//! [`walk_blocks`] blocks, each with [`LinearWalk::columns`] columns of the state of a head and a part. Those that *share*
//! ([`LinearWalk::shares`]) do the same for all output heads that read a state, at most [`MOST_READERS`] of them. The rule is
//! told by the presence of decay and beta. Kernels that walk in *pairs* ([`LinearWalk::pairs`]) do the same with half the columns
//! in a block, and with the same bits: for launches whose blocks leave SMs half empty.
//!
//! | form | launches |
//! |---|---|
//! | `recurrent` | walk or share with [`STEPS`], one part |
//! | `fused-chunk` | prepare; walk or share, one part |
//! | `chunk` | prepare; walk without output, one part, with `boundaries`; walk, a part for each boundary, from `boundaries` |
//! | `parallel` | *parallel*, a part for each [`PARALLEL_ROWS`] tokens, from the past; where the last state is wanted, prepare; walk without output, one part |
//! | `parallel` with a delta rule or a gate for each dim | with a delta rule, [*write*](LinearQuadratic::Write), a head for each state, to what tokens write, which are then the values, with [`VALUE_F32`]; [*answer*](LinearQuadratic::Answer), a part for each [`QUADRATIC_ROWS`] tokens; where the last state is wanted, [*last*](LinearQuadratic::Last), a head for each state and a part for so many of its rows |
//! | `scan` | prepare; walk without output with [`FOLD`], parts but the last, to what they fold to: a state, and `b` of the others; with a delta rule, walk with [`IDENTITY`] to the transitions `A`, else the *sums* of the logarithms of each part ([`SumsArgs`]); *carry* ([`CarryArgs`]) to the state after each part, with dense transitions a launch for each step; walk with [`RESUME`], all parts, from these |
//!
//! Keys of more dims than the tiles of any of these have go by a kernel that goes *step* by step ([`LinearWalk::steps`]), with
//! the launches of `recurrent`.
//!
//! The kernel that prepares is that of the rule and the gates. Of those that walk, the one with the least
//! [`LinearWalk::dims`] that holds the keys fits its tiles.
//!
//! Where a packed problem has sequences that go token by token and others that do not, a form's launches let the others pass,
//! and a walk with [`STEPS`] those: [`LinearArgs::least`], [`LinearArgs::most`].
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
    /// Whether a block answers all output heads that read its state. Then [`LinearArgs::heads`] are states, there are no
    /// [`LinearArgs::boundaries`], and but for [`READ`] there is one part.
    pub shares: bool,
    /// Whether a thread has two columns of a state in place of four, so that as many states have twice the blocks.
    pub pairs: bool,
    /// Whether tokens pass one by one, with or without [`STEPS`], whatever the number of readers.
    pub steps: bool,
}

/// What a kernel of the quadratic form computes. All begin with the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinearQuadratic {
    /// Answers of rules without delta and with at most one gate for each head.
    Plain,
    /// What tokens write with a delta rule, into the output, f32: a block has all tokens of a state and some of its columns.
    Write,
    /// Answers, where the values are what tokens write.
    Answer,
    /// The last state, where the values are what tokens write.
    Last,
}

/// Chunks that a block of a kernel that prepares takes: a warp each.
const PREPARED: usize = 4;

/// Blocks of a kernel that prepares: of `heads` output heads with `chunks` chunks each, of all sequences.
#[must_use]
pub const fn prepare_blocks(heads: usize, chunks: usize) -> usize {
    (heads * chunks).div_ceil(PREPARED)
}

/// Blocks of a kernel that walks, or of the quadratic form: of `columns` blocks of columns, `parts`, output `heads` and `sequences`.
#[must_use]
pub const fn walk_blocks(columns: usize, parts: usize, heads: usize, sequences: usize) -> usize {
    columns * parts * heads * sequences
}
