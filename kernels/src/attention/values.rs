//! Computes the weighted sum `W += P · V` of a key block.
//!
//! ```text
//! naive:  for each dim x:  for each row i:  W[x][i] += Σ_j v_j[x] · p[j][i]
//! ```
//!
//! 1. *Strips of `R` dims.* A `product()` runs down the keys with `R · V` accumulators in registers, and only its
//!    result is added to memory. A chain of additions is as long as a block, not as the sequence.
//! 2. *Strips of four at the end.* The head size is a multiple of four; if `R` does not divide it, the last one or two
//!    strips have four dims.
//! 3. *NaN times zero is NaN.* A masked key has the weight zero, and the product of this weight and the key's value is
//!    harmless only if the value is finite. If a block with a bias contains a value that is not finite, a slow sum
//!    leaves out the masked keys. An attended key of weight zero is not left out, and its NaN or infinity poisons the
//!    row.
//! 4. *Products with small weights are not subnormal*, because subnormal arithmetic stalls. Weights arrive multiplied
//!    by a power of two ([`Lanes::RAISE`]), and the sums of a block are divided by that power when they are added to
//!    memory: a multiply-add replaces the addition. In a block whose values are all small, weights are raised further;
//!    in a block of tiny values, a copy of the values is multiplied as well ([`lift`]). If some values are so large
//!    that a sum might overflow, the weights are lowered first. The largest value of the block selects the factor, so
//!    that no row depends on another. All factors are powers of two. They change bits of the result only where numbers
//!    would be subnormal without these factors, and the changed results lose fewer bits.

use super::ahead::fetch;
use super::kernel::Block;
use super::modify::bias_of;
use crate::lanes::{Lanes, MAX_LANES, MORE};
use crate::product::product;

/// Upper bound of the magnitudes that count as small: `2^-24`.
const SMALL: f32 = 5.960_464_5e-8;

/// Upper bound of the magnitudes that count as tiny: `2^-72`.
const TINY: f32 = 2.117_582_4e-22;

/// Lower bound of the magnitudes that count as large: `2^39`. If all values are below this bound, no sum over a block
/// of raised weights overflows. NaN counts as large.
const LARGE: f32 = 549_755_813_888.0;

/// Factor by which the weights of a block are multiplied to avoid subnormal products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Raised {
    /// Factor one.
    Not,
    /// The factor [`Lanes::RAISE`].
    Once,
    /// The product of [`Lanes::RAISE`] and [`MORE`].
    Twice,
    /// The factor of [`Raised::Twice`], with the values multiplied by [`MORE`] as well.
    Lifted,
}

/// Returns `true` if the values of a block are tiny. `largest` is the largest magnitude of these values. A kernel that
/// raises weights multiplies the values of such a block by [`MORE`].
#[inline(always)]
#[must_use]
pub fn is_tiny(largest: f32) -> bool {
    largest > 0.0 && largest < TINY
}

/// Multiplies the values of a block by [`MORE`], and writes the products to rows at `to`, `value_dim` apart.
///
/// # Safety
/// - The clauses of [`Block`] hold for `value_dim`. `count · value_dim` values are writable at `to`, and `to` may be
///   the address of the block's own values if their stride is also `value_dim`.
#[inline(always)]
pub unsafe fn lift<L: Lanes>(isa: L::Isa, block: &Block, value_dim: usize, to: *mut f32) {
    for i in 0..block.count {
        for x in (0..value_dim).step_by(L::N) {
            // SAFETY: row `i` of the block's values, and of `to`, has `value_dim` elements (clause); the buffer has
            // room for a vector.
            unsafe {
                let (from, to) = (block.values.add(i * block.value_stride + x), to.add(i * value_dim + x));
                let n = value_dim - x;
                if n >= L::N {
                    L::load(isa, from).lifted().store(to);
                } else {
                    let mut lanes = [0.0; MAX_LANES];
                    lanes.as_mut_ptr().copy_from_nonoverlapping(from, n);
                    L::load(isa, lanes.as_ptr()).lifted().store(lanes.as_mut_ptr());
                    to.copy_from_nonoverlapping(lanes.as_ptr(), n);
                }
            }
        }
    }
}

