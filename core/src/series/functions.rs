//! The functions that gates and activations need, in f32 and in f64.

/// Smallest logarithm that counts as finite. For a smaller logarithm `x`, `e^x` would be less than `2^-125`. Such a
/// logarithm counts as `−∞`, and its exponential is zero.
pub const LEAST_LOG: f32 = -86.9;

/// Largest logarithm whose exponential is certainly finite in f32. The exponential of twice this logarithm is so large
/// that its product with even the smallest normal number is infinite.
pub const MOST_LOG: f32 = 88.7;

/// Returns a factor and a state whose product is `e^x h`. If `x` exceeds [`MOST_LOG`], `e^x` would be infinite, and its
/// product with a zero state would be NaN. The factor is then `e^(x/2)`, and the returned state is `e^(x/2) h`.
#[must_use]
pub(crate) fn grown(x: f32, h: f32) -> (f32, f32) {
    if x > MOST_LOG {
        let a = libm::expf(x.min(2.0 * MOST_LOG) / 2.0);
        // The term `0.0 * x` makes the state NaN if `x` is infinite.
        return (a, a * h + 0.0 * x);
    }
    (gate(x), h)
}

/// Returns `delta a`, the logarithm of a factor of a selective scan. `raw` is the argument of softplus. If softplus rounds
/// a time step to zero, the time step still counts as positive, unless `raw` is `−∞`. The product of the time step and an
/// infinite rate is therefore infinite, not NaN.
#[must_use]
pub(crate) fn exponent(delta: f32, raw: f32, softplus: bool, a: f32) -> f32 {
    let vanished = softplus && delta == 0.0 && raw > f32::NEG_INFINITY;
    if vanished && a.is_infinite() { a } else { delta * a }
}

/// Computes `e^x`, or zero below [`LEAST_LOG`].
#[must_use]
pub(crate) fn gate(x: f32) -> f32 {
    if x < LEAST_LOG { 0.0 } else { libm::expf(x) }
}

/// Computes `e^x` in f64, or zero below [`LEAST_LOG`].
#[must_use]
pub fn gate_f64(x: f64) -> f64 {
    if x < f64::from(LEAST_LOG) { 0.0 } else { libm::exp(x) }
}

/// Computes `log(1 + e^x)` without overflow. Small results are accurate too.
#[must_use]
pub(crate) fn softplus(x: f32) -> f32 {
    let larger = if x > 0.0 || x.is_nan() { x } else { 0.0 };
    larger + libm::log1pf(libm::expf(-x.abs()))
}

/// Computes `x / (1 + e^-x)` without overflow.
#[must_use]
pub(crate) fn silu(x: f32) -> f32 {
    let small = libm::expf(-x.abs());
    x * if x < 0.0 { small } else { 1.0 } / (1.0 + small)
}

/// Computes `log(1 + e^x)` in f64. The result is positive for every `x` except `−∞`.
#[must_use]
pub fn softplus_f64(x: f64) -> f64 {
    let larger = if x > 0.0 || x.is_nan() { x } else { 0.0 };
    let y = larger + libm::log1p(libm::exp(-libm::fabs(x)));
    if y == 0.0 && x > f64::NEG_INFINITY { f64::from_bits(1) } else { y }
}

/// Computes `1 / (1 + e^-x)` in f64: the slope of softplus, and the factor by which silu multiplies `x`.
#[must_use]
pub fn sigmoid_f64(x: f64) -> f64 {
    let small = libm::exp(-libm::fabs(x));
    if x < 0.0 { small / (1.0 + small) } else { 1.0 / (1.0 + small) }
}
