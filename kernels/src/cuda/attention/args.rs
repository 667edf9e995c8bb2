//! The arguments of the attention kernels: the twin of `kernels/cuda/attention/call.cuh`, field for field.
//!
//! Addresses are device addresses, zero where a tensor is absent; strides count elements.

use crate::cuda::tensor::{Divisor, Tensor};

/// One sequence, and the interval of keys that each of its rows attends:
///
/// ```text
/// diagonal = offset + row
/// start    = left < 0 ? 0 : max(diagonal − left, 0)
/// end      = min(reach, right < 0 ? reach : max(diagonal + right + 1, 0))
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sequence {
    /// Index along the batch axis; zero when packed.
    pub batch: i32,
    /// First query token in the query view.
    pub query0: i32,
    /// Query tokens.
    pub queries: i32,
    /// First token of the new keys in the key view.
    pub key0: i32,
    /// Keys, including those of the past.
    pub keys: i32,
    /// Keys of the past.
    pub past: i32,
    /// Keys that are valid and inside the mask.
    pub reach: i32,
    /// Keys before the diagonal; −1 is open.
    pub left: i32,
    /// Keys after the diagonal; −1 is open, and causal is zero.
    pub right: i32,
    /// Column of the diagonal in row zero.
    pub offset: i32,
}

/// [`Addend::kind`]: none.
pub const ADDEND_NONE: i32 = 0;
/// [`Addend::kind`]: bytes; a key is attended where its byte is not zero.
pub const ADDEND_BOOL: i32 = 1;
/// [`Addend::kind`]: added, f32.
pub const ADDEND_F32: i32 = 2;
/// [`Addend::kind`]: added, f16.
pub const ADDEND_F16: i32 = 3;
/// [`Addend::kind`]: added, bf16.
pub const ADDEND_BF16: i32 = 4;

/// A mask or bias added to the scores, in natural-log units. The element of sequence `b`, head `h`, query `q` and key
/// `k` has index `batch · (b mod period) + head · h + query · P(q) + key · P(k)`, with the position `P(t) = t`, or
/// `P(t) = t + (t / width) · (width − 1)` in the bias of [`Windows::positions`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Addend {
    /// Address of the first element.
    pub data: u64,
    /// Stride in elements; zero if broadcast. The same holds for the next three.
    pub batch: i64,
    /// Stride of heads.
    pub head: i64,
    /// Stride of queries.
    pub query: i64,
    /// Stride of keys.
    pub key: i64,
    /// Precomputed division by [`Addend::period`].
    pub by_period: Divisor,
    /// Number of sequences with elements of their own.
    pub period: i32,
    /// Type of the elements: `ADDEND_NONE` to `ADDEND_BF16`.
    pub kind: i32,
}

/// The windows of pictures. In the last row of windows, rows from `side_row` on attend only one another and no other
/// row attends them; in the last column of windows, the same holds for columns from `side_column` on.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Windows {
    /// Precomputed division by [`Windows::windows`].
    pub by_windows: Divisor,
    /// Precomputed division by [`Windows::across`].
    pub by_across: Divisor,
    /// Precomputed division by [`Windows::width`].
    pub by_width: Divisor,
    /// Windows of a picture.
    pub windows: i32,
    /// Windows of a row of windows.
    pub across: i32,
    /// Columns of a window.
    pub width: i32,
    /// First row of the other side in a window of the last row; beyond any token if windows have no sides.
    pub side_row: i32,
    /// First column of the other side in a window of the last column; beyond any token if windows have no sides.
    pub side_column: i32,
    /// One if the bias is a table of relative positions, else zero.
    pub positions: i32,
}

