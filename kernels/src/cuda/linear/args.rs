//! The arguments of the kernels of linear attention: the twin of `kernels/cuda/linear/call.cuh`, field for field.
//!
//! Addresses are device addresses, zero where a tensor is absent; strides count elements.

use crate::cuda::tensor::{Divisor, Tensor};

/// Tokens of a chunk. Chunks are cut by position: from the first token of a sequence on, or from the last one where tokens
/// pass in reverse.
pub const CHUNK: usize = 16;
/// Most output heads of a state that a block of a kernel that shares answers: rows of a tile of queries.
pub const MOST_READERS: usize = CHUNK;
/// Columns of a state that a block of the quadratic form has.
pub const PARALLEL_COLUMNS: usize = 64;
/// Tokens that a block of the quadratic form answers, with at most one gate for each head and without a delta rule.
pub const PARALLEL_ROWS: usize = 64;
/// Tokens, or rows of a state, of a block of the other kernels of the quadratic form.
pub const QUADRATIC_ROWS: usize = 32;
/// f32 values of a record of [`LinearArgs::records`].
pub const RECORD: usize = 548;
/// Rows of a chunk in [`LinearArgs::tiles`], each as long as the kernel's dims.
pub const TILE_ROWS: usize = 3 * CHUNK + 1;

/// One sequence. Its place in the table is its place among the states.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinearSequence {
    /// Index along the batch axis; zero when packed.
    pub batch: i32,
    /// First token in the views.
    pub first: i32,
    /// Tokens.
    pub tokens: i32,
    /// Number of its first chunk among those of all sequences that are prepared. A sequence that is not has none.
    pub chunk0: i32,
    /// Chunks of each of its parts in a scan.
    pub part_chunks: i32,
}

/// f32 states `[sequence][head][part][row][value_dim]`, with a row for each of `key_dim`; strides in elements. A head is
/// one of the values.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct States {
    /// Address of the first element; zero where there are none.
    pub data: u64,
    /// From the states of a sequence to those of the next.
    pub sequence: i64,
    /// From a head to the next.
    pub head: i64,
    /// From a part to the next; zero if there is one state for all.
    pub part: i64,
    /// From a row to the next.
    pub row: i64,
}

/// [`LinearArgs::flags`]: token by token, without [`LinearArgs::records`].
pub const STEPS: i32 = 1;
/// [`LinearArgs::flags`]: tokens pass from the last of a sequence to its first.
pub const REVERSE: i32 = 2;
/// [`LinearArgs::flags`]: rows of queries and keys are divided by `sqrt(Σx² + epsilon)`.
pub const NORMALIZE: i32 = 4;
/// [`LinearArgs::flags`]: the first state of each part is the identity, and values are zero, so that the last one is the
/// transition of the part, `[key_dim, key_dim]`: `value_dim` is `key_dim`, and there is no output.
pub const IDENTITY: i32 = 8;
/// [`LinearArgs::flags`]: tokens read the first state of their part, and change nothing.
pub const READ: i32 = 16;
/// [`LinearArgs::flags`]: query rows may be read four elements at a time: data aligned to four elements, strides and row
/// size multiples of four, and tokens less than [`NEAR`] elements apart.
pub const QUERY_VEC4: i32 = 32;
/// [`LinearArgs::flags`]: the same of key rows.
pub const KEY_VEC4: i32 = 64;
/// [`LinearArgs::flags`]: the same of value rows.
pub const VALUE_VEC4: i32 = 128;
/// [`LinearArgs::flags`]: the same of decay rows, with a gate for each dim.
pub const DECAY_VEC4: i32 = 256;
/// [`LinearArgs::flags`]: the same of output rows, which are written.
pub const OUTPUT_VEC4: i32 = 512;
/// [`LinearArgs::flags`]: the same of [`LinearArgs::partial`].
pub const PARTIAL_VEC4: i32 = 1024;
/// [`LinearArgs::flags`]: the same of the rows of all [`States`] of the call.
pub const STATE_VEC4: i32 = 2048;
/// [`LinearArgs::flags`]: parts but the first begin with zeros. With [`IDENTITY`], nothing is done for the first part, whose
/// fold is a state.
pub const FOLD: i32 = 4096;
/// [`LinearArgs::flags`]: parts but the first begin with the state of the part before them at [`LinearArgs::boundaries`], and
/// the last part with tokens, or the first, alone has a last state. Without an output no other part is computed.
pub const RESUME: i32 = 8192;
/// [`LinearArgs::flags`]: values are f32, whatever the type of queries and keys.
pub const VALUE_F32: i32 = 16384;
/// [`LinearArgs::flags`]: there is a gate for each dim. Kernels of the quadratic form that are for both read it.
pub const DIM_GATES: i32 = 32768;
/// Elements from one token to the next below which the bytes of a chunk fit 31 bits.
pub const NEAR: i64 = 1 << 22;

