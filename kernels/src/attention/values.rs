//! The weighted sum `W += P · V` of a key block.
//!
//! ```text
//! naive:  for each dim x:  for each row i:  W[x][i] += Σ_j v_j[x] · p[j][i]
//! ```
//!
//! 1. *Strips of `R` dims.* A [`product()`] runs down the keys with `R · V` accumulators in registers, and only its
//!    result is added to memory: a chain of additions is as long as a block, not as the sequence.
//! 2. *Strips of four at the end.* The head size is a multiple of four; where `R` does not divide it, the last one or
//!    two strips have four dims.
//! 3. *NaN times zero is NaN.* A masked key has weight zero, and a product with it is harmless only where its value is
//!    finite. Where a block with a bias holds a value that is not, a slow sum leaves out the keys that the bias masks.
//!    An attended key that weighs nothing stays in, and its NaN or infinity poisons the row.

use super::kernel::Block;
use super::modify::bias_of;
use crate::lanes::Lanes;
use crate::product::product;

/// Adds the block's weighted values to `w`, or writes them when `first`. A masked key adds nothing, whatever
/// its value holds.
///
/// # Safety
/// - As for [`add`].
#[inline(always)]
pub unsafe fn add_block<L: Lanes, const R: usize, const V: usize>(
    isa: L::Isa,
    block: &Block,
    value_dim: usize,
    p: *const f32,
    w: *mut f32,
    first: bool,
) {
    // SAFETY: the same clauses.
    unsafe {
        if !block.bias.is_null() && !all_finite::<L>(isa, block, value_dim) {
            add_where_attended::<L, V>(isa, block, value_dim, p, w, first);
        } else {
            add::<L, R, V>(isa, block, value_dim, p, w, first);
        }
    }
}

/// Adds the block's weighted values to `w`, or writes them when `first`.
///
/// # Safety
/// - The clauses of [`Block`]; `count · width` weights are readable at `p`.
/// - `value_dim` is a multiple of four; `value_dim · width` values are writable at `w`, and initialised unless
///   `first`.
#[inline(always)]
pub unsafe fn add<L: Lanes, const R: usize, const V: usize>(
    isa: L::Isa,
    block: &Block,
    value_dim: usize,
    p: *const f32,
    w: *mut f32,
    first: bool,
) {
    // Of six dims a rest of two is eight with the strip before it.
    let strips_of_four = match (R, value_dim % R) {
        (6, 2) => 2,
        (_, rest) => rest / 4,
    };
    let wide = value_dim - 4 * strips_of_four;
    let row = V * L::N;
    let mut x = 0;
    // SAFETY: strips end at `value_dim`, which rows of values and of `w` have (clauses).
    unsafe {
        while x < wide {
            let acc = product::<L, R, V, true>(isa, block.count, block.values.add(x), block.value_stride, p);
            store::<L, R, V>(isa, &acc, w.add(x * row), first);
            x += R;
        }
        while x < value_dim {
            let acc = product::<L, 4, V, true>(isa, block.count, block.values.add(x), block.value_stride, p);
            store::<L, 4, V>(isa, &acc, w.add(x * row), first);
            x += 4;
        }
    }
}

/// Adds a strip's sums to `w`, or writes them when `first`.
///
/// # Safety
/// - `R · V · N` values are writable at `w`, and readable unless `first`.
#[inline(always)]
unsafe fn store<L: Lanes, const R: usize, const V: usize>(
    isa: L::Isa,
    acc: &[[L; V]; R],
    w: *mut f32,
    first: bool,
) {
    for r in 0..R {
        for v in 0..V {
            // SAFETY: within `R · V` vectors (clause).
            unsafe {
                let at = w.add((r * V + v) * L::N);
                let c = if first { acc[r][v] } else { L::load(isa, at).plus(acc[r][v]) };
                c.store(at);
            }
        }
    }
}

/// Rows whose elements are tested at once, in chains that do not wait for each other.
const TESTED_AT_ONCE: usize = 4;

/// Whether every value of the block is finite.
///
/// # Safety
/// - The clauses of [`Block`] for `value_dim`.
#[inline(always)]
pub unsafe fn all_finite<L: Lanes>(isa: L::Isa, block: &Block, value_dim: usize) -> bool {
    let zero = L::splat(isa, 0.0);
    let mut seen = [zero; TESTED_AT_ONCE];
    let mut rest = 0.0f32;
    let mut i = 0;
    while i < block.count {
        // The last rows are tested once more.
        let first = i.min(block.count.saturating_sub(TESTED_AT_ONCE));
        let rows = TESTED_AT_ONCE.min(block.count);
        // SAFETY: rows `first..first + rows` of the block's values have `value_dim` elements (clause).
        unsafe {
            let at = block.values.add(first * block.value_stride);
            let mut x = 0;
            while x + L::N <= value_dim {
                for r in 0..TESTED_AT_ONCE {
                    let row = at.add(if r < rows { r } else { 0 } * block.value_stride);
                    // Zero times a finite number is zero, and NaN otherwise.
                    seen[r] = L::load(isa, row.add(x)).mul_add(zero, seen[r]);
                }
                x += L::N;
            }
            while x < value_dim {
                for r in 0..rows {
                    rest += at.add(r * block.value_stride + x).read() * 0.0;
                }
                x += 1;
            }
        }
        i += TESTED_AT_ONCE;
    }
    let all = seen[0].plus(seen[1]).plus(seen[2].plus(seen[3]));
    let one = L::splat(isa, 1.0);
    // NaN compares false: a lane that is not below one is not finite.
    let bad = one.if_greater(all, zero, one);
    rest == 0.0 && !bad.any_greater(zero)
}

/// As [`add`], but a row takes a key's value only where the bias is not `−∞`, so that a masked NaN or infinity does not
/// reach it. One dim at a time: this runs only on blocks that hold such a value.
///
/// # Safety
/// - As for [`add`]; the bias is not null.
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
            // SAFETY: key `i` of the block, dim `x` of its value, vector `v` of its weights (clauses).
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
