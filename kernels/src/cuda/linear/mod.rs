//! Linear attention on a GPU: the arguments of its kernels, and the table of these kernels.
//!
//! # Launches of each algorithm ([`Form`](elsa_core::linear::Form))
//!
//! Most kernels take [`LinearArgs`]. *Prepare* kernels compute the quadratic terms within chunks. They process all
//! chunks at once, on [`prepare_blocks`] blocks. *Walk* kernels carry a state through the chunks of a part, on
//! [`walk_blocks`] blocks, each with [`LinearWalk::columns`] columns of a head's state. *Share* kernels
//! ([`LinearWalk::shares`]) do the same, but one block serves all output heads that read a state. In these launches at
//! most [`MOST_READERS`] output heads read a state. The presence of decay and beta selects the rule of the recurrence.
//! *Pairs* kernels ([`LinearWalk::pairs`]) walk with half the columns per block and produce the same bits. They serve
//! launches that would have too few blocks to fill the SMs. In the table, semicolons separate consecutive launches.
//!
//! | algorithm | launches |
//! |---|---|
//! | `recurrent` | walk or share with [`STEPS`], one part |
//! | `fused-chunk` | prepare; walk or share, one part |
//! | `chunk` | prepare; walk without output, one part, with `boundaries`; walk, one part per boundary, from `boundaries` |
//! | `chunk` without a delta rule and with at most one gate per head | [*terms*](LinearLong::Terms), [*states*](LinearLong::States), and [*answers*](LinearLong::Answers) if there is an output. Chunks have [`LONG_CHUNK`] tokens |
//! | `chunk` with a delta rule or a gate per dim, and at most [`LONG_DIMS`] dims | [*solve*](LinearLong::Solve), [*carry*](LinearLong::Carry), and [*answers*](LinearLong::Answers) if there is an output; with a delta rule its values are those that tokens write, with [`VALUE_F32`] |
//! | `parallel` | *parallel*, one part per [`PARALLEL_ROWS`] tokens, from the past state; if the last state is requested, prepare; walk without output, one part |
//! | `parallel` with a delta rule or a gate per dim | with a delta rule, [*write*](LinearQuadratic::Write), one head per state (its output replaces the values, with [`VALUE_F32`]); [*answer*](LinearQuadratic::Answer), one part per [`QUADRATIC_ROWS`] tokens; if the last state is requested, [*last*](LinearQuadratic::Last), one head per state and one part per [`QUADRATIC_ROWS`] rows of this state |
//! | `scan` | prepare; walk without output with [`FOLD`], all parts but the last (yields the last state of the first part and `b` of the other parts); with a delta rule, walk with [`IDENTITY`] (yields the transitions `A`); without a delta rule, the *sums* of the logarithms over each part ([`SumsArgs`]); *carry* ([`CarryArgs`]), one launch per step with dense transitions (yields the state after each part); walk with [`RESUME`], all parts, from these states |
//!
//! If keys have more dims than the tiles of these kernels, the launches are those of `recurrent`, with a *step* kernel
//! ([`LinearWalk::steps`]).
//!
//! The rule and the gates select the prepare kernel. The walk kernel is the one with the smallest sufficient
//! [`LinearWalk::dims`].
//!
//! In a packed problem some sequences may be processed token by token. The launches of the algorithm then skip these
//! sequences, and a walk with [`STEPS`] processes only them ([`LinearArgs::least`], [`LinearArgs::most`]).
//!
//! In non-causal attention a walk without output yields the last states. A walk with [`READ`] starts from these states
//! and has enough parts to fill the device. Bidirectional attention has two runs. The first run writes its output to an
//! f32 buffer. The second run has [`REVERSE`] set and adds this buffer as [`LinearArgs::partial`].

mod args;
mod carry;
#[cfg(feature = "cuda")]
mod table;

pub use args::*;
pub use carry::*;
#[cfg(feature = "cuda")]
pub(super) use table::KERNELS;

/// Sizes and variant of a walk kernel, which carries states through tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearWalk {
    /// Largest `key_dim`. States with a smaller `key_dim` are padded with zeros.
    pub dims: usize,
    /// `true` for a gate per dim; `false` for one gate per head or none.
    pub per_dim: bool,
    /// Number of state columns per thread block.
    pub columns: usize,
    /// `true` if a thread block computes all output heads that read its state. [`LinearArgs::heads`] is then the number
    /// of states, there are no [`LinearArgs::boundaries`], and only [`READ`] allows more than one part.
    pub shares: bool,
    /// `true` if a thread has two columns of a state instead of four, which doubles the number of blocks.
    pub pairs: bool,
    /// `true` if the kernel always processes tokens one by one, for any number of readers, even if [`STEPS`] is not
    /// set.
    pub steps: bool,
}

/// The step of the quadratic form that a kernel computes. Every step starts from the past state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinearQuadratic {
    /// Computes the outputs, if there is no delta rule and at most one gate per head.
    Plain,
    /// Computes the values that tokens write to the state under a delta rule. These values are stored in the output as
    /// f32. A thread block computes all tokens for some columns of a state.
    Write,
    /// Computes the outputs from the values that tokens write to the state.
    Answer,
    /// Computes the last state from the values that tokens write to the state.
    Last,
}