impl Raised {
    /// Selects the factor according to the largest magnitude of the block's values.
    #[inline(always)]
    #[must_use]
    pub fn of<L: Lanes>(block: &Block) -> Raised {
        if L::RAISE == 1.0 || block.largest.is_nan() || block.largest >= LARGE {
            Raised::Not
        } else if is_tiny(block.largest) {
            Raised::Lifted
        } else if block.largest < SMALL {
            Raised::Twice
        } else {
            Raised::Once
        }
    }

    /// Converts the weights of `count` keys at `p` from the scale [`Raised::Once`] to the scale `self`.
    ///
    /// # Safety
    /// - `count · V · N` values are readable and writable at `p`.
    #[inline(always)]
    pub unsafe fn adjust<L: Lanes, const V: usize>(self, isa: L::Isa, count: usize, p: *mut f32) {
        let factor = match self {
            Raised::Not => 1.0 / L::RAISE,
            Raised::Once => 1.0,
            Raised::Twice | Raised::Lifted => MORE,
        };
        if factor != 1.0 {
            let factor = L::splat(isa, factor);
            for i in 0..count * V {
                // SAFETY: `i` is below the number of vectors of weights (clause).
                unsafe { L::load(isa, p.add(i * L::N)).times(factor).store(p.add(i * L::N)) };
            }
        }
    }
}

/// Adds the block's weighted values to `w`, or writes them there if `first` is set. A masked key adds nothing, even if
/// its value is not finite.
///
/// # Safety
/// - The clauses of [`add`] hold.
#[inline(always)]
pub unsafe fn add_block<L: Lanes, const R: usize, const V: usize>(
    isa: L::Isa,
    block: &Block,
    value_dim: usize,
    p: *const f32,
    w: *mut f32,
    first: bool,
    raised: Raised,
) {
    // SAFETY: the called functions have the same clauses as this one.
    unsafe {
        if !block.bias.is_null() && block.masks && !block.largest.is_finite() {
            add_where_attended::<L, V>(isa, block, value_dim, p, w, first);
        } else {
            add::<L, R, V>(isa, block, value_dim, p, w, first, raised);
        }
    }
}

/// Adds the block's values, multiplied by raised weights, to `w`, or writes them there if `first` is set.
///
/// # Safety
/// - The clauses of [`Block`] hold; `count · width` weights are readable at `p`.
/// - `value_dim` is a multiple of four; `value_dim · width` values are writable at `w`. They are initialised unless
///   `first` is set.
#[inline(always)]
pub unsafe fn add<L: Lanes, const R: usize, const V: usize>(
    isa: L::Isa,
    block: &Block,
    value_dim: usize,
    p: *const f32,
    w: *mut f32,
    first: bool,
    raised: Raised,
) {
    // If two dims remain after strips of six, they and the last strip form two strips of four.
    let strips_of_four = match (R, value_dim % R) {
        (6, 2) => 2,
        (_, rest) => rest / 4,
    };
    let wide = value_dim - 4 * strips_of_four;
    let row = V * L::N;
    let mut x = 0;
    // SAFETY: strips end at or before `value_dim`, the size of the rows of values and of `w` (clauses).
    unsafe {
        while x < wide {
            if block.ahead.rows > 0 {
                fetch::<L>(isa, &block.ahead, value_dim + x..value_dim + x + R, 2 * value_dim);
            }
            let acc = product::<L, R, V, true>(isa, block.count, block.values.add(x), block.value_stride, p);
            store::<L, R, V>(isa, &acc, w.add(x * row), first, raised);
            x += R;
        }
        while x < value_dim {
            let acc = product::<L, 4, V, true>(isa, block.count, block.values.add(x), block.value_stride, p);
            store::<L, 4, V>(isa, &acc, w.add(x * row), first, raised);
            x += 4;
        }
    }
}

