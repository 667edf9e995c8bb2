//! The operands of an attention micro-kernel, and its table of entry points.
//!
//! A kernel works on registers, tiles and pointers and knows nothing of tensors. Sizes, strides and offsets count
//! f32 values.

use super::combine::SideTile;
use super::mask::{MaskTile, Seen};
use super::measure::Measure;
use crate::primitives::Primitives;
use elsa_core::attention::plan::KernelSpec;

/// A query tile and its working memory. `width` is the number of rows of the tile, one per lane.
///
/// Contract, for blocks of at most `B` keys:
/// - `head_dim` and `value_dim` are multiples of four.
/// - `query` is readable for `head_dim · width` values: `[dim][width]`, scaled so that scores are in base-2 units.
/// - `weights` is writable for `(B + 16) · width` values.
/// - `pad` is writable for `8 · head_dim` values.
/// - These regions overlap neither each other nor the memory that the block and the sums point to. There is one
///   exception: the bias of a [`Block`] may be `weights`.
#[derive(Clone, Copy, Debug)]
pub struct Tile {
    /// Queries, `[dim][width]`.
    pub query: *const f32,
    /// Buffer that contains the scores, and then the weights, `[key][width]`.
    pub weights: *mut f32,
    /// Buffer for a padded copy of the last few keys of a block.
    pub pad: *mut f32,
    /// Head size of queries and keys, a multiple of four.
    pub head_dim: usize,
    /// Head size of values, a multiple of four.
    pub value_dim: usize,
}

/// A block of keys.
///
/// Contract, for a tile of `width` rows and blocks of at most `B` keys:
/// - `count` is at least one and at most `B`.
/// - `keys` is readable for `count` rows of `head_dim` values; rows start `key_stride` apart. If the kernel reads
///   panels, `keys` is readable for complete panels `[panel][dim][R]`.
/// - `values` is readable for `count` rows of `value_dim` values; rows start `value_stride` apart. If the kernel raises
///   weights, tiny values ([`super::is_tiny`]) must have been scaled up before a step (`values::lift`).
/// - `bias` is null, or readable for `count · width` values (for `count` values with `shares_bias`). The bias may be
///   the weights of the [`Tile`] if four conditions hold: the bias is not shared, the tile has several rows, `head_dim`
///   is at most the kernel's chain length, and `largest` is finite or `masks` is `false`.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// Keys, by rows or in panels.
    pub keys: *const f32,
    /// Distance from one key to the next.
    pub key_stride: usize,
    /// Values, by rows.
    pub values: *const f32,
    /// Distance from one value row to the next.
    pub value_stride: usize,
    /// Largest magnitude of the elements in the problem's value tensor; NaN if an element is NaN. The field is used
    /// only if the bias masks keys or if the kernel raises weights.
    pub largest: f32,
    /// Number of keys in the block.
    pub count: usize,
    /// Terms added to the scores, `[key][width]`, in base-2 units; `−∞` masks a key. Null if no key is masked or
    /// biased.
    pub bias: *const f32,
    /// `true` if all rows share the bias. The shape of the bias is then `[key]`.
    pub shares_bias: bool,
    /// `false` if no value of the bias is `−∞`, so that every row attends every key.
    pub masks: bool,
    /// Rows to prefetch while a block with a bias or a soft cap is computed.
    pub ahead: Ahead,
    /// Soft cap in base-2 units: a score `s` becomes `cap · tanh(s)`. Zero disables it.
    pub cap: f32,
}

/// Rows of bytes to prefetch into the cache. The addresses need not be valid memory.
#[derive(Clone, Copy, Debug)]
pub struct Ahead {
    /// Address of the first byte of the first row.
    pub data: *const u8,
    /// Distance from one row to the next in bytes.
    pub stride: usize,
    /// Number of rows; zero prefetches nothing.
    pub rows: usize,
    /// Number of bytes per row.
    pub bytes: usize,
}

impl Ahead {
    /// An empty set of rows, which prefetches nothing.
    pub const NOTHING: Ahead = Ahead { data: core::ptr::null(), stride: 0, rows: 0, bytes: 0 };
}

/// The states of a tile's rows, as in [`elsa_core::state::State`], one row per lane. The sums `s` and `w` carry the
/// kernel's [`KernelSpec::weight_scale`] as a common factor.
///
/// Contract, for a tile of `width` rows: `m` and `s` are readable and writable for `width` values, `w` for
/// `value_dim · width` values.
#[derive(Clone, Copy, Debug)]
pub struct Sums {
    /// References, `[width]`.
    pub m: *mut f32,
    /// Sums of weights, `[width]`.
    pub s: *mut f32,
    /// Weighted sums of values, `[dim][width]`.
    pub w: *mut f32,
}

