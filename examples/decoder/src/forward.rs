//! All layers: with their weights in memory, or with the next layer's read in parallel.

use crate::error::{Error, zeros};
use crate::model::Model;
use crate::weights::{Weights, noise};
use elsa_runtime::{Engine, Times, prefetch};
use std::time::Duration;

/// The seed of the tokens.
const SEED: u64 = 11;

/// A row of table 13.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// Length of the sequence.
    pub tokens: usize,
    /// Number of layers.
    pub layers: usize,
    /// Breakdown of the time.
    pub times: Times,
}

impl Row {
    /// Returns the milliseconds per layer.
    fn per_layer(&self, time: Duration) -> f64 {
        time.as_secs_f64() * 1e3 / self.layers.max(1) as f64
    }

    /// Returns the milliseconds for which a layer's weights are read.
    #[must_use]
    pub fn copy_ms(&self) -> f64 {
        self.per_layer(self.times.read)
    }

    /// Returns the milliseconds for which a layer computes.
    #[must_use]
    pub fn compute_ms(&self) -> f64 {
        self.per_layer(self.times.compute)
    }

    /// Returns the milliseconds for which a layer waits for its weights.
    #[must_use]
    pub fn wait_ms(&self) -> f64 {
        self.per_layer(self.times.wait)
    }

    /// Returns the tokens per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.tokens as f64 / self.times.total.as_secs_f64()
    }
}

/// Computes the answer for `tokens` random tokens, with the weights of every layer in memory, `[layer][element]`.
///
/// # Errors
/// If a layer fails.
pub fn in_memory(
    engine: &Engine,
    weights: &Weights,
    layers: &[Vec<f32>],
    tokens: usize,
) -> Result<Vec<f32>, Error> {
    let mut model = Model::new(engine, *weights.sizes(), tokens)?;
    let mut x = noise(SEED, tokens * weights.sizes().dim())?;
    for layer in layers {
        model.layer(layer, &mut x)?;
    }
    Ok(x)
}

/// Computes the same with room for two layers: one is read while the other computes. `buffers` have the elements
/// of a layer each.
///
/// # Errors
/// If a layer fails, or weights cannot be read.
pub fn streamed(
    engine: &Engine,
    weights: &Weights,
    buffers: &mut [Vec<f32>; 2],
    tokens: usize,
) -> Result<(Vec<f32>, Row), Error> {
    let mut model = Model::new(engine, *weights.sizes(), tokens)?;
    let mut x = noise(SEED, tokens * weights.sizes().dim())?;
    let times = prefetch(
        buffers,
        0..weights.layers(),
        |layer, buffer| weights.read(*layer, buffer),
        |_, buffer| model.layer(buffer, &mut x),
    )?;
    Ok((x, Row { tokens, layers: weights.layers(), times }))
}

/// Allocates two buffers of a layer.
///
/// # Errors
/// If the system refuses the memory.
pub fn buffers(weights: &Weights) -> Result<[Vec<f32>; 2], Error> {
    let elements = weights.sizes().elements();
    Ok([zeros("weights", elements)?, zeros("weights", elements)?])
}

/// Reads the weights of every layer.
///
/// # Errors
/// If the system refuses the memory, or weights cannot be read.
pub fn all_layers(weights: &Weights) -> Result<Vec<Vec<f32>>, Error> {
    let read = |layer| {
        let mut data = zeros("weights", weights.sizes().elements())?;
        weights.read(layer, &mut data)?;
        Ok(data)
    };
    (0..weights.layers()).map(read).collect()
}

/// Counts the values of `a` and `b` with different bits.
#[must_use]
pub fn differing(a: &[f32], b: &[f32]) -> usize {
    let differ = a.iter().zip(b).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    differ + a.len().abs_diff(b.len())
}
