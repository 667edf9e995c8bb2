//! Linear attention on a GPU: the arguments of its kernels, and the table of them.
//!
//! # Launches of a form
//!
//! Three kinds of kernels take [`LinearArgs`]. *Prepare* kernels compute the quadratic terms within chunks, for all
//! chunks at once, on [`prepare_blocks`] blocks. *Walk* kernels carry a state through the chunks of a part, on
//! [`walk_blocks`] blocks with [`LinearWalk::columns`] columns of a head's state each. *Share* kernels
//! ([`LinearWalk::shares`]) do the same for all output heads that read a state, at most [`MOST_READERS`]. The presence
//! of decay and beta selects the rule. *Pairs* kernels ([`LinearWalk::pairs`]) walk with half the columns per block and
//! produce the same bits, for launches whose blocks leave SMs half empty.
//!
//! | form | launches |
//! |---|---|
//! | `recurrent` | walk or share with [`STEPS`], one part |
//! | `fused-chunk` | prepare; walk or share, one part |
//! | `chunk` | prepare; walk without output, one part, with `boundaries`; walk, one part per boundary, from `boundaries` |
//! | `parallel` | *parallel*, one part per [`PARALLEL_ROWS`] tokens, from the past; if the last state is requested, prepare; walk without output, one part |
//! | `parallel` with a delta rule or a gate per dim | with a delta rule, [*write*](LinearQuadratic::Write), one head per state, whose output replaces the values, with [`VALUE_F32`]; [*answer*](LinearQuadratic::Answer), one part per [`QUADRATIC_ROWS`] tokens; if the last state is requested, [*last*](LinearQuadratic::Last), one head per state and one part per [`QUADRATIC_ROWS`] of its rows |
//! | `scan` | prepare; walk without output with [`FOLD`], all parts except the last, to their folds: a state for the first, `b` for the others; with a delta rule, walk with [`IDENTITY`] to the transitions `A`, else the *sums* of the logarithms of each part ([`SumsArgs`]); *carry* ([`CarryArgs`]) to the state after each part, one launch per step with dense transitions; walk with [`RESUME`], all parts, from these states |
//!
//! Keys with more dims than any of these tiles use a *step* kernel ([`LinearWalk::steps`]) with the launches of
//! `recurrent`.
//!
//! The rule and the gates select the prepare kernel. The walk kernel is the one with the smallest sufficient
//! [`LinearWalk::dims`].
//!
//! If a packed problem mixes sequences that go token by token with others, the launches of the form skip the former and
//! a walk with [`STEPS`] skips the latter ([`LinearArgs::least`], [`LinearArgs::most`]).
//!
//! Non-causal: walk without output to the last states; walk with [`READ`] from these, with enough parts to fill the
//! device. Bidirectional: a run with an f32 buffer as output, then one with [`REVERSE`] that adds the buffer as
//! [`LinearArgs::partial`].

mod args;
mod carry;
#[cfg(feature = "cuda")]
mod table;

pub use args::*;
pub use carry::*;
#[cfg(feature = "cuda")]
pub(super) use table::KERNELS;

/// Shape of a walk kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearWalk {
    /// Largest `key_dim`; smaller ones are padded with zeros.
    pub dims: usize,
    /// `true` for a gate per dim; `false` for one gate per head or none.
    pub per_dim: bool,
    /// Columns of a state per block.
    pub columns: usize,
    /// `true` if a block answers all output heads that read its state. [`LinearArgs::heads`] then counts states,
    /// [`LinearArgs::boundaries`] are absent, and only [`READ`] allows more than one part.
    pub shares: bool,
    /// `true` if a thread has two columns of a state instead of four, which doubles the blocks.
    pub pairs: bool,
    /// `true` if tokens are processed one by one, with or without [`STEPS`] and for any number of readers.
    pub steps: bool,
}

/// Step of the quadratic form. Every step starts from the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinearQuadratic {
    /// Answers without a delta rule and with at most one gate per head.
    Plain,
    /// Values that tokens write under a delta rule, into the output, f32. A block has all tokens of a state and some
    /// columns.
    Write,
    /// Answers from the values that tokens write.
    Answer,
    /// The last state from the values that tokens write.
    Last,
}

/// Chunks per block of a prepare kernel: one per warp.
const PREPARED: usize = 4;

/// Returns the blocks of a prepare kernel, for `heads` output heads with `chunks` chunks each, over all sequences.
#[must_use]
pub const fn prepare_blocks(heads: usize, chunks: usize) -> usize {
    (heads * chunks).div_ceil(PREPARED)
}

/// Returns the blocks of a walk kernel or of the quadratic form, for `columns` blocks of columns, `parts`, output
/// `heads` and `sequences`.
#[must_use]
pub const fn walk_blocks(columns: usize, parts: usize, heads: usize, sequences: usize) -> usize {
    columns * parts * heads * sequences
}
