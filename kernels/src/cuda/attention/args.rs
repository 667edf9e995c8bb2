//! The arguments of the attention kernels: the twin of `kernels/cuda/attention/call.cuh`, field for field.
//!
//! Addresses are device addresses, zero where a tensor is absent; strides count elements.

use crate::cuda::tensor::{DeviceTensor, Divisor};

/// One sequence. Each row of the sequence attends the keys from `start` (included) to `end` (excluded):
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
    /// Number of query tokens.
    pub queries: i32,
    /// First token of the new keys in the key view.
    pub key0: i32,
    /// Number of keys, including the past.
    pub keys: i32,
    /// Number of keys in the past.
    pub past: i32,
    /// Number of leading keys that are valid and that the mask covers.
    pub reach: i32,
    /// Number of keys attended before the diagonal; −1 means no limit.
    pub left: i32,
    /// Number of keys attended after the diagonal; −1 means no limit, zero means causal.
    pub right: i32,
    /// Column of the diagonal in row zero.
    pub offset: i32,
}

/// [`Addend::kind`]: boolean bytes; a key is attended if its byte is not zero.
pub const ADDEND_BOOL: i32 = 1;
/// [`Addend::kind`]: f32 elements, added to the scores.
pub const ADDEND_F32: i32 = 2;
/// [`Addend::kind`]: f16 elements, added to the scores.
pub const ADDEND_F16: i32 = 3;
/// [`Addend::kind`]: bf16 elements, added to the scores.
pub const ADDEND_BF16: i32 = 4;

/// A mask or bias added to the scores, in natural-log units. The element of sequence `b`, head `h`, query `q` and key
/// `k` has the index `batch · (b mod period) + head · h + query · P(q) + key · P(k)`. `P(t)` is the position of token
/// `t`. For a bias, if [`Windows::positions`] is one, `P(t) = t + (t / width) · (width − 1)`. In all other cases `P(t)
/// = t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Addend {
    /// Address of the first element.
    pub data: u64,
    /// Stride of sequences in elements; zero if all sequences have the same elements.
    pub batch: i64,
    /// Stride of heads in elements; zero if broadcast.
    pub head: i64,
    /// Stride of queries in elements; zero if broadcast.
    pub query: i64,
    /// Stride of keys in elements; zero if broadcast.
    pub key: i64,
    /// Precomputed division by [`Addend::period`].
    pub by_period: Divisor,
    /// Number of sequences after which the elements repeat.
    pub period: i32,
    /// Type of the elements: `ADDEND_BOOL` to `ADDEND_BF16`; zero if there are none.
    pub kind: i32,
}

/// Windows of pictures. In the last row of windows, a window has two sides: token rows before `side_row`, and the other
/// token rows. In the last column of windows, the same holds for token columns and `side_column`. Tokens attend only
/// tokens on the same side.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Windows {
    /// Precomputed division by [`Windows::windows`].
    pub by_windows: Divisor,
    /// Precomputed division by [`Windows::across`].
    pub by_across: Divisor,
    /// Precomputed division by [`Windows::width`].
    pub by_width: Divisor,
    /// Number of windows per picture.
    pub windows: i32,
    /// Number of windows in a row of windows.
    pub across: i32,
    /// Number of token columns per window.
    pub width: i32,
    /// First token row of the second side, in windows of the last row of windows. If windows have no sides, this number
    /// exceeds every token row.
    pub side_row: i32,
    /// First token column of the second side, in windows of the last column of windows. If windows have no sides, this
    /// number exceeds every token column.
    pub side_column: i32,
    /// One if the bias is a table of relative positions; zero if not.
    pub positions: i32,
}

/// [`AttentionArgs::changes`]: there is a mask.
pub const CHANGED_BY_MASK: i32 = 1;
/// [`AttentionArgs::changes`]: there is a bias.
pub const CHANGED_BY_BIAS: i32 = 2;
/// [`AttentionArgs::changes`]: some windows have two sides, which do not attend each other.
pub const CHANGED_BY_SIDES: i32 = 4;
/// [`AttentionArgs::changes`]: the bias is a table, and an index names the entry for each pair of query and key.
pub const CHANGED_BY_INDEX: i32 = 8;
/// [`AttentionArgs::flags`]: query rows may be read four elements at a time. The query data is aligned to four
/// elements, strides and head size are multiples of four, and query rows are less than [`NEAR`] elements apart.
pub const QUERY_VEC4: i32 = 1;
/// [`AttentionArgs::flags`]: key rows, including the past, may be read four elements at a time.
pub const KEY_VEC4: i32 = 2;
/// [`AttentionArgs::flags`]: value rows, including the past, may be read four elements at a time.
pub const VALUE_VEC4: i32 = 4;
/// [`AttentionArgs::flags`]: output rows may be written four elements at a time.
pub const OUTPUT_VEC4: i32 = 8;
/// [`AttentionArgs::flags`]: query, key and value rows, including the past, may be read four elements at a time, and
/// the length of these rows is the head size of the kernel. For a kernel that sums scores in f32, the head size of
/// queries and keys may also be a smaller multiple of eight.
pub const WHOLE_ROWS: i32 = 16;
/// [`AttentionArgs::flags`]: a thread block computes all splits of its rows, so that no merge kernel follows.
pub const SERIAL_SPLITS: i32 = 32;
/// [`AttentionArgs::flags`]: the thread blocks for the last rows of all heads run first.
pub const LONGEST_FIRST: i32 = 64;
/// [`AttentionArgs::flags`]: the last of the thread blocks that compute the splits of a row block merges their states, so
/// that no merge kernel follows. The [`ARRIVALS`](elsa_core::attention::plan::ARRIVALS) words before [`AttentionArgs::part_ms`] are zero before and after the
/// launch. They count the blocks that are done, one word for each row block of each head.
pub const LAST_MERGES: i32 = 128;
/// Bound on the row stride in elements. For smaller strides, the byte offsets within a tile fit 31 bits.
pub const NEAR: i64 = 1 << 22;

