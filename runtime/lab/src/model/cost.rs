//! Bytes and seconds that attention over x tokens needs, as polynomials in x.

use super::fit::{Fit, FitError, Sample, fit};
use libm::sqrt;

/// Memory in bytes that a call over x tokens needs: `D x + E`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bytes {
    /// D, bytes per token.
    pub per_token: f64,
    /// E, bytes independent of the number of tokens.
    pub fixed: f64,
}

impl Bytes {
    /// Returns the bytes that a call over `tokens` tokens needs.
    #[must_use]
    pub fn at(self, tokens: f64) -> f64 {
        self.per_token * tokens + self.fixed
    }

    /// Fits a line without negative coefficients to `samples`. Returns the line and the quality of the fit.
    ///
    /// # Errors
    /// Returns an error for fewer than two different sizes, or for samples that are not positive and finite.
    pub fn fitted(samples: &[Sample]) -> Result<(Bytes, Fit<2>), FitError> {
        let found = fit(samples, |x| [x, 1.0])?;
        let [per_token, fixed] = found.coefficients;
        Ok((Bytes { per_token, fixed }, found))
    }
}

/// Seconds that a call over x tokens takes: `A x² + B x + C`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seconds {
    /// A, seconds per pair of a query and a key.
    pub square: f64,
    /// B, seconds per token.
    pub linear: f64,
    /// C, seconds per call.
    pub constant: f64,
}

impl Seconds {
    /// Returns the seconds that a call over `tokens` tokens takes; `None` if the formula is not positive for this
    /// number of tokens.
    #[must_use]
    pub fn at(self, tokens: f64) -> Option<f64> {
        Some(self.formula(tokens)).filter(|seconds| *seconds > 0.0)
    }

    /// Returns the value of the formula, which may be negative.
    #[must_use]
    pub fn formula(self, tokens: f64) -> f64 {
        (self.square * tokens + self.linear) * tokens + self.constant
    }

    /// Returns `true` if no coefficient is negative, so the formula is negative nowhere.
    #[cfg(test)]
    pub fn is_sound(self) -> bool {
        [self.square, self.linear, self.constant].iter().all(|a| *a >= 0.0)
    }

    /// Returns the number of tokens below which the formula is negative; `None` if the constant is not negative.
    #[must_use]
    pub fn negative_below(self) -> Option<f64> {
        let Seconds { square: a, linear: b, constant: c } = self;
        if c.is_nan() || c >= 0.0 {
            return None;
        }
        // This form of the root avoids the subtraction of nearly equal numbers.
        let root = -2.0 * c / (b + sqrt(b * b - 4.0 * a * c));
        Some(root).filter(|root| root.is_finite() && *root > 0.0)
    }

    /// Fits a parabola without negative coefficients to `samples`. Returns the parabola and the quality of the fit.
    ///
    /// # Errors
    /// Returns an error for fewer than three different sizes, or for samples that are not positive and finite.
    pub fn fitted(samples: &[Sample]) -> Result<(Seconds, Fit<3>), FitError> {
        let found = fit(samples, |x| [x * x, x, 1.0])?;
        let [square, linear, constant] = found.coefficients;
        Ok((Seconds { square, linear, constant }, found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fit of the forward pass as Stream-CQSA prints it (appendix C).
    const PRINTED: Seconds = Seconds { square: 9.37e-12, linear: 9.92e-7, constant: -3.51e-2 };

    #[test]
    fn a_negative_time_is_none() {
        let zero = PRINTED.negative_below().unwrap();
        assert!((zero - 27_985.0).abs() < 1.0, "{zero}");
        assert_eq!(PRINTED.at(zero - 1.0), None);
        assert!(PRINTED.at(zero + 1.0).unwrap() > 0.0 && !PRINTED.is_sound());
        let sound = Seconds { constant: 0.0, ..PRINTED };
        assert!(sound.is_sound() && sound.negative_below().is_none() && sound.at(1.0).is_some());
        assert_eq!(Seconds { square: f64::NAN, ..PRINTED }.at(1e6), None);
    }

    #[test]
    fn the_fit_of_a_machine_holds_beyond_the_sizes_that_it_was_fitted_on() {
        // Tokens and microseconds for 8 heads of size 64 in f32 on an H200 (docs/src/machines/h200-2026-11-26.md).
        let measured =
            [(1024.0, 60.5), (2048.0, 214.7), (4096.0, 808.5), (8192.0, 3192.5), (16384.0, 12827.7)];
        let samples = measured.map(|(tokens, us)| Sample { tokens, value: us * 1e-6 });
        let (fitted, fit) = Seconds::fitted(&samples[..3]).unwrap();
        assert!(fit.worst < 1e-3 && fitted.is_sound(), "{fit:?}");
        for Sample { tokens, value } in &samples[3..] {
            let off = fitted.at(*tokens).unwrap() / value - 1.0;
            assert!(off.abs() < 0.1, "{tokens}: {off}");
        }
    }

    #[test]
    fn a_line_is_fitted_to_its_own_bytes() {
        let bytes = Bytes { per_token: 1536.0, fixed: 9e7 };
        let samples = [1e3, 1e6, 2e6].map(|tokens| Sample { tokens, value: bytes.at(tokens) });
        let (found, fit) = Bytes::fitted(&samples).unwrap();
        assert!(
            (found.per_token - 1536.0).abs() < 1e-6
                && (found.fixed / 9e7 - 1.0).abs() < 1e-9
                && fit.worst < 1e-9
        );
    }
}
