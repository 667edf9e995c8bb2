//! Runs all layers, either with all weights in memory or while the weights of the next layer are read.

use crate::error::{Error, zeros};
use crate::model::Model;
use crate::weights::{Weights, noise};
use elsa_runtime::{Engine, Times, prefetch};
use std::time::Duration;

/// Seed of the random tokens.
const SEED: u64 = 11;

/// Measurements for one sequence length: a row of table 13 of the ELSA paper.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// Number of tokens in the sequence.
    pub tokens: usize,
    /// Number of layers.
    pub layers: usize,
    /// Times for reading, computing and waiting, summed over all layers.
    pub times: Times,
}

impl Row {
    /// Returns `time`, divided by the number of layers, in milliseconds.
    fn per_layer(&self, time: Duration) -> f64 {
        time.as_secs_f64() * 1e3 / self.layers.max(1) as f64
    }

    /// Returns the time per layer for reading weights, in milliseconds.
    #[must_use]
    pub fn copy_ms(&self) -> f64 {
        self.per_layer(self.times.read)
    }

    /// Returns the time per layer for computation, in milliseconds.
    #[must_use]
    pub fn compute_ms(&self) -> f64 {
        self.per_layer(self.times.compute)
    }

    /// Returns the time per layer that computation spends waiting for weights, in milliseconds.
    #[must_use]
    pub fn wait_ms(&self) -> f64 {
        self.per_layer(self.times.wait)
    }

    /// Returns the number of tokens per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.tokens as f64 / self.times.total.as_secs_f64()
    }
}

/// Computes the output for `tokens` random tokens. `layers` contains the weights of every layer, `[layer][element]`.
///
/// # Errors
/// Returns an error if a layer fails.
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

/// Computes the output of [`in_memory`] with memory for only two layers: the weights of one layer are read while the
/// other layer is computed. Each of the `buffers` has the size of one layer's weights.
///
/// # Errors
/// Returns an error if a layer fails, or weights cannot be read.
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

/// Allocates two buffers, each for the weights of one layer.
///
/// # Errors
/// Returns an error if the system refuses the memory.
pub fn buffers(weights: &Weights) -> Result<[Vec<f32>; 2], Error> {
    let elements = weights.sizes().elements();
    Ok([zeros("weights", elements)?, zeros("weights", elements)?])
}

/// Reads the weights of every layer into memory.
///
/// # Errors
/// Returns an error if the system refuses the memory, or if weights cannot be read.
pub fn all_layers(weights: &Weights) -> Result<Vec<Vec<f32>>, Error> {
    let read = |layer| {
        let mut data = zeros("weights", weights.sizes().elements())?;
        weights.read(layer, &mut data)?;
        Ok(data)
    };
    (0..weights.layers()).map(read).collect()
}

/// Counts the positions at which `a` and `b` have different bits. Values beyond the shorter slice count as different.
#[must_use]
pub fn differing(a: &[f32], b: &[f32]) -> usize {
    let differ = a.iter().zip(b).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    differ + a.len().abs_diff(b.len())
}
