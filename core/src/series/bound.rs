//! Computes error bounds common to the per-channel operators.

use crate::dtype::DType;

/// Accuracy of the functions of a kernel: largest relative errors. A result that is not a normal number may be zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Precision {
    /// Error of `e^x`.
    pub exp: f64,
    /// Error of `softplus x = log(1 + e^x)`.
    pub softplus: f64,
    /// Error of `silu x = x / (1 + e^-x)`; it may additionally be off by `2^-126 |x|`.
    pub silu: f64,
}

impl Precision {
    /// Precision of the scalar implementations in this crate, which call `libm`.
    pub const LIBM: Precision = Precision { exp: 1.2e-7, softplus: 2.5e-7, silu: 3.6e-7 };
}

/// An exact value, and how far a run may be from it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judged {
    /// The exact value.
    pub value: f64,
    /// The largest allowed distance.
    pub bound: f64,
}

impl Judged {
    /// Returns the distance of `found` relative to the bound: at most 1 where it is right, and NaN where one of the two values is a
    /// NaN and the other is not. Where the exact value may be beyond the range of `dtype`, in which `found` was written, any
    /// value that is not a NaN will do; where intermediate values are beyond the range of f32, and the bound is infinite,
    /// any at all; and where the exact value is a NaN or an infinity, any that is not finite.
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

/// Returns the error of a step from treating states and factors below the smallest normal number as zero, for states of
/// at most `largest`.
pub(super) fn tiny(largest: f64) -> f64 {
    4.0 * f64::from(f32::MIN_POSITIVE) * (1.0 + largest)
}

/// Returns the bound of a value after it has been rounded to `dtype`.
pub(super) fn rounded(judged: Judged, dtype: DType) -> Judged {
    let Judged { value, bound } = judged;
    // Zero times an infinite error is no error known. Else a small margin for the terms of second order.
    let bound = if bound.is_nan() { f64::INFINITY } else { 1.001 * bound };
    let rounding = match dtype {
        DType::F32 => 0.0,
        _ => dtype.unit_roundoff() * (libm::fabs(value) + bound),
    };
    Judged { value, bound: bound + rounding + dtype.subnormal_roundoff() }
}

/// Returns `error`, or infinity if a value of at most `magnitude` may be beyond the range of f32.
pub(super) fn in_range(error: f64, magnitude: f64) -> f64 {
    if magnitude > 3.4e38 { f64::INFINITY } else { error }
}
