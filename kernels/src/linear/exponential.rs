//! Exponentials of sums of gates.
//!
//! Sums are f64, so that the difference of two large sums is exact. `e^x = 2^n · 2^r`, where `n` is the integer nearest
//! to `x log2 e` and the remainder `r` is at most one half in magnitude; `2^r` is approximated by a Taylor polynomial.
//! The code is plain arithmetic over arrays of fixed length, which the compiler vectorizes.

use super::kernel::CLEARS;
use core::f64::consts::{LN_2, LOG2_E};

/// Largest magnitude of a sum of gates inside a segment: `40 ln 2`.
pub(super) const LARGEST_SUM: f64 = 40.0 * LN_2;

/// Number of sums whose exponentials are computed per call.
pub(super) const TOGETHER: usize = 16;

/// Addend for rounding. If it is added to an f64 number of magnitude below `2^31`, the low bits of the sum contain the
/// nearest integer.
const MAGIC: f64 = 6_755_399_441_055_744.0;

/// Coefficients of the Taylor polynomial of `2^r`: `(ln 2)^k / k!`.
const TAYLOR: [f64; 14] = {
    let mut c = [1.0; 14];
    let mut k = 1;
    while k < 14 {
        c[k] = c[k - 1] * LN_2 / k as f64;
        k += 1;
    }
    c
};

/// Returns `e^x` and `e^-x` for magnitudes up to [`LARGEST_SUM`], each with a relative error of at most [`RELATIVE`].
#[inline(always)]
pub(super) fn both(x: &[f64; TOGETHER]) -> ([f32; TOGETHER], [f32; TOGETHER]) {
    const C: [f32; 8] = {
        let mut c = [1.0; 8];
        let mut k = 0;
        while k < 8 {
            c[k] = TAYLOR[k] as f32;
            k += 1;
        }
        c
    };
    let (mut up, mut down) = ([0.0f32; TOGETHER], [0.0f32; TOGETHER]);
    for i in 0..TOGETHER {
        let y = x[i] * LOG2_E;
        let shifted = y + MAGIC;
        let r = (y - (shifted - MAGIC)) as f32;
        let n = shifted.to_bits() as i32;
        let s = r * r;
        // Even and odd powers are summed separately: negating `r` changes only the odd ones.
        let even = ((C[6] * s + C[4]) * s + C[2]) * s;
        let odd = (((C[7] * s + C[5]) * s + C[3]) * s + C[1]) * r;
        up[i] = (1.0 + (even + odd)) * f32::from_bits(((n + 127) << 23) as u32);
        down[i] = (1.0 + (even - odd)) * f32::from_bits(((127 - n) << 23) as u32);
    }
    (up, down)
}

/// Largest relative error of the results of [`both`]. In units of 2^-24 of the result, it has four parts: at most 1 for
/// the last sum; at most 1/2 for the sum of even and odd powers together with the product with `r`; at most 1/2 for the
/// errors of `ln 2` and of the sum added to `ln 2`, both times `r`; and at most 1/2 for `r`, the other coefficients and
/// the omitted powers.
pub(super) const RELATIVE: f64 = 2.5 / 16_777_216.0;

/// Factor one, as `high` and `rest` of [`Factors`](super::kernel::Factors). Its nonzero `rest` changes no number but
/// preserves infinities: zero times infinity would be NaN.
pub(super) const NEUTRAL: (f32, f32) = (1.0, 1.0 / (1u64 << 40) as f32);

/// Returns `e^x` as `high` and `rest` of [`Factors`](super::kernel::Factors). `x` may be any number, an infinity or
/// NaN.
#[inline(always)]
pub(super) fn split(x: f64) -> (f32, f32) {
    if x == f64::NEG_INFINITY {
        return (CLEARS, NEUTRAL.1);
    }
    if x == f64::INFINITY {
        return (f32::INFINITY, NEUTRAL.1);
    }
    if x > LARGEST_FACTOR {
        let (high, rest) = divided(exp(x.min(2.0 * LARGEST_FACTOR) / 2.0));
        return (high, -rest);
    }
    // Below −120 the result is zero as an f32 number. A NaN fails the comparison, so it stays NaN.
    divided(if x < -120.0 { 0.0 } else { exp(x) })
}

/// Largest `x` for which `e^x` is a finite f32 number. At twice this `x`, `e^x` times any normal number is infinite.
const LARGEST_FACTOR: f64 = 88.7;

/// Computes [`split`] for several sums, whose magnitudes are at most [`LARGEST_SUM`].
#[inline(always)]
pub(super) fn splits(x: &[f64; TOGETHER]) -> ([f32; TOGETHER], [f32; TOGETHER]) {
    let (mut high, mut rest) = ([0.0; TOGETHER], [0.0; TOGETHER]);
    for i in 0..TOGETHER {
        (high[i], rest[i]) = divided(exp(x[i]));
    }
    (high, rest)
}

/// Splits a non-negative number into `high`, the largest f32 number not above it, and the relative remainder.
#[inline(always)]
fn divided(power: f64) -> (f32, f32) {
    let nearest = power as f32;
    let above = u32::from(f64::from(nearest) > power);
    let high = f32::from_bits(nearest.to_bits() - above);
    let rest = (power / f64::from(high) - 1.0) as f32;
    (high, if rest > NEUTRAL.1 && rest < 1.0 { rest } else { NEUTRAL.1 })
}

/// Returns `e^x` for `x` from −120 to 100, with an error of a few units in the last place; NaN stays NaN.
#[inline(always)]
fn exp(x: f64) -> f64 {
    let y = x * LOG2_E;
    let shifted = y + MAGIC;
    let r = y - (shifted - MAGIC);
    let n = i64::from(shifted.to_bits() as i32);
    let mut p = TAYLOR[13];
    for k in (0..13).rev() {
        p = p * r + TAYLOR[k];
    }
    p * f64::from_bits(((n + 1023) << 52) as u64)
}