/// A row that takes its step through a block together with other rows, each a tile of its own.
#[derive(Clone, Copy, Debug)]
pub struct RowStep {
    /// Query and working memory of the row.
    pub tile: Tile,
    /// Sums to which the step adds.
    pub sums: Sums,
    /// `true` if the block is the row's first one: the sums are written, not added to.
    pub first: bool,
}

/// Additional operands of a step inside an error budget. `D` is the sum of the weights left out.
///
/// Contract, for a tile of `width` rows: `left_out` and `top` are readable and writable for `width` values each, and
/// `totals` for `4 · width` values. `totals` is initialised, and so is `left_out` unless `first` is set for the step.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// The largest allowed `D / S` ([`odds`](elsa_core::attention::traversal::odds)).
    pub odds: f32,
    /// The sums `D` of the state, `[width]`. They have the same scale and references as the state's sums `S`.
    pub left_out: *mut f32,
    /// Four values per row, `[4][width]`. The first three are the largest reference, the sum `S` and the sum `D` of all
    /// blocks so far (initially `−∞`, zero and zero); the fourth is one if the row takes part in the decision about a
    /// block, and zero if it does not.
    pub totals: *mut f32,
    /// The largest score of each row in the block, `[width]`. Unless the step uses the reference zero,
    /// [`TileOps::scores`] must have written it.
    pub top: *mut f32,
    /// Largest magnitude of the elements in the block's value rows; NaN if an element is NaN. A negative number makes
    /// the step compute this magnitude.
    pub largest: f32,
    /// `true` if the step uses the reference zero ([`TileOps::weigh`]).
    pub near_zero: bool,
    /// Output: `true` if the step left the block out.
    pub skipped: bool,
    /// Output: `true` if the reference changed in a row that had sums to rescale.
    pub moved: bool,
}

/// Operations on tiles of one width. Each instruction set builds its [`Entries`] from an implementation of this trait.
pub trait TileOps {
    /// Type of the tokens that prove that the instruction set is present.
    type Isa: Copy;

    /// Computes scores, references, weights, row sums and the weighted sum of one block in one fused step. If `first`
    /// is set, the sums are written; if not, the step adds to them.
    ///
    /// # Safety
    /// - The clauses of [`Tile`], [`Block`] and [`Sums`] hold. The sums are initialised unless `first` is set.
    unsafe fn step(isa: Self::Isa, tile: &Tile, block: &Block, sums: &Sums, first: bool);

    /// Decides whether a block is left out, and records the decision in `budget`. A step inside an error budget
    /// consists of [`TileOps::scores`], this function, and, if the block is kept, [`TileOps::accumulate`]. The function
    /// converts the scores in the tile's buffer to weights and, if the block is kept, adds them to `S`. A kernel that
    /// raises weights does so here, unless the step uses the reference zero (see `within`).
    ///
    /// # Safety
    /// - The clauses of [`TileOps::step`] and [`Budget`] hold. The tile's weights contain the block's scores, and `top`
    ///   contains the largest score of each row. With the reference zero the scores meet the clauses of
    ///   [`TileOps::weigh`].
    unsafe fn decide(
        isa: Self::Isa,
        tile: &Tile,
        block: &Block,
        sums: &Sums,
        budget: &mut Budget,
        first: bool,
    );

    /// Converts the scores in the tile's buffer to weights and adds these to `S`. The weights are not raised. A step
    /// with the reference zero consists of [`TileOps::scores`], this function, and [`TileOps::accumulate`]. If `first`
    /// is set, references and sums are written; if not, the function adds to the sums.
    ///
    /// # Safety
    /// - The clauses of [`TileOps::step`] hold. The tile's weights contain the block's scores: `−∞` where a bias masks,
    ///   and elsewhere numbers whose magnitude is at most 64.
    unsafe fn weigh(isa: Self::Isa, tile: &Tile, block: &Block, sums: &Sums, first: bool);

    /// Writes the merged states `earlier ⊕ later` to `earlier`, as [`elsa_core::state`] describes.
    ///
    /// # Safety
    /// - The clauses of [`Sums`] hold with `value_dim`, for both states. Both are initialised.
    unsafe fn merge(isa: Self::Isa, earlier: &Sums, later: &Sums, value_dim: usize);

    /// Divides `W` by `S` in place, as `W · (1 / S)`. The results for a row without keys are zeros. The results for a
    /// poisoned row are NaN. A zero in `W` becomes `+0`.
    ///
    /// # Safety
    /// - The clauses of [`Sums`] hold with `value_dim`. The sums are initialised.
    unsafe fn finish(isa: Self::Isa, sums: &Sums, value_dim: usize);

