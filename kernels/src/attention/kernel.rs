//! The operands of an attention micro-kernel and its table of entry points.
//!
//! Everything here is registers, tiles and pointers: a kernel never sees a tensor. Sizes, strides and offsets count
//! f32 values.

use super::combine::SideTile;
use super::mask::{MaskTile, Seen};
use super::measure::Measure;
use crate::primitives::Primitives;
use elsa_core::attention::plan::KernelSpec;

/// A query tile and its working memory. `width` is its number of rows, one per lane.
///
/// Contract, for blocks of at most `B` keys:
/// - `head_dim` and `value_dim` are multiples of four.
/// - `query` is readable for `head_dim · width` values: `[dim][width]`, scaled to scores in base-2 units.
/// - `weights` is writable for `(B + 16) · width` values.
/// - `pad` is writable for `8 · head_dim` values.
/// - None of them overlaps another, nor anything that the block and the sums point to, except the bias of a [`Block`].
#[derive(Clone, Copy, Debug)]
pub struct Tile {
    /// Queries, `[dim][width]`.
    pub query: *const f32,
    /// Scores, then weights, `[key][width]`.
    pub weights: *mut f32,
    /// Padded copy of the last few keys of a block.
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
/// - `keys` is readable for `count` rows of `head_dim` values, `key_stride` apart; for a kernel that reads panels, for
///   whole panels `[panel][dim][R]`.
/// - `values` is readable for `count` rows of `value_dim` values, `value_stride` apart. In a step of a kernel that
///   raises weights, tiny values ([`super::values::is_tiny`]) are scaled up ([`super::values::lift`]).
/// - `bias` is null, or readable for `count · width` values, or with `shares_bias` for `count`. It may be the weights of
///   the [`Tile`] if it is not shared, the tile has several rows, `head_dim` is at most the kernel's chain, and `largest`
///   is finite.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// Keys.
    pub keys: *const f32,
    /// Stride of keys.
    pub key_stride: usize,
    /// Values.
    pub values: *const f32,
    /// Stride of values.
    pub value_stride: usize,
    /// Largest magnitude of the problem's values, NaN if one is NaN. Used only with a bias or if the kernel raises
    /// weights.
    pub largest: f32,
    /// Keys in the block.
    pub count: usize,
    /// Addends of the scores, `[key][width]`, in base-2 units; `−∞` masks. Null if no key is masked or biased.
    pub bias: *const f32,
    /// `true` if all rows share the bias, which then is `[key]`.
    pub shares_bias: bool,
    /// Rows to prefetch while a block with a bias or a soft cap is computed.
    pub ahead: Ahead,
    /// Soft cap in base-2 units: a score `s` becomes `cap · tanh(s)`. Zero disables it.
    pub cap: f32,
}

/// Rows of bytes to prefetch into the cache. They need not be valid memory.
#[derive(Clone, Copy, Debug)]
pub struct Ahead {
    /// The first byte of the first row.
    pub data: *const u8,
    /// Stride of rows in bytes.
    pub stride: usize,
    /// Number of rows; zero prefetches nothing.
    pub rows: usize,
    /// Bytes of a row.
    pub bytes: usize,
}

impl Ahead {
    /// No rows.
    pub const NOTHING: Ahead = Ahead { data: core::ptr::null(), stride: 0, rows: 0, bytes: 0 };
}

/// The states of a tile's rows, as in [`elsa_core::state::State`], one row per lane. The sums `s` and `w` carry the
/// kernel's [`KernelSpec::weight_scale`] as a common factor.
///
/// Contract, for a tile of `width` rows: `m` and `s` are readable and writable for `width` values, `w` for
/// `value_dim · width`.
#[derive(Clone, Copy, Debug)]
pub struct Sums {
    /// References, `[width]`.
    pub m: *mut f32,
    /// Sums of weights, `[width]`.
    pub s: *mut f32,
    /// Weighted sums of values, `[dim][width]`.
    pub w: *mut f32,
}

