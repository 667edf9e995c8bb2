//! Computes error bounds that the per-channel operators have in common.

use crate::dtype::DType;

/// Largest relative errors of the functions that a kernel computes. A kernel may return zero for a result that is not
/// a normal number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Precision {
    /// Error of `e^x`.
    pub exp: f64,
    /// Error of the exponent `δ A` of a gate of the selective scan, relative to the exponent, in units of the unit roundoff of f32.
    pub exponent: f64,
    /// Error of `softplus x = log(1 + e^x)`.
    pub softplus: f64,
    /// Error of `silu x = x / (1 + e^-x)`, to which an absolute error of `2^-126 |x|` is added.
    pub silu: f64,
}

impl Precision {
    /// Precision of the scalar implementations in this crate, which call `libm`.
    pub const LIBM: Precision = Precision { exp: 1.2e-7, exponent: 1.0, softplus: 2.5e-7, silu: 3.6e-7 };
}

/// An exact value, and the error that a run may have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judged {
    /// The exact value.
    pub value: f64,
    /// The largest allowed error.
    pub bound: f64,
}

impl Judged {
    /// Returns the error of `found` divided by the bound. `found` was written in `dtype`. The result is at most 1 if
    /// `found` is correct.
    ///
    /// - If the exact value is a NaN or an infinity, `found` must not be finite.
    /// - If the bound is infinite because intermediate values may be beyond the range of f32, every `found` is correct.
    /// - If the exact value may be beyond the range of `dtype`, every `found` except a NaN is correct.
    ///
    /// In these cases the result is 0 if `found` is correct and NaN if it is not.
    #[must_use]
    pub fn distance(&self, found: f32, dtype: DType) -> f64 {
        let found = f64::from(found);
        let largest = match dtype {
            DType::F16 => 65_504.0,
            DType::F32 | DType::Bf16 => 3.38e38,
        };
        if !self.value.is_finite() {
            return if found.is_finite() { f64::NAN } else { 0.0 };
        }
        if self.bound == f64::INFINITY {
            return 0.0;
        }
        if libm::fabs(self.value) + self.bound >= largest {
            return if found.is_nan() { f64::NAN } else { 0.0 };
        }
        libm::fabs(found - self.value) / self.bound
    }
}

/// Returns the error that a step adds because it treats states and factors below the smallest normal number as zero.
/// `largest` is the largest magnitude of the states.
pub(super) fn tiny(largest: f64) -> f64 {
    4.0 * f64::from(f32::MIN_POSITIVE) * (1.0 + largest)
}

/// Returns `judged` with its bound increased by the error of rounding to `dtype`.
pub(super) fn rounded(judged: Judged, dtype: DType) -> Judged {
    let Judged { value, bound } = judged;
    // A bound of NaN is the product of zero and an infinite error, so no bound is known. The factor 1.001 covers the
    // terms of second order.
    let bound = if bound.is_nan() { f64::INFINITY } else { 1.001 * bound };
    let rounding = match dtype {
        DType::F32 => 0.0,
        _ => dtype.unit_roundoff() * (libm::fabs(value) + bound),
    };
    Judged { value, bound: bound + rounding + dtype.subnormal_roundoff() }
}

/// Returns `error`, or infinity if a value of magnitude `magnitude` or less may be beyond the range of f32.
pub(super) fn in_range(error: f64, magnitude: f64) -> f64 {
    if magnitude > 3.4e38 { f64::INFINITY } else { error }
}
