//! Problems: the shapes of tensors, and what is computed of them.

use super::numbers::*;

/// Shape and strides of a tensor. Element [b, h, t, c] lies b * strides[0] + h * strides[1] + t * strides[2] + c elements
/// from the first.
///
/// The memory in elsa_input or elsa_output has at least the elements up to the last of the view, which are
/// 1 + (shape[0] - 1) * strides[0] + ... + (shape[3] - 1) * strides[3].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct elsa_view {
    /// [batch, heads, tokens, dim], whatever the order in memory.
    pub shape: [usize; 4],
    /// Distances in elements along [batch, heads, tokens, dim]; the last must be 1. An input may have strides of
    /// zero.
    pub strides: [usize; 4],
}

/// A mask or a bias, dense, and broadcast over [batch, heads, queries, keys] from the right: an axis is as long as the
/// problem's, or 1 or not given to be shared. A batch axis may also divide the batch: of n masks, sequence b has mask
/// b % n. A last axis shorter than the keys, past included, is refused: key_lengths leave keys out. For 2 sequences, 8 heads, 5 queries and 9 keys, {9} is one row for all queries, {5, 9} one mask for all sequences and
/// heads, {2, 1, 1, 9} the padding of each sequence, and {8, 1, 9} one row for each head.
///
/// A key is not attended where the element is false or -inf. Finite elements stay finite: beyond 1.18e38 in magnitude
/// they count as that, and a row that they mask wholly is the mean of its values. elsa_mask_convert makes masks of other
/// types.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct elsa_mask {
    /// One of ELSA_MASK_*.
    pub kind: elsa_mask_kind,
    /// Axes that are given: 1 to 4.
    pub rank: u32,
    /// Their sizes, the first rank entries.
    pub dims: [usize; 4],
}

/// A table of relative positions, [entries, heads] in row-major order, as Swin has it: what it adds to the score of a query
/// and a key depends on the entry of the pair. All zeros are no table.
///
/// With has_index, the inputs name the entry of each pair, bias_index. Otherwise the problem has windows, and with a window
/// of h rows of w tokens entries are (2 h - 1) (2 w - 1): that of query token (r, c) and key token (r', c') is
/// (r - r' + h - 1) (2 w - 1) + (c - c' + w - 1).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct elsa_table {
    /// Type of the elements: one of ELSA_DTYPE_*.
    pub dtype: elsa_dtype,
    /// Non-zero where the inputs have bias_index.
    pub has_index: u32,
    /// Entries, from 1.
    pub entries: usize,
    /// Heads: those of q.
    pub heads: usize,
}

/// Windows of a picture, each a sequence of the batch; sizes are rows and columns, in tokens. All zeros are no windows.
///
/// Token i of a window lies at (i / w, i % w). Sequence b is window b % n of a picture, row by row, where
/// n = (H / h) (W / w) divides the batch: all windows of all pictures are one call. With a shift (a, b) the caller has rolled
/// the picture by (-a, -b), as Swin does; in the last row of windows a token then attends only tokens on its own side of
/// local row h - a, and in the last column of windows on its own side of local column w - b. This mask is derived, and stored
/// nowhere. Packed sequences, a past, a present, key_lengths, causal and window_left or window_right are refused beside
/// windows.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct elsa_windows {
    /// The picture, {H, W}: multiples of the window's sides.
    pub picture: [usize; 2],
    /// A window, {h, w}, whose h w tokens are the queries and the keys of a sequence.
    pub size: [usize; 2],
    /// How far the picture was rolled, {a, b}, each less than the window's side; zeros where it was not.
    pub shift: [usize; 2],
}

/// A problem: shapes, masks, bias and scale. All zeros but for the views of q, k, v and out are plain attention over f32.
///
/// The range is that of f32. Weights are exact down to 2^-126 of a row's largest and zero below; a value that is not
/// finite poisons the rows that attend it whatever it weighs. Scores and queries times the scale must stay below
/// 1.1e38, the number of keys times 2^8 max |v| below 3.4e38; beyond, a row is infinite or NaN. |scale| log2(e) is at
/// most 2^64.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct elsa_problem {
    /// sizeof(elsa_problem). elsa_problem_init sets it.
    pub size: usize,
    /// Type of q, k, v, out, past and present: one of ELSA_DTYPE_*.
    pub dtype: elsa_dtype,
    /// One of ELSA_CAUSAL_*.
    pub causal: elsa_causal,
    /// Queries, [batch, heads, queries, d].
    pub q: elsa_view,
    /// Keys, [batch, kv_heads, keys, d]. Query head i uses key head i / (heads / kv_heads).
    pub k: elsa_view,
    /// Values, [batch, kv_heads, keys, d_v].
    pub v: elsa_view,
    /// Output, [batch, heads, queries, d_v].
    pub out: elsa_view,
    /// Earlier keys, [batch, kv_heads, past, d].
    pub past_k: elsa_view,
    /// Earlier values, [batch, kv_heads, past, d_v].
    pub past_v: elsa_view,
    /// Where earlier and new keys are written, [batch, kv_heads, past + keys, d].
    pub present_k: elsa_view,
    /// Where earlier and new values are written, [batch, kv_heads, past + keys, d_v].
    pub present_v: elsa_view,
    /// Non-zero where past_k and past_v are set.
    pub has_past: u32,
    /// Non-zero where present_k and present_v are set.
    pub has_present: u32,
    /// Non-zero where the past lies in the first rows of the present's own memory, so that a run writes the new rows
    /// alone. past_k and present_k, and past_v and present_v, then have the same strides, and inputs have no past.
    pub append: u32,
    /// Non-zero where the inputs have key_lengths.
    pub has_key_lengths: u32,
    /// Non-zero where scale is set; otherwise it is 1 / sqrt(d).
    pub has_scale: u32,
    /// Factor of the scores.
    pub scale: f32,
    /// X in X tanh(s / X), applied before mask and bias; 0 is off.
    pub softcap: f32,
    /// Non-zero where window_left is set; otherwise the window is open on that side.
    pub has_window_left: u32,
    /// Non-zero where window_right is set; otherwise the window is open on that side.
    pub has_window_right: u32,
    /// Zero.
    pub reserved: u32,
    /// A row attends the keys from its diagonal less this many; not negative. The diagonal of query i is key i plus the
    /// offset of ELSA_CAUSAL_*, and without causality that of ELSA_CAUSAL_TOP_LEFT. With 3 to the left, 2 to the right and
    /// no past, query 10 attends keys 7 to 12.
    pub window_left: i64,
    /// A row attends the keys up to its diagonal plus this many; not negative. A causal row ends at its diagonal all the
    /// same.
    pub window_right: i64,
    /// The mask.
    pub mask: elsa_mask,
    /// Number of sequences that q and k pack along their tokens (batch 1), whose bounds are among the inputs; 0 where
    /// nothing is packed.
    pub packed: usize,
    /// A bias: added to the scores besides the mask. Its kind is not ELSA_MASK_BOOL, and where the last axes of bias and
    /// mask differ, one of them is 1. A key is not attended where either says so, whatever the other holds; finite
    /// elements stay finite together.
    pub bias: elsa_mask,
    /// The bias as a table, in place of a tensor that bias describes.
    pub bias_table: elsa_table,
    /// Makes each sequence a window of a picture.
    pub windows: elsa_windows,
}
