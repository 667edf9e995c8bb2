//! The arguments of the kernels of linear attention: the twin of `kernels/cuda/linear/call.cuh`, field for field.
//!
//! Addresses are device addresses, zero where a tensor is absent; strides count elements.

use crate::cuda::tensor::{DeviceTensor, Divisor};

/// Number of tokens per chunk. Chunks are counted from the first token of a sequence; with [`REVERSE`] they are counted
/// from the last token.
pub const CHUNK: usize = 16;
/// Number of tokens per chunk in the kernels that compute all chunks at once ([`LinearLong`](super::LinearLong)).
pub const LONG_CHUNK: usize = 64;
/// Number of f32 values per output head and chunk in [`LinearArgs::records`], in the kernels that compute all chunks at
/// once: a weight for each pair of tokens, then three factors for each token.
pub const LONG_RECORD: usize = LONG_CHUNK * (LONG_CHUNK + 3);
/// Number of f32 values that follow the rows of a state in [`LinearArgs::boundaries`], in the kernels that compute all
/// chunks at once. The first of these values is the gate of the chunk, the second a factor of its terms.
pub const LONG_GATE: usize = 4;
/// Largest number of output heads per state in a kernel with [`LinearWalk::shares`](super::LinearWalk::shares). It is
/// the number of rows in a tile of queries.
pub const MOST_READERS: usize = CHUNK;
/// Number of state columns per thread block of the quadratic kernels.
pub const PARALLEL_COLUMNS: usize = 64;
/// Number of tokens per thread block of the quadratic kernel without a delta rule and with at most one gate per head.
pub const PARALLEL_ROWS: usize = 16;
/// Number of tokens, or of state rows, per thread block of the quadratic kernels with a delta rule or a gate per dim.
pub const QUADRATIC_ROWS: usize = 32;
/// Number of f32 values per record in [`LinearArgs::records`].
pub const RECORD: usize = 548;
/// Number of rows per chunk in [`LinearArgs::tiles`]. A row has the kernel's number of dims.
pub const TILE_ROWS: usize = 3 * CHUNK + 1;

/// One sequence. Its index in the table of sequences is also the index of its states.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinearSequence {
    /// Index along the batch axis; zero when packed.
    pub batch: i32,
    /// First token of the sequence in the views.
    pub first: i32,
    /// Number of tokens.
    pub tokens: i32,
    /// Index of the sequence's first chunk among the prepared chunks of all sequences. Unused without prepared chunks.
    pub chunk0: i32,
    /// Number of chunks per part of this sequence. Used only by a scan.
    pub part_chunks: i32,
}

/// States in f32, `[sequence][head][part][row][value_dim]`, with `key_dim` rows; strides are in elements. A head is a
/// value head.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct States {
    /// Address of the first element; zero if absent.
    pub data: u64,
    /// Stride of sequences.
    pub sequence: i64,
    /// Stride of heads.
    pub head: i64,
    /// Stride of parts; zero if all parts have the same state.
    pub part: i64,
    /// Stride of rows.
    pub row: i64,
}