/// [`AttentionArgs::changes`]: there is a mask.
pub const CHANGED_BY_MASK: i32 = 1;
/// [`AttentionArgs::changes`]: there is a bias.
pub const CHANGED_BY_BIAS: i32 = 2;
/// [`AttentionArgs::changes`]: windows have sides.
pub const CHANGED_BY_SIDES: i32 = 4;
/// [`AttentionArgs::changes`]: the bias is a table whose entries an index names.
pub const CHANGED_BY_INDEX: i32 = 8;
/// [`AttentionArgs::flags`]: query rows may be read four elements at a time: data aligned to four elements, strides and
/// head size multiples of four, and rows less than [`NEAR`] elements apart.
pub const QUERY_VEC4: i32 = 1;
/// [`AttentionArgs::flags`]: key rows, past ones too, may be read four elements at a time.
pub const KEY_VEC4: i32 = 2;
/// [`AttentionArgs::flags`]: value rows, past ones too, may be read four elements at a time.
pub const VALUE_VEC4: i32 = 4;
/// [`AttentionArgs::flags`]: output rows may be written four elements at a time.
pub const OUTPUT_VEC4: i32 = 8;
/// [`AttentionArgs::flags`]: query, key and value rows, including the past, are read four elements at a time and have
/// the head size of the kernel. For a kernel that sums scores in f32, queries and keys may have a smaller multiple of
/// eight.
pub const WHOLE_ROWS: i32 = 16;
/// [`AttentionArgs::flags`]: a block takes all splits of its rows, so that nothing is left to merge.
pub const SERIAL_SPLITS: i32 = 32;
/// [`AttentionArgs::flags`]: the blocks of the last rows come first, for all heads together.
pub const LONGEST_FIRST: i32 = 64;
/// Row stride in elements below which the byte offsets of a tile fit 31 bits.
pub const NEAR: i64 = 1 << 22;

/// The only parameter of the attention and merge kernels. Query rows are numbered
/// `r = (batch · heads + head) · tokens + token`, where `token` counts in the query view. The fields that every block
/// reads come first and are adjacent, so that they arrive together.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AttentionArgs {
    /// Precomputed division by [`AttentionArgs::first`].
    pub by_first: Divisor,
    /// Precomputed division by [`AttentionArgs::splits`].
    pub by_splits: Divisor,
    /// Precomputed division by [`AttentionArgs::heads`].
    pub by_heads: Divisor,
    /// Precomputed division by [`AttentionArgs::group`].
    pub by_group: Divisor,
    /// Number of consecutive blocks of one split: [`AttentionArgs::row_blocks`], or `heads · sequence_count` with
    /// [`LONGEST_FIRST`].
    pub first: i32,
    /// First of the blocks with the last rows of all splits and heads, which have fewer rows. [`AttentionArgs::first`]
    /// is then one less than [`AttentionArgs::row_blocks`]. Beyond any block if the last rows have no blocks of their own.
    pub short_from: i32,
    /// Blocks of rows of the longest sequence.
    pub row_blocks: i32,
    /// Splits of the keys.
    pub splits: i32,
    /// Query heads.
    pub heads: i32,
    /// Keys of a split, a multiple of the kernel's tile of keys.
    pub chunk: i32,
    /// Table of `sequence_count` sequences; zero if [`AttentionArgs::sequence`] describes every index of the batch.
    pub sequences: u64,
    /// The sequence of every index of the batch without a table; its `batch` is ignored.
    pub sequence: Sequence,
    /// Changes of the scores other than the soft cap: a sum of `CHANGED_BY_MASK` and its siblings.
    pub changes: i32,
    /// Layouts and orders that the kernel may rely on: a sum of `QUERY_VEC4` and its siblings.
    pub flags: i32,
    /// Factor that turns `q · k` into a score in base-2 units, or into the argument of the soft cap's tanh.
    pub query_factor: f32,
    /// Soft cap in base-2 units: a score becomes `cap · tanh(score)`. Zero disables it.
    pub cap: f32,
    /// `[batch, heads, tokens, head_dim]`.
    pub query: Tensor,
    /// New keys, `[batch, kv_heads, tokens, head_dim]`.
    pub key: Tensor,
    /// New values, `[batch, kv_heads, tokens, value_dim]`.
    pub value: Tensor,
    /// References and sums of partial states, `[row][split][2]`; zero if the attention kernel finishes rows itself.
    pub part_ms: u64,
    /// Weighted sums of partial states, `[row][split][part_dim]`.
    pub part_w: u64,
    /// f32 values from one partial weighted sum to the next: `value_dim` rounded up to a multiple of four.
    pub part_dim: i32,
    /// Tokens of the query view.
    pub tokens: i32,
    /// Type of query, key, value, output and past: `TYPE_F32` to `TYPE_BF16`.
    pub dtype: i32,
    /// Query heads per key head.
    pub group: i32,
    /// `[batch, heads, tokens, value_dim]`; the address is zero if a call with partial states has no output.
    pub output: Tensor,
    /// Precomputed division by [`AttentionArgs::tokens`].
    pub by_tokens: Divisor,
    /// Head size of queries and keys.
    pub head_dim: i32,
    /// Head size of values.
    pub value_dim: i32,
    /// Query rows: `batch · heads · tokens`.
    pub query_rows: i32,
    /// Sequences.
    pub sequence_count: i32,
    /// Log-sum-exp of each row, in natural-log units.
    pub lse: u64,
    /// References of the states, in natural-log units, `[row]`.
    pub state_m: u64,
    /// Sums of the states, `[row]`.
    pub state_s: u64,
    /// Weighted sums of the states, `[row][value_dim]`.
    pub state_w: u64,
    /// Earlier keys.
    pub past_key: Tensor,
    /// Earlier values.
    pub past_value: Tensor,
    /// The mask.
    pub mask: Addend,
    /// The bias. With `CHANGED_BY_INDEX` it is a table whose entries are [`Addend::query`] elements apart.
    pub bias: Addend,
    /// With `CHANGED_BY_INDEX`, the table entry of each pair, i64 `[queries][index_keys]`.
    pub index: u64,
    /// Keys of a row of the index.
    pub index_keys: i32,
    /// Entries of the table.
    pub entries: i32,
    /// The windows of pictures.
    pub windows: Windows,
}

