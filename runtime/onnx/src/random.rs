//! Draws normally distributed numbers.

use fastrand::Rng;
use std::f64::consts::TAU;

/// Draws a standard normal number by the Box–Muller transform.
pub fn normal(random: &mut Rng) -> f64 {
    // The argument of the logarithm is in `(0, 1]`, so the logarithm is finite.
    let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
    radius * (TAU * random.f64()).cos()
}
