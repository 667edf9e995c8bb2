//! The functions of gates and activations, in f32 and in f64.

/// Logarithms below this one, of which `e^x` is less than `2^-125`, count as `−∞`: their exponential is zero.
pub const LEAST_LOG: f32 = -86.9;

/// `e^x`, or zero below [`LEAST_LOG`].
#[must_use]
pub fn gate(x: f32) -> f32 {
    if x < LEAST_LOG { 0.0 } else { libm::expf(x) }
}

/// [`gate`] in f64.
#[must_use]
pub fn gate_f64(x: f64) -> f64 {
    if x < f64::from(LEAST_LOG) { 0.0 } else { libm::exp(x) }
}

/// `log(1 + e^x)` without overflow, and accurate where it is small.
#[must_use]
pub fn softplus(x: f32) -> f32 {
    let larger = if x > 0.0 || x.is_nan() { x } else { 0.0 };
    larger + libm::log1pf(libm::expf(-x.abs()))
}

/// `x / (1 + e^-x)` without overflow.
#[must_use]
pub fn silu(x: f32) -> f32 {
    let small = libm::expf(-x.abs());
    x * if x < 0.0 { small } else { 1.0 } / (1.0 + small)
}

/// [`softplus`] in f64.
#[must_use]
pub fn softplus_f64(x: f64) -> f64 {
    let larger = if x > 0.0 || x.is_nan() { x } else { 0.0 };
    larger + libm::log1p(libm::exp(-libm::fabs(x)))
}

/// `1 / (1 + e^-x)` in f64: the slope of [`softplus`], and what [`silu`] multiplies `x` by.
#[must_use]
pub fn sigmoid_f64(x: f64) -> f64 {
    let small = libm::exp(-libm::fabs(x));
    if x < 0.0 { small / (1.0 + small) } else { 1.0 / (1.0 + small) }
}
