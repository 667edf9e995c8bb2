//! Computes the base-2 exponential, and derives its error bound.
//!
//! `2^x = 2^n · 2^r` with an integer `n` and a small `r`. If `n` is the nearest integer, `r = x − n` is exact: `r` is a
//! multiple of the last place of `x`, and its magnitude does not exceed that of `x`. If `n` is the floor, `r` is in [0,
//! 1], and for negative `x` above −1/2 it may be rounded by at most 2^-25, which changes `2^r` by at most
//! `ln 2 · 2^-25` of its value. Multiplication by `2^n` is exact within the range of [`Lanes::exp2`].
//!
//! The remaining factor, `WEIGHT_SCALE · 2^r`, is approximated by a polynomial `p`. Its coefficients are those of the
//! minimax polynomial, rounded to f32. The distance of `p`, evaluated exactly, from `WEIGHT_SCALE · 2^r` is therefore a
//! function of `r` that can be computed. The rounding errors of the evaluation add to this distance. An operation whose
//! operands have errors `δa`, `δb`, `δc` has the error
//!
//! ```text
//! fma(a, b, c):  |a| δb + |b| δa + δa δb + δc  +  half a unit in the last place of the result
//! ```
//!
//! and these errors accumulate along the steps of each variant. `kernels/tests/kernels/exponential.rs` computes
//! distance and rounding error over a fine grid of `r`. It checks that their sum is below the bound that each kernel
//! declares, and that measured errors are below the sum.

#[cfg(target_arch = "x86_64")]
use crate::lanes::RAISED;
use crate::lanes::{Lanes, MAX_LANES};

/// Minimax polynomial of `2^x` on [−1/2, 1/2] for the relative error, degree 5, lowest power first.
pub const EXP2_NEAREST: [f32; 6] =
    [1.000_000_1, 0.693_146_94, 0.240_221_2, 0.055_507_13, 0.009_675_541, 0.001_327_647_2];
/// Minimax polynomial of `2^x` on [0, 1] for the relative error, degree 5, lowest power first.
pub const EXP2_FLOOR: [f32; 6] =
    [0.999_999_94, 0.693_153_1, 0.240_153_61, 0.055_826_318, 0.008_989_34, 0.001_877_576_7];
/// [`EXP2_NEAREST`] divided by its linear coefficient. This form saves two register copies on instruction sets whose
/// fused multiply-add overwrites its addend.
pub const EXP2_MONIC: [f32; 6] =
    [1.442_695_6, 1.0, 0.346_566_05, 0.080_079_89, 0.013_958_86, 0.001_915_390_6];
/// Multiplies the coefficients of a polynomial by [`RAISED`]. The products are exact.
#[cfg(target_arch = "x86_64")]
pub const fn raised(c: [f32; 6]) -> [f32; 6] {
    [c[0] * RAISED, c[1] * RAISED, c[2] * RAISED, c[3] * RAISED, c[4] * RAISED, c[5] * RAISED]
}

/// Addend for rounding. If it is added to an f32 value of magnitude below 2^22, the low bits of the sum contain the
/// nearest integer `n` plus 127. These bits, shifted left by 23, are the f32 value `2^n`.
pub const EXPONENT_MAGIC: f32 = 12_582_912.0 + 127.0;

/// Largest argument for which `exp2_horner` returns zero. The power of two of such an argument would be below all
/// normal numbers.
pub const ZERO_AT: f32 = -127.0;

/// Computes `2^x` by range reduction to the nearest integer and [`EXP2_NEAREST`], in Horner's form. This macro is meant
/// for instruction sets whose multiply-add writes to a separate register. The power of two is applied by a
/// multiplication, so that a NaN with any payload stays NaN.
macro_rules! exp2_horner {
    ($x:expr, $isa:expr, $shift:expr) => {
        exp2_horner!($x, $isa, $shift, $crate::exp2::EXP2_NEAREST)
    };
    ($x:expr, $isa:expr, $shift:expr, $coefficients:expr) => {{
        let magic = Self::splat($isa, $crate::exp2::EXPONENT_MAGIC);
        let t = $x.plus(magic);
        let r = $x.minus(t.minus(magic));
        let c = $coefficients;
        let mut p = Self::splat($isa, c[5]);
        p = p.mul_add(r, Self::splat($isa, c[4]));
        p = p.mul_add(r, Self::splat($isa, c[3]));
        p = p.mul_add(r, Self::splat($isa, c[2]));
        p = p.mul_add(r, Self::splat($isa, c[1]));
        p = p.mul_add(r, Self::splat($isa, c[0]));
        p.times($shift(t))
    }};
}
pub(crate) use exp2_horner;

/// Writes `WEIGHT_SCALE · 2^x` for each of `n` values, computed by [`Lanes::exp2`].
///
/// # Safety
/// - `n` values are readable at `x` and writable at `y`.
#[inline(always)]
pub unsafe fn exp2<L: Lanes>(isa: L::Isa, x: *const f32, n: usize, y: *mut f32) {
    let mut i = 0;
    while i < n {
        let mut lanes = [0.0f32; MAX_LANES];
        let take = (n - i).min(L::N);
        // SAFETY: `take` values from `i` on are within the `n` at both pointers (clause); the buffer has room for a
        // vector.
        unsafe {
            lanes.as_mut_ptr().copy_from_nonoverlapping(x.add(i), take);
            let v = L::load(isa, lanes.as_ptr());
            v.exp2().store(lanes.as_mut_ptr());
            y.add(i).copy_from_nonoverlapping(lanes.as_ptr(), take);
        }
        i += take;
    }
}
