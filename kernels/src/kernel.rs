//! What a micro-kernel is given, and the table of entry points that it is.
//!
//! Everything here is registers, tiles and pointers: a kernel never sees a tensor. Row counts, strides and
//! offsets are in singles.

use elsa_core::attention::plan::KernelSpec;
use elsa_core::dtype::DType;

/// A query tile of `W` rows and the room that it works in.
///
/// Contract, for a tile of `W` rows and blocks of at most `B` keys:
/// - `head_dim` and `value_dim` are multiples of four.
/// - `query` is readable for `head_dim · W` singles: `[dim][W]`, scaled to scores in units of `log 2`.
/// - `weights` is writable for `(B + 16) · W` singles.
/// - `pad` is writable for `8 · head_dim` singles.
/// - None of them overlaps another, or what the block and the sums point to.
#[derive(Clone, Copy, Debug)]
pub struct Tile {
    /// Queries, `[dim][W]`.
    pub query: *const f32,
    /// Scores, then weights, `[key][W]`.
    pub weights: *mut f32,
    /// Room for the last few keys of a block.
    pub pad: *mut f32,
    /// Head size of queries and keys, a multiple of four.
    pub head_dim: usize,
    /// Head size of values, a multiple of four.
    pub value_dim: usize,
}

/// A block of keys.
///
/// Contract:
/// - `count` is at least one and at most `B`.
/// - `keys` is readable for `count` rows of `head_dim` singles, `key_stride` apart; for a kernel that reads
///   panels, for whole panels `[panel][dim][R]`.
/// - `values` is readable for `count` rows of `value_dim` singles, `value_stride` apart.
/// - `bias` is null, or readable for `count · W` singles.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// Keys.
    pub keys: *const f32,
    /// From one key to the next.
    pub key_stride: usize,
    /// Values.
    pub values: *const f32,
    /// From one value to the next.
    pub value_stride: usize,
    /// Keys in the block.
    pub count: usize,
    /// Added to the scores, `[key][W]`, in units of `log 2`; `−∞` masks. Null for none.
    pub bias: *const f32,
    /// Soft cap in units of `log 2`: a score `s` becomes `cap · tanh(s)`. Zero is off.
    pub cap: f32,
}

/// The states of a tile's rows, as in [`elsa_core::state::State`], one row a lane. `S` and `W` carry the
/// kernel's [`KernelSpec::unit`] as a common factor.
///
/// Contract: `m` and `s` are readable and writable for `W` singles, `w` for `value_dim · W`.
#[derive(Clone, Copy, Debug)]
pub struct Sums {
    /// References, `[W]`.
    pub m: *mut f32,
    /// Sums of weights, `[W]`.
    pub s: *mut f32,
    /// Weighted sums of values, `[dim][W]`.
    pub w: *mut f32,
}

/// Entry points for one tile width.
///
/// Each is unsafe with the clauses of the generic function of the same name, and one more: the kernel's
/// instruction set is present.
#[derive(Clone, Copy, Debug)]
pub struct Entries {
    /// Fused step: [`crate::generic::step::step`].
    pub step: unsafe fn(&Tile, &Block, &Sums, bool),
    /// Merge: [`crate::generic::merge::merge`].
    pub merge: unsafe fn(&Sums, &Sums, usize),
    /// Normalise: [`crate::generic::finish::finish`].
    pub finish: unsafe fn(&Sums, usize),
    /// Scores of a block: [`crate::generic::scores::scores`] without its maxima.
    pub scores: unsafe fn(&Tile, &Block, *mut f32),
    /// Stored scores to weights, with references and sums: [`crate::generic::softmax::softmax`].
    pub softmax: unsafe fn(*mut f32, usize, &Sums, bool),
    /// Weighted sum of a block: [`crate::generic::values::add_block`].
    pub accumulate: unsafe fn(&Tile, &Block, *const f32, &Sums, bool),
}

/// [`crate::generic::memory::widen`]: source, its stride, rows, dims, target, its stride.
pub type Widen = unsafe fn(*const u16, usize, usize, usize, *mut f32, usize);
/// [`crate::generic::memory::narrow`]: source, rows, dims, target, its stride.
pub type Narrow = unsafe fn(*const f32, usize, usize, *mut u16, usize);

/// A micro-kernel: what it is, and how it is entered.
#[derive(Debug)]
pub struct Kernel {
    /// Name, tile, error constants.
    pub spec: KernelSpec,
    /// Whether the instruction set is present on this machine.
    pub present: fn() -> bool,
    /// Entry points for tiles of one, two, three vectors; the first `spec.vectors` are meant to be used.
    pub entries: [Entries; 3],
    /// [`crate::generic::memory::transpose_in`].
    pub transpose_in: unsafe fn(*const f32, usize, usize, usize, usize, usize, f32, *mut f32),
    /// [`crate::generic::memory::transpose_out`].
    pub transpose_out: unsafe fn(*const f32, usize, usize, usize, *mut f32, usize),
    /// [`crate::generic::memory::pack`] into panels of the kernel's rows.
    pub pack: unsafe fn(*const f32, usize, usize, usize, *mut f32),
    /// [`crate::generic::memory::widen`] from halves.
    pub widen_f16: Widen,
    /// [`crate::generic::memory::widen`] from brain floats.
    pub widen_bf16: Widen,
    /// [`crate::generic::memory::narrow`] to halves.
    pub narrow_f16: Narrow,
    /// [`crate::generic::memory::narrow`] to brain floats.
    pub narrow_bf16: Narrow,
    /// Exponential of `n` singles in units of `log 2`, for measuring its error: `WEIGHT_SCALE · 2^x`.
    pub exp2: unsafe fn(*const f32, usize, *mut f32),
}

impl Kernel {
    /// The conversion from a 16-bit type, or none for singles.
    #[must_use]
    pub fn widen(&self, dtype: DType) -> Option<Widen> {
        match dtype {
            DType::F32 => None,
            DType::F16 => Some(self.widen_f16),
            DType::Bf16 => Some(self.widen_bf16),
        }
    }

    /// The conversion to a 16-bit type, or none for singles.
    #[must_use]
    pub fn narrow(&self, dtype: DType) -> Option<Narrow> {
        match dtype {
            DType::F32 => None,
            DType::F16 => Some(self.narrow_f16),
            DType::Bf16 => Some(self.narrow_bf16),
        }
    }
}
