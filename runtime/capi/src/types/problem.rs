//! Problems: the shapes of tensors and the computation over them.

use super::numbers::*;

/// Shape and strides of a tensor. Element [b, h, t, c] is at offset b * strides[0] + h * strides[1] + t * strides[2] +
/// c, counted in elements from the first.
///
/// The memory of an elsa_input or elsa_output must hold at least the elements up to the last one of the view: 1 +
/// (shape[0] - 1) * strides[0] + ... + (shape[3] - 1) * strides[3].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct elsa_view {
    /// [batch, heads, tokens, dim], regardless of the order in memory.
    pub shape: [usize; 4],
    /// Strides in elements along [batch, heads, tokens, dim]; the last must be 1. An input may have strides of zero.
    pub strides: [usize; 4],
}

/// Dense mask or bias that broadcasts to [batch, heads, queries, keys] from the right: an axis has the problem's
/// length, or it is 1 or omitted to be shared. A batch axis may also divide the batch: with n masks, sequence b uses
/// mask b % n. A last axis shorter than the keys (past included) is rejected; use key_lengths to leave keys out. For 2
/// sequences, 8 heads, 5 queries and 9 keys, {9} is one row for all queries, {5, 9} one mask for all sequences and
/// heads, {2, 1, 1, 9} the padding of each sequence, and {8, 1, 9} one row per head.
///
/// A key is not attended if its element is false or -inf. Finite elements stay finite: magnitudes beyond 1.18e38 are
/// clamped to this limit, and a row whose keys are all masked by finite elements is the mean of its values.
/// elsa_mask_convert converts masks of other types.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct elsa_mask {
    /// One of ELSA_MASK_*.
    pub kind: elsa_mask_kind,
    /// Number of axes, 1 to 4.
    pub rank: u32,
    /// Sizes of the axes; the first rank entries are used.
    pub dims: [usize; 4],
}

/// Table of relative position biases, [entries, heads] in row-major order, as in Swin. The entry of a pair of query and
/// key selects the term added to its score. All zeros means no table.
///
/// If has_index is set, bias_index of the inputs holds the entry of each pair. Otherwise the problem must have windows.
/// For windows of h rows by w tokens, entries is (2 h - 1) (2 w - 1), and the entry of query token (r, c) and key token
/// (r', c') is (r - r' + h - 1) (2 w - 1) + (c - c' + w - 1).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct elsa_table {
    /// Element type: one of ELSA_DTYPE_*.
    pub dtype: elsa_dtype,
    /// Non-zero if the inputs have bias_index.
    pub has_index: u32,
    /// Number of entries, at least 1.
    pub entries: usize,
    /// Number of heads, equal to that of q.
    pub heads: usize,
}

/// Windows of a picture; each window is a sequence of the batch. Sizes are rows and columns, in tokens. All zeros
/// means no windows.
///
/// Token i of a window is at (i / w, i % w). Sequence b is window b % n of a picture, in row-major order, where n = (H
/// / h) (W / w) must divide the batch: one call covers all windows of all pictures. With a shift (a, b), the caller has
/// rolled the picture by (-a, -b), as Swin does. In the last row of windows a token then attends only tokens on its own
/// side of local row h - a, and in the last column of windows only tokens on its own side of local column w - b. This
/// mask is computed on the fly and never stored. Windows cannot be combined with packed sequences, a past, a present,
/// key_lengths, causal, window_left or window_right.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct elsa_windows {
    /// Size of the picture, {H, W}: multiples of the window's sides.
    pub picture: [usize; 2],
    /// Size of a window, {h, w}; its h w tokens are the queries and the keys of a sequence.
    pub size: [usize; 2],
    /// Distance by which the picture was rolled, {a, b}, each less than the window's side; zeros if it was not rolled.
    pub shift: [usize; 2],
}

/// Attention problem: shapes, masks, bias and scale. All zeros except the views of q, k, v and out means plain
/// attention over f32.
///
/// Numbers have the range of f32. Weights below 2^-126 exp(m), with the row's reference m, are zero or too small. A
/// non-finite value poisons the rows that attend it, even with a weight of zero. Scores, and queries times the scale,
/// must stay below 1.1e38, and the number of keys times 2^8 max |v| below 3.4e38. Beyond these limits a row is infinite
/// or NaN, or a key whose score overflows to -inf is not attended. Also, |scale| log2(e) must be at most 2^64.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct elsa_problem {
    /// sizeof(elsa_problem). elsa_problem_init sets it.
    pub size: usize,
    /// Element type of q, k, v, out, past and present: one of ELSA_DTYPE_*.
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
    /// Past keys, [batch, kv_heads, past, d].
    pub past_k: elsa_view,
    /// Past values, [batch, kv_heads, past, d_v].
    pub past_v: elsa_view,
    /// Destination of past and new keys, [batch, kv_heads, past + keys, d].
    pub present_k: elsa_view,
    /// Destination of past and new values, [batch, kv_heads, past + keys, d_v].
    pub present_v: elsa_view,
    /// Non-zero if past_k and past_v are set.
    pub has_past: u32,
    /// Non-zero if present_k and present_v are set.
    pub has_present: u32,
    /// Non-zero if the past occupies the first rows of the present's memory, so that a run writes only the new rows.
    /// past_k and present_k must then have the same strides, as must past_v and present_v. past_k and past_v of the
    /// inputs are then absent, or the addresses of present_k and present_v.
    pub append: u32,
    /// Non-zero if the inputs have key_lengths.
    pub has_key_lengths: u32,
    /// Non-zero if scale is set; otherwise the scale is 1 / sqrt(d).
    pub has_scale: u32,
    /// Multiplies the product of a query and a key, before the soft cap; read only if has_scale is set.
    pub scale: f32,
    /// Limit X of the scores: score s becomes X tanh(s / X) before mask and bias are added; 0 disables it.
    pub softcap: f32,
    /// Non-zero if window_left is set; otherwise the window is unbounded on that side.
    pub has_window_left: u32,
    /// Non-zero if window_right is set; otherwise the window is unbounded on that side.
    pub has_window_right: u32,
    /// Must be zero.
    pub reserved: u32,
    /// Number of keys before its diagonal that a row attends; not negative. The diagonal of query i is key i plus the
    /// offset of ELSA_CAUSAL_*; without causality, that of ELSA_CAUSAL_TOP_LEFT. With 3 to the left, 2 to the right and
    /// no past, query 10 attends keys 7 to 12.
    pub window_left: i64,
    /// Number of keys after its diagonal that a row attends; not negative. A causal row still ends at its diagonal.
    pub window_right: i64,
    /// The mask.
    pub mask: elsa_mask,
    /// Number of sequences that q and k pack along the token axis (the batch must then be 1); the inputs hold their
    /// offsets. 0 if sequences are not packed.
    pub packed: usize,
    /// Bias added to the scores in addition to the mask. Its kind must not be ELSA_MASK_BOOL. If the last axes of bias
    /// and mask differ, one of them must be 1. A key that the mask or the bias excludes is not attended, regardless of
    /// the other; the sum of finite elements stays finite.
    pub bias: elsa_mask,
    /// Bias as a table, instead of the tensor that bias describes.
    pub bias_table: elsa_table,
    /// Windows of a picture; each sequence is one window.
    pub windows: elsa_windows,
}