/// The only parameter of the kernel that writes the present, which concatenates earlier and new rows:
/// `present[b][h][0 .. past + fresh]`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PresentArgs {
    /// Earlier rows.
    pub past: Tensor,
    /// New rows.
    pub fresh: Tensor,
    /// Earlier rows, then new ones.
    pub present: Tensor,
    /// Sequences.
    pub batch: i32,
    /// Key heads.
    pub heads: i32,
    /// Earlier tokens.
    pub past_tokens: i32,
    /// New tokens.
    pub fresh_tokens: i32,
    /// Elements of a row.
    pub dim: i32,
    /// Bytes of an element.
    pub element_size: i32,
}

// The device twin asserts the same sizes and offsets.
const _: () = {
    assert!(size_of::<Sequence>() == 40);
    assert!(
        core::mem::offset_of!(AttentionArgs, sequences) == 56
            && core::mem::offset_of!(AttentionArgs, changes) == 104
    );
    assert!(
        core::mem::offset_of!(AttentionArgs, query) == 120
            && core::mem::offset_of!(AttentionArgs, part_dim) == 232
    );
    assert!(
        core::mem::offset_of!(AttentionArgs, output) == 248
            && core::mem::offset_of!(AttentionArgs, lse) == 304
    );
    assert!(
        core::mem::offset_of!(AttentionArgs, past_key) == 336
            && core::mem::offset_of!(AttentionArgs, mask) == 400
    );
    assert!(
        core::mem::offset_of!(AttentionArgs, bias) == 456
            && core::mem::offset_of!(AttentionArgs, windows) == 528
    );
    assert!(size_of::<Addend>() == 56 && size_of::<Windows>() == 48);
    assert!(size_of::<AttentionArgs>() == 576 && size_of::<PresentArgs>() == 120);
};