/// The step that a kernel computes if all chunks are computed at once, each with [`LONG_CHUNK`] tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinearLong {
    /// Computes the weights of all pairs of tokens of a chunk, if there is an output, and the terms that the tokens of a
    /// chunk add to the state. Launched on [`terms_blocks`] blocks.
    Terms,
    /// Replaces the terms of each chunk by the state before it, and computes the last state. Heads are states. Launched
    /// on [`walk_blocks`] blocks with one part; each block has [`LONG_ELEMENTS`] elements of a state.
    States,
    /// Computes the outputs from the weights, and from the state before each chunk. Launched on [`walk_blocks`] blocks,
    /// with one sequence whose parts are all chunks. After [`LinearLong::Carry`], only the kernel for few blocks, which skips
    /// chunks whose outputs that step has computed.
    Answers,
    /// With a delta rule or a gate per dim: computes the weights of all pairs of tokens of a chunk, if there is an output. With a
    /// delta rule, also solves the chunk for any state; otherwise computes the terms that its tokens add to the state. With a
    /// gate per dim, also multiplies queries by gates. Takes [`LongArgs`]. Launched on [`long_blocks`] blocks.
    Solve {
        /// `true` for a gate per dim.
        per_dim: bool,
    },
    /// With a delta rule or a gate per dim: computes the states before all chunks and the last state, with a delta rule the values
    /// that tokens write, and the outputs of chunks that must be computed token by token. Takes [`LongArgs`]. Heads are states.
    /// Launched on [`walk_blocks`] blocks with one part and [`long_width`] columns of a state.
    Carry {
        /// Largest `key_dim`.
        dims: usize,
    },
}

/// Returns the number of columns of a state per thread block of [`LinearLong::Carry`].
#[must_use]
pub const fn long_width(delta: bool) -> usize {
    if delta { 4 } else { 8 }
}
/// Largest number of rows of a state in [`LinearLong::Carry`].
pub const LONG_DIMS: usize = 128;
/// Number of elements of a state per thread block of [`LinearLong::States`].
pub const LONG_ELEMENTS: usize = 128;
/// Largest number of chunks of a sequence for which the blocks of [`LinearLong::Answers`] compute the states before their chunks
/// ([`FOLD`]), instead of [`LinearLong::States`].
pub const LONG_FOLDED: usize = 8;
/// Number of state rows, and of state columns, per thread block of [`LinearLong::Terms`], and of state columns per thread block
/// of [`LinearLong::Answers`].
pub const LONG_TILE: usize = 64;

/// Returns the number of blocks of [`LinearLong::Terms`], for `heads` output heads with outputs, `states` states,
/// `chunks` chunks in all sequences, and states of `key_dim` rows and `columns` column blocks.
#[must_use]
pub const fn terms_blocks(
    heads: usize,
    states: usize,
    chunks: usize,
    key_dim: usize,
    columns: usize,
) -> usize {
    chunks * (heads + states * key_dim.div_ceil(LONG_TILE) * columns)
}

/// Returns the number of blocks of [`LinearLong::Solve`] for a chunk of a state.
const fn marking(delta: bool, key_dim: usize, value_dim: usize) -> usize {
    let (rows, columns) = (key_dim.div_ceil(LONG_TILE), value_dim.div_ceil(LONG_TILE));
    if delta { (rows + columns).div_ceil(2) } else { rows * columns }
}

/// Returns the number of blocks of [`LinearLong::Solve`], for `heads` output heads with outputs, `states` states and `chunks`
/// chunks in all sequences.
#[must_use]
pub const fn long_blocks(
    delta: bool,
    [heads, states]: [usize; 2],
    chunks: usize,
    key_dim: usize,
    value_dim: usize,
) -> usize {
    chunks * (heads + states * marking(delta, key_dim, value_dim))
}

/// Returns the number of f32 values that [`LinearLong::Solve`] leaves for a state and chunk in [`LinearArgs::tiles`]: with a delta
/// rule two matrices of [`LONG_CHUNK`] rows of `dims` elements, then a gate for each dim and a mark of each block.
#[must_use]
pub const fn long_tile(delta: bool, dims: usize, key_dim: usize, value_dim: usize) -> usize {
    let matrices = if delta { 2 * LONG_CHUNK * dims } else { 0 };
    matrices + dims + marking(delta, key_dim, value_dim).next_multiple_of(4)
}

/// Number of chunks per thread block of a prepare kernel: one per warp.
const PREPARED: usize = 4;

/// Returns the number of blocks of a prepare kernel, for `heads` output heads and `chunks` chunks in all sequences.
#[must_use]
pub const fn prepare_blocks(heads: usize, chunks: usize) -> usize {
    (heads * chunks).div_ceil(PREPARED)
}

/// Returns the number of blocks of a walk or quadratic kernel, for `columns` column blocks, `parts` parts, `heads`
/// output heads and `sequences` sequences.
#[must_use]
pub const fn walk_blocks(columns: usize, parts: usize, heads: usize, sequences: usize) -> usize {
    columns * parts * heads * sequences
}