/// The only parameter of the attention and merge kernels. Query rows are numbered
/// `r = (batch · heads + head) · tokens + token`, where `token` is the index in the query view. The fields that every
/// block reads come first and are adjacent, so that they are loaded together.
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
    /// Number of consecutive thread blocks for one split: [`AttentionArgs::row_blocks`], or `heads · sequence_count`
    /// with [`LONGEST_FIRST`].
    pub first: i32,
    /// Index of the first short thread block. If there are no short blocks, this number exceeds the index of every
    /// block. Short blocks compute the last rows of a head, and each has fewer rows than the other blocks. The short
    /// blocks of all splits and heads come after all other blocks. If there are short blocks, [`AttentionArgs::first`]
    /// is [`AttentionArgs::row_blocks`] minus one.
    pub short_from: i32,
    /// Number of row blocks in the longest sequence.
    pub row_blocks: i32,
    /// Number of splits of the keys.
    pub splits: i32,
    /// Number of query heads.
    pub heads: i32,
    /// Number of keys per split, a multiple of the kernel's tile of keys.
    pub chunk: i32,
    /// Address of a table of `sequence_count` sequences; zero if [`AttentionArgs::sequence`] describes every index of
    /// the batch.
    pub sequences: u64,
    /// If there is no table, the sequence at every index of the batch. The field `batch` of this sequence is ignored.
    pub sequence: Sequence,
    /// Modifications of the scores in addition to the soft cap: a sum of `CHANGED_BY_*` constants.
    pub changes: i32,
    /// Layouts and orders that the kernel may rely on: a sum of constants from `QUERY_VEC4` to `LAST_MERGES`.
    pub flags: i32,
    /// Factor that converts `q · k` to a score in base-2 units. With a soft cap, the factor converts `q · k` to the
    /// argument of `tanh`.
    pub query_factor: f32,
    /// Soft cap in base-2 units: a score becomes `cap · tanh(score)`. Zero disables it.
    pub cap: f32,
    /// Queries, `[batch, heads, tokens, head_dim]`.
    pub query: DeviceTensor,
    /// New keys, `[batch, kv_heads, tokens, head_dim]`.
    pub key: DeviceTensor,
    /// New values, `[batch, kv_heads, tokens, value_dim]`.
    pub value: DeviceTensor,
    /// References and sums of partial states, `[row][split][2]`; zero if the attention kernel finishes rows itself.
    pub part_ms: u64,
    /// Weighted sums of partial states, `[row][split][part_dim]`.
    pub part_w: u64,
    /// Stride of partial weighted sums in f32 values: `value_dim` rounded up to a multiple of four.
    pub part_dim: i32,
    /// Number of tokens in the query view.
    pub tokens: i32,
    /// Element type of query, key, value, output and past: a constant from `TYPE_F32` to `TYPE_BF16`.
    pub dtype: i32,
    /// Number of query heads per key head.
    pub group: i32,
    /// Output, `[batch, heads, tokens, value_dim]`. The address is zero if the call has partial states and no output.
    pub output: DeviceTensor,
    /// Precomputed division by [`AttentionArgs::tokens`].
    pub by_tokens: Divisor,
    /// Head size of queries and keys.
    pub head_dim: i32,
    /// Head size of values.
    pub value_dim: i32,
    /// Number of query rows: `batch · heads · tokens`.
    pub query_rows: i32,
    /// Number of sequences.
    pub sequence_count: i32,
    /// Log-sum-exp of each row, in natural-log units.
    pub lse: u64,
    /// References of the states, in natural-log units, `[row]`.
    pub state_m: u64,
    /// Sums of weights of the states, `[row]`.
    pub state_s: u64,
    /// Weighted sums of the states, `[row][value_dim]`.
    pub state_w: u64,
    /// Keys of the past.
    pub past_key: DeviceTensor,
    /// Values of the past.
    pub past_value: DeviceTensor,
    /// The mask added to the scores.
    pub mask: Addend,
    /// The bias added to the scores. With `CHANGED_BY_INDEX` it is a table, and [`Addend::query`] is the stride of the
    /// table's entries.
    pub bias: Addend,
    /// With `CHANGED_BY_INDEX`, the table entry for each pair of query and key, i64 `[queries][index_keys]`.
    pub index: u64,
    /// Number of keys per row of the index.
    pub index_keys: i32,
    /// Number of entries in the table of the bias.
    pub entries: i32,
    /// The windows of pictures.
    pub windows: Windows,
}

/// The only parameter of the kernel that writes the present tensor, which concatenates past and new rows:
/// `present[b][h][0 .. past + fresh]`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PresentArgs {
    /// Rows of the past.
    pub past: DeviceTensor,
    /// New rows.
    pub fresh: DeviceTensor,
    /// Present tensor: the past rows, followed by the new rows.
    pub present: DeviceTensor,
    /// Number of sequences.
    pub batch: i32,
    /// Number of key heads.
    pub heads: i32,
    /// Number of past tokens.
    pub past_tokens: i32,
    /// Number of new tokens.
    pub fresh_tokens: i32,
    /// Number of elements per row.
    pub dim: i32,
    /// Size of an element in bytes.
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
