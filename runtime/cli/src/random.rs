//! Random tensors, which are the same on every machine.

use crate::error::Error;
use elsa_core::dtype::DType;
use elsa_core::random;
use elsa_files::Buffer;

/// Pseudo-random numbers, uniform and normal.
#[derive(Clone, Debug)]
pub struct Random(random::Random);

impl Random {
    /// Creates the sequence of numbers that `seed` determines.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        Random(random::Random::new(seed))
    }

    /// Draws a uniform number in `(0, 1]`.
    pub fn uniform(&mut self) -> f64 {
        ((self.0.bits() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Draws a standard normal number with the Box–Muller transform.
    pub fn normal(&mut self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// Draws `count` standard normal numbers for the tensor `argument`. Each number is multiplied by `scale` and
    /// rounded to `dtype`.
    ///
    /// # Errors
    /// Returns an error if the system refuses memory.
    pub fn normals(
        &mut self,
        argument: &'static str,
        dtype: DType,
        count: usize,
        scale: f64,
    ) -> Result<Buffer, Error> {
        let mut buffer = Buffer::zeros(argument, dtype, count)?;
        let mut elements = buffer.elements_mut();
        for i in 0..count {
            elements.set(i, (self.normal() * scale) as f32);
        }
        Ok(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normals_have_mean_zero_and_variance_one() {
        let mut random = Random::new(1);
        let x: Vec<f64> = (0..100_000).map(|_| random.normal()).collect();
        let mean = x.iter().sum::<f64>() / 1e5;
        let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 1e5;
        // The limits are five standard errors: 1/sqrt(n) for the mean, sqrt(2/n) for the variance.
        assert!(mean.abs() < 5.0 * 0.00317 && (variance - 1.0).abs() < 5.0 * 0.00448, "{mean} {variance}");
    }
}
