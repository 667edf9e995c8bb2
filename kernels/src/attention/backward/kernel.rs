//! Operands of the backward micro-kernel. Sizes, strides and offsets count f32 values.

use crate::attention::mask::{MaskTile, Seen};
use crate::primitives::Primitives;
use elsa_core::attention::backward::BackwardKernelSpec;

/// A tile of query rows and its working memory. `rows` and `panel` are those of the kernel's [`BackwardKernelSpec`],
/// and `lanes` its lanes. A strip is the kernel's number of whole vectors of dims; the last strips have one vector
/// each.
///
/// Contract, for blocks of at most `B` keys:
/// - `head_dim` and `value_dim` are multiples of four; `head_row` and `value_row` multiples of `lanes`.
/// - `query_columns` is readable for `head_dim · rows` values `[panel][dim][row of the panel]`, scaled to scores in
///   base-2 units, and `upstream_columns` likewise for `value_dim`.
/// - `query_rows` is readable for `head_row · rows` values `[strip][row][dim of the strip]`, and `upstream_rows` for
///   `value_row · rows`.
/// - `statistics` is readable for `4 · rows` values: `whole`, `rest` and `factor` of
///   [`RowWeights`](elsa_core::attention::backward::RowWeights), and `D`.
/// - `d_query` is readable and writable for `head_dim · rows` values `[panel][dim][row of the panel]`.
/// - `scores`, `probabilities`, `d_scores` and `d_scores_by_panel` are writable for `(B + tile_keys) · rows` values each,
///   and initialised.
/// - None of them overlaps another, or what the block points to.
#[derive(Clone, Copy, Debug)]
pub struct BackwardTile {
    /// Queries, scaled, by columns.
    pub query_columns: *const f32,
    /// Upstream gradients by columns.
    pub upstream_columns: *const f32,
    /// Queries by rows.
    pub query_rows: *const f32,
    /// Upstream gradients by rows.
    pub upstream_rows: *const f32,
    /// Statistics of each row.
    pub statistics: *const f32,
    /// Gradients of the queries, which are added to.
    pub d_query: *mut f32,
    /// Buffer for scores, `[key][row]`.
    pub scores: *mut f32,
    /// Buffer for probabilities, `[key][row]`.
    pub probabilities: *mut f32,
    /// Buffer for gradients of scores, `[key][row]`.
    pub d_scores: *mut f32,
    /// Buffer for gradients of scores, `[panel][key][row of the panel]`.
    pub d_scores_by_panel: *mut f32,
    /// Head size of queries and keys.
    pub head_dim: usize,
    /// Head size of values.
    pub value_dim: usize,
    /// Values of a row of queries, and of gradients of keys.
    pub head_row: usize,
    /// Values of a row of upstream gradients, and of gradients of values.
    pub value_row: usize,
    /// `true` if every query is finite.
    pub finite_query: bool,
    /// `true` if every upstream gradient is finite.
    pub finite_upstream: bool,
}

/// A block of keys.
///
/// Contract, for a tile of `rows` rows and blocks of at most `B` keys, with `padded` for the count rounded up to a multiple
/// of the kernel's `tile_keys`:
/// - `count` is at least one and at most `B`.
/// - `keys` is readable for `padded` contiguous rows of `head_dim` values, and `values` of `value_dim`.
/// - `d_keys` is readable and writable for `padded` contiguous rows of `head_row` values, and `d_values` of
///   `value_row`.
/// - `bias` is null, or readable for `count · rows` values.
#[derive(Clone, Copy, Debug)]
pub struct BackwardBlock {
    /// Keys.
    pub keys: *const f32,
    /// Values.
    pub values: *const f32,
    /// Gradients of the keys, which are added to.
    pub d_keys: *mut f32,
    /// Gradients of the values, which are added to.
    pub d_values: *mut f32,
    /// Keys in the block.
    pub count: usize,
    /// Addends of the scores, `[key][row]`, in base-2 units; `−∞` masks. Null if no key is masked or biased.
    pub bias: *const f32,
    /// Soft cap in base-2 units: a score `s` becomes `cap · tanh(s)`. Zero disables it.
    pub cap: f32,
    /// `true` if every key is finite.
    pub finite_keys: bool,
}

/// A backward micro-kernel.
#[derive(Debug)]
pub struct BackwardKernel {
    /// Name, tile, error constants.
    pub spec: BackwardKernelSpec,
    /// Number of vectors of a strip of dims.
    pub strip: usize,
    /// Presence, moves and conversions of its instruction set.
    pub primitives: &'static Primitives,
    /// [`super::step`], with its clauses and presence.
    pub step: unsafe fn(&BackwardTile, &BackwardBlock),
    /// `attention::mask::bias`, with its clauses and presence.
    pub bias: unsafe fn(&MaskTile, usize, *mut f32, &mut Seen),
}

impl BackwardKernel {
    /// Returns `true` if this machine has the kernel's instruction set.
    #[must_use]
    pub fn is_present(&self) -> bool {
        (self.primitives.present)()
    }

    /// Returns the index of dim `x` of row `row` in rows by strips, whose dims are padded to `width`.
    #[must_use]
    pub const fn place(&self, width: usize, row: usize, x: usize) -> usize {
        let strip = self.strip * self.spec.lanes;
        let whole = width / strip * strip;
        // The last strips have one vector each.
        let wide = if x < whole { strip } else { self.spec.lanes };
        let first = if x < whole { x / strip * strip } else { whole + (x - whole) / wide * wide };
        first * self.spec.rows + row * wide + (x - first)
    }
}
