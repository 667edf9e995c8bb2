//! Operands of the backward micro-kernel. Sizes, strides and offsets count f32 values.

use crate::attention::mask::{MaskTile, Seen};
use crate::primitives::Primitives;
use elsa_core::attention::backward::BackwardKernelSpec;

/// A tile of query rows and its working memory. `rows` and `panel` are fields of the kernel's [`BackwardKernelSpec`],
/// and `lanes` is the number of lanes of the kernel's vectors. A strip consists of [`BackwardKernel::strip`] vectors of
/// dims. The remaining dims, too few for such a strip, form strips of one vector each.
///
/// Contract, for blocks of at most `B` keys:
/// - `head_dim` and `value_dim` are multiples of four; `head_row` and `value_row` are multiples of `lanes`.
/// - `query_columns` is readable for `head_dim · rows` values `[panel][dim][row of the panel]`, scaled so that scores
///   are in base-2 units. `upstream_columns` is readable for `value_dim · rows` values in the same order.
/// - `query_rows` is readable for `head_row · rows` values `[strip][row][dim of the strip]`, and `upstream_rows` for
///   `value_row · rows` values in the same order.
/// - `statistics` is readable for `4 · rows` values: `whole`, `rest` and `factor` of
///   [`RowWeights`](elsa_core::attention::backward::RowWeights), and `D`.
/// - `d_query` is readable and writable for `head_dim · rows` values `[panel][dim][row of the panel]`.
/// - `scores`, `probabilities`, `d_scores` and `d_scores_by_panel` are writable for `(B + tile_keys) · rows` values each,
///   and initialised.
/// - These regions do not overlap each other or the regions that the block points to.
#[derive(Clone, Copy, Debug)]
pub struct BackwardTile {
    /// Queries by columns, scaled so that scores are in base-2 units.
    pub query_columns: *const f32,
    /// Upstream gradients by columns.
    pub upstream_columns: *const f32,
    /// Queries by rows.
    pub query_rows: *const f32,
    /// Upstream gradients by rows.
    pub upstream_rows: *const f32,
    /// Four statistics for each row: `whole`, `rest`, `factor` and `D`, in this order.
    pub statistics: *const f32,
    /// Gradients of the queries, to which [`BackwardKernel::step`] adds.
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
    /// Padded number of values per row of queries and of key gradients.
    pub head_row: usize,
    /// Padded number of values per row of upstream gradients and of value gradients.
    pub value_row: usize,
    /// `true` if every query is finite.
    pub finite_query: bool,
    /// `true` if every upstream gradient is finite.
    pub finite_upstream: bool,
}

/// A block of keys.
///
/// Contract, for a tile of `rows` rows and blocks of at most `B` keys, where `padded` is `count` rounded up to a
/// multiple of the kernel's `tile_keys`:
/// - `count` is at least one and at most `B`.
/// - `keys` is readable for `padded` contiguous rows of `head_dim` values, and `values` for `padded` rows of
///   `value_dim` values.
/// - `d_keys` is readable and writable for `padded` contiguous rows of `head_row` values, and `d_values` for `padded`
///   rows of `value_row` values.
/// - `bias` is null, or readable for `count · rows` values.
#[derive(Clone, Copy, Debug)]
pub struct BackwardBlock {
    /// Keys, by rows.
    pub keys: *const f32,
    /// Values, by rows.
    pub values: *const f32,
    /// Gradients of the keys, to which [`BackwardKernel::step`] adds.
    pub d_keys: *mut f32,
    /// Gradients of the values, to which [`BackwardKernel::step`] adds.
    pub d_values: *mut f32,
    /// Number of keys in the block.
    pub count: usize,
    /// Terms added to the scores, `[key][row]`, in base-2 units; `−∞` masks a key. Null if no key is masked or biased.
    pub bias: *const f32,
    /// Soft cap in base-2 units: a score `s` becomes `cap · tanh(s)`. Zero disables it.
    pub cap: f32,
    /// `true` if every key is finite.
    pub finite_keys: bool,
}

/// A backward micro-kernel.
#[derive(Debug)]
pub struct BackwardKernel {
    /// Description of the kernel for planners: name, tile sizes and error constants.
    pub spec: BackwardKernelSpec,
    /// Number of vectors per strip of dims.
    pub strip: usize,
    /// Functions of the instruction set that test its presence, move data and convert element types.
    pub primitives: &'static Primitives,
    /// The function [`super::step`]. The caller must meet the safety clauses of the function, and the CPU must have the
    /// instruction set.
    pub step: unsafe fn(&BackwardTile, &BackwardBlock),
    /// The function `attention::mask::bias`. The caller must meet the safety clauses of the function, and the CPU must
    /// have the instruction set.
    pub bias: unsafe fn(&MaskTile, usize, *mut f32, &mut Seen),
}

impl BackwardKernel {
    /// Returns `true` if this machine has the kernel's instruction set.
    #[must_use]
    pub fn is_present(&self) -> bool {
        (self.primitives.present)()
    }

    /// Returns the index of dim `x` of row `row` in rows that are stored by strips and padded to `width` dims.
    #[must_use]
    pub const fn place(&self, width: usize, row: usize, x: usize) -> usize {
        let strip = self.strip * self.spec.lanes;
        let whole = width / strip * strip;
        // Dims past the last full strip are in strips of one vector each.
        let wide = if x < whole { strip } else { self.spec.lanes };
        let first = if x < whole { x / strip * strip } else { whole + (x - whole) / wide * wide };
        first * self.spec.rows + row * wide + (x - first)
    }
}