/// Divides weighted sums by the factor of the weights. Adds the quotients to `w`, or writes them there if `first` is
/// set.
///
/// # Safety
/// - `R · V · N` values are writable at `w`, and readable unless `first` is set.
#[inline(always)]
pub unsafe fn store<L: Lanes, const R: usize, const V: usize>(
    isa: L::Isa,
    acc: &[[L; V]; R],
    w: *mut f32,
    first: bool,
    raised: Raised,
) {
    let lower = L::splat(isa, 1.0 / L::RAISE);
    for r in 0..R {
        for v in 0..V {
            // SAFETY: the vector is one of the `R · V` vectors at `w` (clause).
            unsafe {
                let at = w.add((r * V + v) * L::N);
                let x = acc[r][v];
                let c = if L::RAISE == 1.0 || raised == Raised::Not {
                    if first { x } else { L::load(isa, at).plus(x) }
                } else if raised == Raised::Once {
                    if first { x.times(lower) } else { x.mul_add(lower, L::load(isa, at)) }
                } else {
                    let x = if raised == Raised::Twice { x.lowered::<1>() } else { x.lowered::<2>() };
                    if first { x } else { L::load(isa, at).plus(x) }
                };
                c.store(at);
            }
        }
    }
}

/// Writes the largest magnitude of the block's values to `to`, or NaN if a value is NaN.
///
/// # Safety
/// - The clauses of [`Block`] hold for `value_dim`.
#[inline(always)]
pub unsafe fn largest<L: Lanes>(isa: L::Isa, block: &Block, value_dim: usize, to: &mut f32) {
    let mut seen = [L::splat(isa, 0.0); 2];
    let mut rest = 0;
    for i in 0..block.count {
        // SAFETY: row `i` of the block's values has `value_dim` elements (clause).
        unsafe {
            let row = block.values.add(i * block.value_stride);
            let mut x = 0;
            while x + 2 * L::N <= value_dim {
                seen[0] = seen[0].larger_magnitude(L::load(isa, row.add(x)));
                seen[1] = seen[1].larger_magnitude(L::load(isa, row.add(x + L::N)));
                x += 2 * L::N;
            }
            if x + L::N <= value_dim {
                seen[0] = seen[0].larger_magnitude(L::load(isa, row.add(x)));
                x += L::N;
            }
            while x < value_dim {
                rest = rest.max(row.add(x).read().to_bits() & !(1 << 31));
                x += 1;
            }
        }
    }
    let mut lanes = [0.0f32; MAX_LANES];
    // SAFETY: the buffer has room for a vector.
    unsafe { seen[0].larger_magnitude(seen[1]).store(lanes.as_mut_ptr()) };
    for lane in lanes {
        rest = rest.max(lane.to_bits());
    }
    *to = f32::from_bits(rest);
}

/// Adds like [`add`], with one exception: each row leaves out the values of the keys that its bias masks with `−∞`. A
/// masked NaN or infinity therefore does not reach the row. The function processes one dim at a time, because few
/// blocks contain such a value.
///
/// # Safety
/// - The clauses of [`add`] hold; the bias is not null.
#[inline(always)]
pub unsafe fn add_where_attended<L: Lanes, const V: usize>(
    isa: L::Isa,
    block: &Block,
    value_dim: usize,
    p: *const f32,
    w: *mut f32,
    first: bool,
) {
    let zero = L::splat(isa, 0.0);
    for x in 0..value_dim {
        for v in 0..V {
            // SAFETY: key `i` of the block has dim `x` of its value and vector `v` of its weights (clauses).
            unsafe {
                let mut acc = zero;
                for i in 0..block.count {
                    let weight = L::load(isa, p.add((i * V + v) * L::N));
                    let value = L::splat(isa, block.values.add(i * block.value_stride + x).read());
                    let bias = bias_of::<L, V>(isa, block, i, v);
                    acc = bias.if_present(weight.mul_add(value, acc), acc);
                }
                let at = w.add((x * V + v) * L::N);
                let c = if first { acc } else { L::load(isa, at).plus(acc) };
                c.store(at);
            }
        }
    }
}