/// Additional operands of a step inside an error budget.
///
/// Contract, for a tile of `width` rows: `left_out`, `top` and `totals` are readable and writable for `width`, `width` and
/// `4 · width` values. The totals are initialised, and so is `left_out` unless the step is the first into its sums.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// The largest `D / S` ([`odds`](elsa_core::attention::traversal::odds)).
    pub odds: f32,
    /// The sums `D` of the state, `[width]`, with the scale and the references of its `S`.
    pub left_out: *mut f32,
    /// Largest references, sums `S` and sums `D` of all blocks so far, then one for each row that has a vote and zero
    /// for others, `[4][width]`. They start as `−∞`, zero and zero.
    pub totals: *mut f32,
    /// The largest scores of the block, `[width]`, which [`TileOps::scores`] has written unless the step uses the
    /// reference zero.
    pub top: *mut f32,
    /// The largest magnitude of the block's values, NaN if one is NaN. A negative value makes the step compute it.
    pub largest: f32,
    /// `true` if the step uses the reference zero ([`TileOps::weigh`]).
    pub near_zero: bool,
    /// Output: `true` if the step left the block out.
    pub skipped: bool,
    /// Output: `true` if the reference of a row with sums to rescale moved.
    pub moved: bool,
}

/// Operations on tiles of one width; an instruction set makes [`Entries`] from them.
pub trait TileOps {
    /// Proof that the instruction set is present.
    type Isa: Copy;

    /// Computes scores, references, weights, row sums and the weighted sum of one block in one fused step. With `first`
    /// the sums are written, otherwise added to.
    ///
    /// # Safety
    /// - The clauses of [`Tile`], [`Block`] and [`Sums`]; sums are initialised unless `first`.
    unsafe fn step(isa: Self::Isa, tile: &Tile, block: &Block, sums: &Sums, first: bool);

    /// Converts the scores in the tile's weights to weights, and records in `budget` whether the block is left out. This
    /// is the part of a [`TileOps::step`] inside an error budget between [`TileOps::scores`] and [`TileOps::accumulate`].
    /// For a block that is kept, adds to `S` and leaves weights to accumulate, raised if the kernel raises them and the
    /// reference is sought (`within`).
    ///
    /// # Safety
    /// - As for [`TileOps::step`], and the clauses of [`Budget`]. The tile's weights are the block's scores, and `top`
    ///   has the largest of them; with the reference zero the scores are those of [`TileOps::weigh`].
    unsafe fn decide(
        isa: Self::Isa,
        tile: &Tile,
        block: &Block,
        sums: &Sums,
        budget: &mut Budget,
        first: bool,
    );

    /// Converts the scores in the tile's weights to weights, which are not raised, and adds to `S`. This is the part of a
    /// [`TileOps::step`] with the reference zero between [`TileOps::scores`] and [`TileOps::accumulate`]. With `first`
    /// references and sums are written.
    ///
    /// # Safety
    /// - As for [`TileOps::step`]. The tile's weights are the block's scores, `−∞` where a bias masks and otherwise of a
    ///   magnitude of at most 64.
    unsafe fn weigh(isa: Self::Isa, tile: &Tile, block: &Block, sums: &Sums, first: bool);

    /// Merges `earlier ⊕ later` into `earlier`, by the merge law of [`elsa_core::state`].
    ///
    /// # Safety
    /// - The clauses of [`Sums`] for both, all initialised, and `value_dim`.
    unsafe fn merge(isa: Self::Isa, earlier: &Sums, later: &Sums, value_dim: usize);

    /// Divides `W` by `S` in place, as `W · (1 / S)`: zeros for a row that saw no key, NaN for a poisoned row. A zero
    /// in `W` becomes `+0`.
    ///
    /// # Safety
    /// - The clauses of [`Sums`], all initialised, for `value_dim`.
    unsafe fn finish(isa: Self::Isa, sums: &Sums, value_dim: usize);