    /// Writes the block's scores to `dst`, `[key][width]`, and the largest score of each row to `top`, unless `top` is
    /// null. The score of a masked key is `−∞`.
    ///
    /// # Safety
    /// - The clauses of [`Tile`] and [`Block`] hold.
    /// - `dst` is writable for `width` values per key. For this clause, the number of keys is `count` rounded up to a
    ///   multiple of the register tile's keys, or to a multiple of 16 if a tile has one row.
    /// - `top` is null, or writable for `width` values.
    unsafe fn scores(isa: Self::Isa, tile: &Tile, block: &Block, dst: *mut f32, top: *mut f32);

    /// Computes the unnormalised softmax of complete rows of scores. `p` points to `count` scores per row. The function
    /// finds the largest score of each row, converts the scores to weights in place, and writes references and sums. A
    /// score of `−∞` has the weight zero.
    ///
    /// # Safety
    /// - `count · width` values are readable and writable at `p`. If a tile has one row, `count` is rounded up to a
    ///   multiple of 16, and the padding after the scores is `−∞`.
    /// - The clauses of [`Sums`] hold for `m` and `s`.
    unsafe fn softmax(isa: Self::Isa, p: *mut f32, count: usize, sums: &Sums);

    /// Adds the block's values, weighted by the weights at `p`, to the weighted sums. `raised_and_first[0]` is `true`
    /// if [`TileOps::decide`] wrote the weights. `raised_and_first[1]` is `true` if the weighted sums are overwritten
    /// instead of increased.
    ///
    /// # Safety
    /// - The clauses of [`Tile`] and [`Block`] hold, and so do the clauses of [`Sums`] for `w`. `w` is initialised
    ///   unless `raised_and_first[1]` is set.
    /// - `count · width` weights are readable at `p`.
    unsafe fn accumulate(
        isa: Self::Isa,
        tile: &Tile,
        block: &Block,
        p: *const f32,
        sums: &Sums,
        raised_and_first: [bool; 2],
    );
}

/// Entry points for one tile width.
///
/// Each entry point has the safety clauses of the [`TileOps`] function with the same name, and one more clause: the
/// kernel's instruction set is present.
#[derive(Clone, Copy, Debug)]
pub struct Entries {
    /// The function [`TileOps::step`].
    pub step: unsafe fn(&Tile, &Block, &Sums, bool),
    /// The function [`TileOps::decide`].
    pub decide: unsafe fn(&Tile, &Block, &Sums, &mut Budget, bool),
    /// The function [`TileOps::weigh`].
    pub weigh: unsafe fn(&Tile, &Block, &Sums, bool),
    /// The function [`TileOps::merge`].
    pub merge: unsafe fn(&Sums, &Sums, usize),
    /// The function [`TileOps::finish`].
    pub finish: unsafe fn(&Sums, usize),
    /// The function [`TileOps::scores`].
    pub scores: unsafe fn(&Tile, &Block, *mut f32, *mut f32),
    /// The function [`TileOps::softmax`].
    pub softmax: unsafe fn(*mut f32, usize, &Sums),
    /// The function [`TileOps::accumulate`].
    pub accumulate: unsafe fn(&Tile, &Block, *const f32, &Sums, [bool; 2]),
}

/// An attention micro-kernel. Each field that contains a function has the safety clauses of the function that the
/// field's comment names, and one more clause: the instruction set is present.
#[derive(Debug)]
pub struct Kernel {
    /// Description of the kernel for planners: name, tile sizes and error constants.
    pub spec: KernelSpec,
    /// Functions of the instruction set that test its presence, move data and convert element types.
    pub primitives: &'static Primitives,
    /// Entry points for tiles of one, two and three vectors; only the first `spec.vectors` are used.
    pub entries: [Entries; 3],
    /// The function [`super::OneRow::together`] for at most [`KernelSpec::together`] rows; `None` if the kernel's tiles
    /// have several rows.
    pub together: Option<unsafe fn(&[RowStep], &Block)>,
    /// The function `memory::pack`, which packs keys into panels of [`KernelSpec::tile_keys`] keys.
    pub pack: unsafe fn(*const f32, usize, usize, usize, *mut f32),
    /// The function `values::largest`.
    pub largest: unsafe fn(&Block, usize, &mut f32),
    /// The function `values::lift`.
    pub lift: unsafe fn(&Block, usize, *mut f32),
    /// The function `mask::bias`.
    pub bias: unsafe fn(&MaskTile, usize, *mut f32, &mut Seen),
    /// The function `combine::add`.
    pub add: unsafe fn(*const f32, *const f32, usize, *mut f32),
    /// The function `combine::divide`.
    pub divide: unsafe fn(&SideTile, usize, *mut f32, &mut Seen),
    /// Functions that measure the magnitudes of tensor elements.
    pub measure: Measure,
}

impl Kernel {
    /// Returns `true` if this machine has the kernel's instruction set.
    #[must_use]
    pub fn is_present(&self) -> bool {
        (self.primitives.present)()
    }
}
