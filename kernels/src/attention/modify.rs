//! Applies soft cap and bias to a score, between the product and the softmax.

use super::kernel::Block;
use crate::lanes::Lanes;

/// Returns `true` if a block has no soft cap and no bias.
#[inline(always)]
#[must_use]
pub fn is_plain(block: &Block) -> bool {
    block.cap == 0.0 && block.bias.is_null()
}

/// Applies the soft cap to scores: `cap · tanh(s)`.
#[inline(always)]
pub fn capped<L: Lanes>(isa: L::Isa, s: L, cap: L) -> L {
    tanh(isa, s).times(cap)
}

/// Loads vector `v` of the bias for a key, in tiles of `V` vectors.
///
/// # Safety
/// - The clauses of [`Block`] hold. The block's bias is not null, `key` is below the block's number of keys, and `v` is
///   below `V`.
#[inline(always)]
pub unsafe fn bias_of<L: Lanes, const V: usize>(isa: L::Isa, block: &Block, key: usize, v: usize) -> L {
    // SAFETY: the bias has a value, or vector `v`, for the key (clauses).
    unsafe {
        if block.shares_bias {
            L::splat(isa, block.bias.add(key).read())
        } else {
            L::load(isa, block.bias.add((key * V + v) * L::N))
        }
    }
}

/// Adds a bias to scores. Where the bias is `−∞`, the result is `masked`, a vector of `−∞`, whatever the score is.
#[inline(always)]
pub fn biased<L: Lanes>(s: L, bias: L, masked: L) -> L {
    bias.if_present(s.plus(bias), masked)
}

/// Computes the hyperbolic tangent. For `|x|` below 5/8, the result is the value of an odd polynomial. For larger
/// `|x|`, its magnitude is computed as `(1 − e) / (1 + e)` with `e = 2^(−2 |x| log2 e)`, because the subtraction then
/// cancels little.
#[inline(always)]
fn tanh<L: Lanes>(isa: L::Isa, x: L) -> L {
    let zero = L::splat(isa, 0.0);
    let one = L::splat(isa, 1.0);
    let a = x.abs();
    let z = a.times(a);
    let mut p = L::splat(isa, TANH[4]);
    p = p.mul_add(z, L::splat(isa, TANH[3]));
    p = p.mul_add(z, L::splat(isa, TANH[2]));
    p = p.mul_add(z, L::splat(isa, TANH[1]));
    p = p.mul_add(z, L::splat(isa, TANH[0]));
    let small = p.times(z).mul_add(a, a);
    let e = a.times(L::splat(isa, -2.0 * core::f32::consts::LOG2_E)).at_least(L::splat(isa, -64.0)).exp2();
    let e = e.over(L::splat(isa, L::WEIGHT_SCALE as f32));
    let large = one.minus(e).over(one.plus(e));
    let t = a.if_greater(L::splat(isa, 0.625), large, small);
    zero.if_greater(x, zero.minus(t), t)
}

/// Minimax coefficients of `(tanh(x)/x − 1)/x²` in `x²` on [0, 25/64].
const TANH: [f32; 5] = [-0.333_332_84, 0.133_314_91, -0.053_743_497, 0.020_650_588, -0.005_717_045_6];