    /// Writes the block's scores to `dst`, `[key][width]`, and the largest of each row to `top` unless it is null. The
    /// score of a masked key is `−∞`.
    ///
    /// # Safety
    /// - The clauses of [`Tile`] and [`Block`].
    /// - `dst` is writable for `width` values of every key, `count` being rounded up to a multiple of the register tile's
    ///   keys, or of 16 where a tile is one row.
    /// - `top` is null, or writable for `width` values.
    unsafe fn scores(isa: Self::Isa, tile: &Tile, block: &Block, dst: *mut f32, top: *mut f32);

    /// Computes the softmax of whole materialised rows without its normalisation: finds the largest of `count` scores
    /// of each row at `p`, turns them into weights in place, and writes references and sums. A score of `−∞` weighs
    /// nothing.
    ///
    /// # Safety
    /// - `count · width` values are readable and writable at `p`. Where a tile is one row, `count` is rounded up to a
    ///   multiple of 16, and the padding after the scores is `−∞`.
    /// - The clauses of [`Sums`] for `m` and `s`.
    unsafe fn softmax(isa: Self::Isa, p: *mut f32, count: usize, sums: &Sums);

    /// Adds the block's values, weighted by the weights at `p`, to the weighted sums. The first flag says that
    /// [`TileOps::decide`] left the weights; the second, that the sums are written rather than added to.
    ///
    /// # Safety
    /// - The clauses of [`Tile`], of [`Block`] and of [`Sums`] for `w`, which is initialised unless they are written.
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
/// Each entry point is unsafe with the clauses of the [`TileOps`] function of the same name, and one more: the kernel's
/// instruction set is present.
#[derive(Clone, Copy, Debug)]
pub struct Entries {
    /// [`TileOps::step`].
    pub step: unsafe fn(&Tile, &Block, &Sums, bool),
    /// [`TileOps::decide`].
    pub decide: unsafe fn(&Tile, &Block, &Sums, &mut Budget, bool),
    /// [`TileOps::weigh`].
    pub weigh: unsafe fn(&Tile, &Block, &Sums, bool),
    /// [`TileOps::merge`].
    pub merge: unsafe fn(&Sums, &Sums, usize),
    /// [`TileOps::finish`].
    pub finish: unsafe fn(&Sums, usize),
    /// [`TileOps::scores`].
    pub scores: unsafe fn(&Tile, &Block, *mut f32, *mut f32),
    /// [`TileOps::softmax`].
    pub softmax: unsafe fn(*mut f32, usize, &Sums),
    /// [`TileOps::accumulate`].
    pub accumulate: unsafe fn(&Tile, &Block, *const f32, &Sums, [bool; 2]),
}

/// An attention micro-kernel.
#[derive(Debug)]
pub struct Kernel {
    /// Name, tile, error constants.
    pub spec: KernelSpec,
    /// Presence, moves and conversions of its instruction set.
    pub primitives: &'static Primitives,
    /// Entry points for tiles of one, two and three vectors; only the first `spec.vectors` are used.
    pub entries: [Entries; 3],
    /// `memory::pack` into panels of [`KernelSpec::tile_keys`] keys, with its clauses and presence.
    pub pack: unsafe fn(*const f32, usize, usize, usize, *mut f32),
    /// [`super::values::largest`], with its clauses and presence.
    pub largest: unsafe fn(&Block, usize, &mut f32),
    /// [`super::values::lift`], with its clauses and presence.
    pub lift: unsafe fn(&Block, usize, *mut f32),
    /// `mask::bias`, with its clauses and presence.
    pub bias: unsafe fn(&MaskTile, usize, *mut f32, &mut Seen),
    /// `combine::add`, with its clauses and presence.
    pub add: unsafe fn(*const f32, *const f32, usize, *mut f32),
    /// `combine::divide`, with its clauses and presence.
    pub divide: unsafe fn(&SideTile, usize, *mut f32, &mut Seen),
    /// Magnitudes of the elements of tensors.
    pub measure: Measure,
}

impl Kernel {
    /// Returns `true` if this machine has the kernel's instruction set.
    #[must_use]
    pub fn is_present(&self) -> bool {
        (self.primitives.present)()
    }
}
