//! The tests of the kernels, in one program, so that shared code is compiled and linked once.

#![allow(clippy::unwrap_used)]

mod backward;
mod exponential;
// Miri looks for faults in unsafe code, and the tests of GPU kernels contain no unsafe code. Miri would also need more
// time to decompress the GPU modules than for all other tests.
#[cfg(not(miri))]
mod gpu;
mod last_keys;
mod linear;
mod mask;
mod measure;
mod registry;
mod series;
mod subnormal;
mod tangent;

/// Returns `count` pseudorandom numbers from −1 to 1.
fn noise(count: usize, seed: u64) -> Vec<f32> {
    elsa_core::random::noise(seed, count).collect()
}
