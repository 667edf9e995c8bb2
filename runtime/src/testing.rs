//! Helpers shared by the tests of several modules.

use crate::{Backend, Engine, EngineOptions, Fallback};
use elsa_core::random;

/// Returns an engine that never falls back to the CPU. Its GPU is a GPU of this machine, or the GPU that the stand-in
/// driver simulates.
pub fn gpu_engine() -> Engine {
    let options = EngineOptions {
        backend: Some(Backend::Cuda),
        threads: Some(1),
        fallback: Fallback::Fail,
        ..EngineOptions::default()
    };
    Engine::new(&options).unwrap()
}

/// Returns `count` pseudo-random numbers, uniformly distributed in −1 ≤ x < 1.
pub fn noise(seed: u64, count: usize) -> Vec<f32> {
    random::noise(seed, count).collect()
}

/// Returns the bit patterns of the numbers, for exact comparison.
pub fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}