/// The only parameter of the kernels that walk over tokens, of those that prepare chunks, and of those that compute the
/// quadratic form. To the latter, a block of columns has [`PARALLEL_COLUMNS`], and a part is a run of [`PARALLEL_ROWS`] or
/// [`QUADRATIC_ROWS`] tokens, or of so many rows of the last state; they read [`LinearArgs::initial`].
///
/// A head is one of the output. It reads state `head / readers` and query head `head / sharers`, of which one is one; state
/// `s` takes key head `s / key_group`. With several readers of a state, the first of them writes [`LinearArgs::last`] and
/// [`LinearArgs::boundaries`], and each computes the state for itself, unless the kernel shares: then [`LinearArgs::last`] must
/// not be the memory of [`LinearArgs::initial`]. A kernel that shares has states as its heads.
///
/// Positions count the tokens of a sequence in the order in which they pass. A sequence of `n` tokens has
/// `n.div_ceil(CHUNK)` chunks, and a part is a run of [`LinearArgs::part_chunks`] of them. Parts past the last chunk are
/// empty: their last state is their first.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinearArgs {
    /// Divisor [`LinearArgs::columns`].
    pub by_columns: Divisor,
    /// Divisor [`LinearArgs::parts`].
    pub by_parts: Divisor,
    /// Divisor [`LinearArgs::heads`].
    pub by_heads: Divisor,
    /// Divisor [`LinearArgs::readers`].
    pub by_readers: Divisor,
    /// Divisor of output heads that share a query head.
    pub by_sharers: Divisor,
    /// Divisor of states that share a key head.
    pub by_key_group: Divisor,
    /// Divisor [`LinearArgs::sequence_chunks`].
    pub by_sequence_chunks: Divisor,
    /// Blocks of columns of a state.
    pub columns: i32,
    /// Parts of a sequence.
    pub parts: i32,
    /// Output heads, or states.
    pub heads: i32,
    /// Sequences.
    pub sequence_count: i32,
    /// Table of `sequence_count` [`LinearSequence`]s, or zero: one for each index of the batch, of all its tokens.
    pub sequences: u64,
    /// Tokens of each sequence when there is no table.
    pub tokens: i32,
    /// Chunks of each sequence when there is no table.
    pub sequence_chunks: i32,
    /// Chunks of all sequences together that are prepared.
    pub chunks: i32,
    /// Chunks of a part; zero takes those that the table has for each sequence.
    pub part_chunks: i32,
    /// Rows of a state, which are the dims of a key.
    pub key_dim: i32,
    /// Columns of a state, which are the dims of a value.
    pub value_dim: i32,
    /// Type of query, key and value: `TYPE_F32` to `TYPE_BF16`.
    pub dtype: i32,
    /// Type of decay and beta.
    pub gate_dtype: i32,
    /// Type of the output.
    pub output_dtype: i32,
    /// [`STEPS`] and its neighbours.
    pub flags: i32,
    /// Output heads that read a state.
    pub readers: i32,
    /// Chunks from one of [`LinearArgs::boundaries`] to the next.
    pub boundary_chunks: i32,
    /// Factor of the output.
    pub scale: f32,
    /// What [`NORMALIZE`] adds to a sum of squares.
    pub epsilon: f32,
    /// `[batch, query heads, tokens, key_dim]`.
    pub query: Tensor,
    /// `[batch, key heads, tokens, key_dim]`.
    pub key: Tensor,
    /// `[batch, states, tokens, value_dim]`.
    pub value: Tensor,
    /// `[batch, heads, tokens, value_dim]`; the address is zero where a launch writes none.
    pub output: Tensor,
    /// Natural logarithms of the gates, `[batch, states, tokens, 1 or key_dim]`.
    pub decay: Tensor,
    /// `[batch, states, tokens, 1]`; its stride of heads is zero where states share it.
    pub beta: Tensor,
    /// f32 `[batch, heads, tokens, value_dim]`, added to the output before that is rounded; the address is zero where there
    /// is none. It may be the memory of the output.
    pub partial: Tensor,
    /// The states before the first chunk of each part; zero states where there are none.
    pub initial: States,
    /// The states after the last chunk of each part. They may be the memory of [`LinearArgs::initial`].
    pub last: States,
    /// The state before chunks `0, boundary_chunks, 2 boundary_chunks, …` of a sequence; its parts count them.
    pub boundaries: States,
    /// What the kernel that prepares writes of each chunk, f32 `[head][chunk][RECORD]`.
    pub records: u64,
    /// With a gate for each dim: keys and queries with their gates, f32 `[head][chunk][TILE_ROWS][dims]`.
    pub tiles: u64,
    /// Least number of tokens of the sequences that pass. Others are left alone, and so are their states and outputs.
    pub least: i32,
    /// First number of tokens above those of the sequences that pass.
    pub most: i32,
}

// The sizes and offsets that the device twin asserts too.
const _: () = {
    assert!(size_of::<LinearSequence>() == 20 && size_of::<States>() == 40);
    assert!(
        core::mem::offset_of!(LinearArgs, columns) == 56
            && core::mem::offset_of!(LinearArgs, sequences) == 72
    );
    assert!(
        core::mem::offset_of!(LinearArgs, key_dim) == 96 && core::mem::offset_of!(LinearArgs, scale) == 128
    );
    assert!(
        core::mem::offset_of!(LinearArgs, query) == 136 && core::mem::offset_of!(LinearArgs, decay) == 264
    );
    assert!(
        core::mem::offset_of!(LinearArgs, initial) == 360
            && core::mem::offset_of!(LinearArgs, boundaries) == 440
    );
    assert!(core::mem::offset_of!(LinearArgs, records) == 480);
    assert!(core::mem::offset_of!(LinearArgs, least) == 496 && size_of::<LinearArgs>() == 504);
};