/// [`LinearArgs::flags`]: tokens are processed one at a time, without [`LinearArgs::records`].
pub const STEPS: i32 = 1;
/// [`LinearArgs::flags`]: tokens are processed from the last token of a sequence to the first.
pub const REVERSE: i32 = 2;
/// [`LinearArgs::flags`]: rows of queries and keys are divided by `sqrt(Σx² + epsilon)`.
pub const NORMALIZE: i32 = 4;
/// [`LinearArgs::flags`]: each part starts from the identity and values are zero, so that the last state of a part is
/// its transition `[key_dim, key_dim]`. `value_dim` is `key_dim`, and the launch has no output.
pub const IDENTITY: i32 = 8;
/// [`LinearArgs::flags`]: tokens read the first state of their part and do not change it.
pub const READ: i32 = 16;
/// [`LinearArgs::flags`]: query rows may be read four elements at a time. The query data is aligned to four elements,
/// strides and row size are multiples of four, and tokens are less than [`NEAR`] elements apart.
pub const QUERY_VEC4: i32 = 32;
/// [`LinearArgs::flags`]: key rows may be read four elements at a time, as for [`QUERY_VEC4`].
pub const KEY_VEC4: i32 = 64;
/// [`LinearArgs::flags`]: value rows may be read four elements at a time, as for [`QUERY_VEC4`].
pub const VALUE_VEC4: i32 = 128;
/// [`LinearArgs::flags`]: decay rows that contain a gate per dim may be read four elements at a time, as for
/// [`QUERY_VEC4`].
pub const DECAY_VEC4: i32 = 256;
/// [`LinearArgs::flags`]: output rows may be written four elements at a time.
pub const OUTPUT_VEC4: i32 = 512;
/// [`LinearArgs::flags`]: rows of [`LinearArgs::partial`] may be read four elements at a time.
pub const PARTIAL_VEC4: i32 = 1024;
/// [`LinearArgs::flags`]: rows of all [`States`] of the call may be read and written four elements at a time.
pub const STATE_VEC4: i32 = 2048;
/// [`LinearArgs::flags`]: every part after the first starts from zeros. With [`IDENTITY`] the first part is skipped,
/// because a scan needs the last state of this part, not its transition. In the kernel of
/// [`LinearLong::Answers`](super::LinearLong::Answers) for few blocks, [`LinearArgs::boundaries`] have the terms of the chunks,
/// and each block computes the state before its chunk from them.
pub const FOLD: i32 = 4096;
/// [`LinearArgs::flags`]: every part after the first starts from the state at the end of the previous part. These
/// states are in [`LinearArgs::boundaries`]. Only one part writes a last state: the last part that has tokens, or the
/// first part if no part has tokens. If there is no output, only this part is computed.
pub const RESUME: i32 = 8192;
/// [`LinearArgs::flags`]: values are f32, independent of the type of queries and keys.
pub const VALUE_F32: i32 = 16384;
/// [`LinearArgs::flags`]: each dim has a gate. Only kernels that support both gates per dim and gates per head read this
/// flag: those of the quadratic form, and those that compute all chunks at once.
pub const DIM_GATES: i32 = 32768;
/// Bound on the token stride in elements. For smaller strides, the byte offsets within a chunk fit 31 bits.
pub const NEAR: i64 = 1 << 22;

