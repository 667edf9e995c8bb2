//! Computes exponential, softplus and silu of vectors over the entire range of f32, and flushes tiny numbers to zero.
//!
//! ```text
//! e^x         = 2^n e^s                 n = rint(x log2 e),  s = x − n ln 2,  |s| ≤ ln 2 / 2
//! softplus x  = max(x, 0) + log(1 + v)  v = e^-|x|
//!             log(1 + v) = 2 z (1 + z²/3 + z⁴/5 + …)  with  z = v / (2 + v) ≤ 1/3
//! silu x      = x / (1 + v), times v where x < 0
//! ```
//!
//! `n ln 2` is subtracted in two parts. The first part has so few bits that its product with `n` is exact, and the
//! difference is exact too. `e^s` and the series in `z²` are computed as polynomials that are close to minimax in
//! relative error. Their constant terms are one, so that `e^0 = 1` exactly. The result is computed as `2 e^s 2^(n−1)`,
//! because `2^n` would be infinite for the largest results.
//!
//! For arguments below [`LEAST_LOG`] an exponential is zero; for arguments above `MOST` it is infinite. The polynomials
//! have the errors `1.1e-8` and `1e-9`; all other errors are roundings. A test measures the largest errors over all
//! exponents and checks that they do not exceed the bounds that each kernel declares.

use crate::lanes::Lanes;
use elsa_core::series::functions::{LEAST_LOG, MOST_LOG};

/// Argument above which an exponential is infinite.
const MOST: f32 = 89.0;
/// `log2 e`.
const LOG2_E: f32 = core::f32::consts::LOG2_E;
/// Upper bits of `ln 2`. They are so few that products with integers below 256 are exact.
const LN_2_HIGH: f32 = 0.693_145_75;
/// Lower bits of `ln 2`: its difference from [`LN_2_HIGH`].
const LN_2_LOW: f32 = 1.428_606_8e-6;
/// Coefficients of `2 e^s`, lowest power first.
const EXP: [f32; 7] = [2.0, 2.0, 1.0, 0.333_331_53, 0.083_333_11, 0.016_726_358, 0.002_785_236_8];
/// Coefficients of `artanh(z) / z` in powers of `z²`, lowest power first.
const ARTANH: [f32; 6] = [1.0, 0.333_333_34, 0.199_998_53, 0.142_961_78, 0.108_532_88, 0.116_121_64];

/// Returns `x`, but zero in lanes where the magnitude of `by` is below the smallest normal number. A NaN in `by` keeps
/// `x`.
#[inline(always)]
#[must_use]
pub fn kept<L: Lanes>(isa: L::Isa, by: L, x: L) -> L {
    L::splat(isa, f32::MIN_POSITIVE).if_greater(by.abs(), L::splat(isa, 0.0), x)
}

/// Returns a factor and a state whose product is `e^x h`. If `x` exceeds [`MOST_LOG`], an infinite factor could create
/// NaN; the returned state is then `e^(x/2) h`, and the factor is `e^(x/2)`. An `x` of `+∞` yields NaN.
#[inline(always)]
#[must_use]
pub fn grown<L: Lanes>(isa: L::Isa, x: L, h: L) -> (L, L) {
    let most = L::splat(isa, MOST_LOG);
    let a = exp_to(isa, x.if_greater(most, x.times(L::splat(isa, 0.5)), x), MOST_LOG);
    (a, x.if_greater(most, a.mul_add(h, x.minus(x)), h))
}

/// Returns `e^x`.
#[inline(always)]
#[must_use]
pub fn exp<L: Lanes>(isa: L::Isa, x: L) -> L {
    exp_to(isa, x, MOST)
}

/// Returns `e^x`, with arguments above `most` replaced by `most`.
#[inline(always)]
fn exp_to<L: Lanes>(isa: L::Isa, x: L, most: f32) -> L {
    let (least, most) = (L::splat(isa, LEAST_LOG), L::splat(isa, most));
    let within = x.if_greater(most, most, x).at_least(least);
    let n = within.times(L::splat(isa, LOG2_E)).nearest();
    let s = n.mul_add(L::splat(isa, -LN_2_HIGH), within);
    let s = n.mul_add(L::splat(isa, -LN_2_LOW), s);
    let mut p = L::splat(isa, EXP[6]);
    p = p.mul_add(s, L::splat(isa, EXP[5]));
    p = p.mul_add(s, L::splat(isa, EXP[4]));
    p = p.mul_add(s, L::splat(isa, EXP[3]));
    p = p.mul_add(s, L::splat(isa, EXP[2]));
    p = p.mul_add(s, L::splat(isa, EXP[1]));
    p = p.mul_add(s, L::splat(isa, EXP[0]));
    let y = p.times(n.minus(L::splat(isa, 1.0)).power());
    least.if_greater(x, L::splat(isa, 0.0), y)
}

/// Returns `log(1 + e^x)`.
#[inline(always)]
#[must_use]
pub fn softplus<L: Lanes>(isa: L::Isa, x: L) -> L {
    let zero = L::splat(isa, 0.0);
    let v = exp(isa, zero.minus(x.abs()));
    let z = v.over(v.plus(L::splat(isa, 2.0)));
    let square = z.times(z);
    let mut p = L::splat(isa, ARTANH[5]);
    p = p.mul_add(square, L::splat(isa, ARTANH[4]));
    p = p.mul_add(square, L::splat(isa, ARTANH[3]));
    p = p.mul_add(square, L::splat(isa, ARTANH[2]));
    p = p.mul_add(square, L::splat(isa, ARTANH[1]));
    p = p.mul_add(square, L::splat(isa, ARTANH[0]));
    z.plus(z).mul_add(p, x.at_least(zero))
}

/// Returns `x / (1 + e^-x)`.
#[inline(always)]
#[must_use]
pub fn silu<L: Lanes>(isa: L::Isa, x: L) -> L {
    let (zero, one) = (L::splat(isa, 0.0), L::splat(isa, 1.0));
    let v = exp(isa, zero.minus(x.abs()));
    x.times(zero.if_greater(x, v, one)).over(v.plus(one))
}

/// Applies [`silu`] in place to `n` values; `n` is a multiple of the number of lanes.
///
/// # Safety
/// - `n` values are readable and writable at `x`.
#[inline(always)]
pub unsafe fn silu_in_place<L: Lanes>(isa: L::Isa, x: *mut f32, n: usize) {
    for i in (0..n).step_by(L::N) {
        // SAFETY: the vector at `i` is within the `n` values (clause).
        unsafe { silu(isa, L::load(isa, x.add(i))).store(x.add(i)) };
    }
}

/// Writes the exponential, softplus and silu of `n` values; `n` is a multiple of the number of lanes.
///
/// # Safety
/// - `n` values are readable at `x` and writable at each pointer in `y`.
#[inline(always)]
pub unsafe fn table<L: Lanes>(isa: L::Isa, x: *const f32, n: usize, y: [*mut f32; 3]) {
    for i in (0..n).step_by(L::N) {
        // SAFETY: the vector at `i` is within the `n` values of each array (clause).
        unsafe {
            let v = L::load(isa, x.add(i));
            exp(isa, v).store(y[0].add(i));
            softplus(isa, v).store(y[1].add(i));
            silu(isa, v).store(y[2].add(i));
        }
    }
}