/// The only parameter of the kernels that walk over tokens, prepare chunks, or compute the quadratic form. In the
/// quadratic form a block has [`PARALLEL_COLUMNS`] columns, and each part starts from [`LinearArgs::initial`]. A part
/// is a run of [`PARALLEL_ROWS`] or [`QUADRATIC_ROWS`] tokens; when the last state is computed, it is a run of
/// [`QUADRATIC_ROWS`] rows of this state.
///
/// Heads are output heads. A head reads state `head / readers` and query head `head / sharers`. At least one of these
/// two divisors is one. State `s` uses key head `s / key_group`. If several heads read a state, each of these heads
/// computes the state, and the first of these heads writes [`LinearArgs::last`] and [`LinearArgs::boundaries`]. In a
/// kernel with [`LinearWalk::shares`](super::LinearWalk::shares), head indices are state indices, and
/// [`LinearArgs::last`] must not alias [`LinearArgs::initial`].
///
/// Positions count the tokens of a sequence in processing order. A sequence of `n` tokens has `n.div_ceil(CHUNK)`
/// chunks, and a part is a run of [`LinearArgs::part_chunks`] chunks. Parts past the last chunk are empty: their
/// last state equals their first state. In the kernels that compute all chunks at once, chunks have [`LONG_CHUNK`] tokens
/// instead, and so have those that the sequences and [`LinearArgs::chunks`] count.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinearArgs {
    /// Precomputed division by [`LinearArgs::columns`].
    pub by_columns: Divisor,
    /// Precomputed division by [`LinearArgs::parts`].
    pub by_parts: Divisor,
    /// Precomputed division by [`LinearArgs::heads`].
    pub by_heads: Divisor,
    /// Precomputed division by [`LinearArgs::readers`].
    pub by_readers: Divisor,
    /// Precomputed division by the number of output heads per query head.
    pub by_sharers: Divisor,
    /// Precomputed division by the number of states per key head.
    pub by_key_group: Divisor,
    /// Precomputed division by [`LinearArgs::sequence_chunks`].
    pub by_sequence_chunks: Divisor,
    /// Number of blocks into which the columns of a state are divided.
    pub columns: i32,
    /// Number of parts per sequence.
    pub parts: i32,
    /// Number of output heads; in a kernel with [`LinearWalk::shares`](super::LinearWalk::shares), number of states.
    pub heads: i32,
    /// Number of sequences.
    pub sequence_count: i32,
    /// Address of a table of `sequence_count` [`LinearSequence`]s; zero if every index of the batch is one sequence of
    /// `tokens` tokens.
    pub sequences: u64,
    /// Number of tokens per sequence, if there is no table.
    pub tokens: i32,
    /// Number of chunks per sequence, if there is no table.
    pub sequence_chunks: i32,
    /// Number of prepared chunks, over all sequences.
    pub chunks: i32,
    /// Number of chunks per part; zero if the table of sequences contains this number.
    pub part_chunks: i32,
    /// Number of rows of a state: the dims of a key.
    pub key_dim: i32,
    /// Number of columns of a state: the dims of a value.
    pub value_dim: i32,
    /// Type of query, key and value: `TYPE_F32` to `TYPE_BF16`.
    pub dtype: i32,
    /// Type of decay and beta.
    pub gate_dtype: i32,
    /// Type of the output.
    pub output_dtype: i32,
    /// Sum of constants from [`STEPS`] to [`DIM_GATES`].
    pub flags: i32,
    /// Number of output heads per state.
    pub readers: i32,
    /// Number of chunks between consecutive [`LinearArgs::boundaries`].
    pub boundary_chunks: i32,
    /// Factor applied to the output.
    pub scale: f32,
    /// Number that [`NORMALIZE`] adds to a sum of squares.
    pub epsilon: f32,
    /// Queries, `[batch, query heads, tokens, key_dim]`.
    pub query: DeviceTensor,
    /// Keys, `[batch, key heads, tokens, key_dim]`.
    pub key: DeviceTensor,
    /// Values, `[batch, states, tokens, value_dim]`.
    pub value: DeviceTensor,
    /// Output, `[batch, heads, tokens, value_dim]`; the address is zero if the launch has no output.
    pub output: DeviceTensor,
    /// Natural logarithms of the gates, `[batch, states, tokens, 1 or key_dim]`.
    pub decay: DeviceTensor,
    /// Rates of the delta rule, `[batch, states, tokens, 1]`; the head stride is zero if states have the same rates.
    pub beta: DeviceTensor,
    /// Addends, f32 `[batch, heads, tokens, value_dim]`, added to the output before the output is rounded. The address
    /// is zero if there are no addends. May alias the output.
    pub partial: DeviceTensor,
    /// States before the first chunk of each part; zeros if absent.
    pub initial: States,
    /// States after the last chunk of each part. May alias [`LinearArgs::initial`].
    pub last: States,
    /// States before chunks `0, boundary_chunks, 2 boundary_chunks, …` of a sequence, indexed by part. In the kernels that
    /// compute all chunks at once, a part is a chunk of [`LONG_CHUNK`] tokens, parts are counted over all sequences, and
    /// [`LONG_GATE`] values follow each state.
    pub boundaries: States,
    /// Records of the prepared chunks, f32 `[head][chunk][RECORD]`; in the kernels that compute all chunks at once, f32
    /// `[head][chunk][LONG_RECORD]`.
    pub records: u64,
    /// Keys and queries multiplied by gates, f32 `[head][chunk][TILE_ROWS][dims]`; used if every dim has a gate. In the kernels
    /// that compute all chunks at once, under a delta rule or with a gate per dim, each state and chunk has
    /// [`long_tile`](super::long_tile) f32 values. If every dim has a gate, the queries multiplied by gates follow, f32 `[head]
    /// [chunk][LONG_CHUNK][dims]`.
    pub tiles: u64,
    /// The launch processes only sequences with at least this number of tokens. It leaves the states and outputs of all
    /// other sequences unchanged.
    pub least: i32,
    /// The launch processes only sequences with fewer tokens than this number.
    pub most: i32,
}

/// The parameter of the first and the second kernel that compute all chunks at once, under a delta rule or with a gate per dim
/// ([`LinearLong::Solve`](super::LinearLong::Solve), [`LinearLong::Carry`](super::LinearLong::Carry)).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LongArgs {
    /// The call.
    pub call: LinearArgs,
    /// Values that tokens write under a delta rule, f32 `[batch, states, tokens, value_dim]` with rows padded to a multiple
    /// of four elements. The first launch stores their part that does not depend on the state.
    pub written: DeviceTensor,
}

// The device twin asserts the same sizes and offsets.
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
    assert!(core::mem::offset_of!(LongArgs, written) == 504 && size_of::<LongArgs>() == 536);
};
