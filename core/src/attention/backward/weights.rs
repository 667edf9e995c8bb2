//! Computes probabilities from scores and the row statistics.

use crate::state::{MOST_ROUNDING, is_empty, weight};
use core::f64::consts::{LN_2, LOG2_E};

/// Limit of the exponent of a weight. A score exceeds its reference by at most [`HEADROOM`](crate::state::HEADROOM), so
/// its exponent stays below this limit. The only exceptions are rows with very large references.
pub const LARGEST_EXPONENT: f32 = 64.0;

/// Magnitude in natural-log units above which the conversion of a reference to base-2 units is inexact.
const FAR: f32 = 1_073_741_824.0;

/// Numbers that convert a score `s` of a row, in base-2 units, to its probability:
///
/// ```text
/// p = 2^min((s − whole) − rest, 64) · factor
/// ```
///
/// `whole` is an integer near the row's largest scores, so the first difference is exact for every score whose
/// probability matters. `rest` is at most 1/2. The formula equals `exp(s ln 2 − m) / S`, and loses no bit of `m`,
/// however large `m` is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowWeights {
    /// Integer nearest to `m log2 e`.
    pub whole: f32,
    /// `m log2 e − whole`.
    pub rest: f32,
    /// `1 / S`; zero for a row without keys.
    pub factor: f32,
}

impl RowWeights {
    /// Creates the weights of a row with `(m, S)` in natural-log units, as returned by
    /// [`Statistics::get`](super::Statistics::get). `scale` is the factor by which the exponential of a kernel exceeds `2^x`
    /// ([`Lanes::WEIGHT_SCALE`] of the kernels), or 1 for an exact exponential.
    ///
    /// Every probability is zero in a row without keys, and NaN in a row whose `m` or `S` is not finite.
    ///
    /// [`Lanes::WEIGHT_SCALE`]: crate::attention::plan::KernelSpec::weight_scale
    #[must_use]
    pub fn of((m, s): (f32, f32), scale: f64) -> RowWeights {
        if is_empty(m, s) {
            return RowWeights { whole: 0.0, rest: 0.0, factor: 0.0 };
        }
        if !(m.is_finite() && s.is_finite()) {
            return RowWeights { whole: f32::NAN, rest: f32::NAN, factor: f32::NAN };
        }
        if m.abs() >= FAR {
            return RowWeights::far(m, s, scale);
        }
        let reference = f64::from(m) * LOG2_E;
        let whole = libm::rint(reference) as f32;
        let rest = (reference - f64::from(whole)) as f32;
        RowWeights { whole, rest, factor: (1.0 / (f64::from(s) * scale)) as f32 }
    }

    /// Creates the weights of a row whose reference is so large that scores are integer multiples of 128. The keys with the
    /// largest score share all the probability, and all other keys have weight zero. Two neighbouring references in base-2
    /// units may be rounded to the same `m` in natural-log units. Therefore `whole` is the next number below the lower of
    /// the two references. All scores above `whole` reach the exponent 64 and count as the largest. `S` shows which of the
    /// two references the run used: for the wrong reference, undoing the factor of
    /// [`natural_reference`](crate::state::natural_reference) yields a sum that is far from every possible number of keys.
    fn far(m: f32, s: f32, scale: f64) -> RowWeights {
        let nearest = (f64::from(m) * LOG2_E) as f32;
        let candidates = [nearest.next_down(), nearest, nearest.next_up()];
        let same = candidates.into_iter().filter(|c| (f64::from(*c) * LN_2) as f32 == m);
        let lowest = same.clone().next().unwrap_or(nearest).next_down();
        if !lowest.is_finite() {
            return RowWeights { whole: f32::NAN, rest: f32::NAN, factor: f32::NAN };
        }
        let sums = same.map(|c| {
            let rest = f64::from(c) * LN_2 - f64::from(m);
            f64::from(s) / libm::exp(rest.clamp(-MOST_ROUNDING, MOST_ROUNDING))
        });
        let sum = sums.into_iter().find(|sum| (0.5..1e12).contains(sum)).unwrap_or(f64::from(s));
        let factor = libm::exp2(-f64::from(LARGEST_EXPONENT)) / (sum * scale);
        RowWeights { whole: lowest, rest: 0.0, factor: factor as f32 }
    }

    /// Returns the probability of a score in base-2 units; zero for `−∞`.
    #[must_use]
    pub fn probability(&self, score: f32) -> f32 {
        if score == f32::NEG_INFINITY {
            return 0.0;
        }
        let x = score - self.whole;
        weight(if x > LARGEST_EXPONENT { LARGEST_EXPONENT } else { x }, self.rest) * self.factor
    }
}

/// Returns `D_i = ⟨do_i, o_i⟩`, summed in f64 and rounded once. `element` returns `(do_i[x], o_i[x])` for `x < dim`.
#[must_use]
pub fn upstream_dot(dim: usize, element: impl Fn(usize) -> (f32, f32)) -> f32 {
    let terms = (0..dim).map(|x| {
        let (upstream, output) = element(x);
        f64::from(upstream) * f64::from(output)
    });
    terms.sum::<f64>() as f32
}

/// Returns `1 − tanh²(x) = 4 e / (1 + e)²` with `e = exp(−2 |x|)`, computed without cancellation.
#[must_use]
pub fn sech_squared(x: f32) -> f32 {
    let e = libm::expf(-2.0 * x.abs());
    4.0 * e / ((1.0 + e) * (1.0 + e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::natural_reference;

    #[test]
    fn large_references_lose_nothing() {
        for score in [0.0f32, 3.0, 1443.0, 5771.0, 92_332.0] {
            // A row with one key, whose probability is one for any score.
            let (m, factor) = natural_reference(score);
            let weights = RowWeights::of((m, factor as f32), 1.0);
            let p = f64::from(weights.probability(score));
            assert!((p - 1.0).abs() <= 2e-7, "score {score}: {p}");
        }
        // A log-sum-exp of 4,000 is too inexact to give a probability of one.
        let lse = RowWeights::of((4_000.000_1, 1.0), 1.0).probability((4_000.000_1 * LOG2_E) as f32);
        assert!((f64::from(lse) - 1.0).abs() > 1e-6, "{lse}");
    }

    #[test]
    fn far_references_share_the_row_among_the_largest() {
        for score in [-1.7e38f32, 2e9, -3.3e9, 1e12, 4.7e20, -9.1e30] {
            for keys in [1.0f32, 3.0, 1000.0] {
                let (m, factor) = natural_reference(score);
                let weights = RowWeights::of((m, (f64::from(keys) * factor) as f32), 1.0);
                let p = weights.probability(score) * keys;
                assert!((p - 1.0).abs() <= 1e-6, "{keys} keys of {score}: {p}");
                let lower = weights.probability(score.next_down().next_down().next_down());
                assert!(lower <= 1e-18, "{score}: {lower}");
                // A log-sum-exp alone, without the number of keys, does not determine the probability. The result is
                // finite nevertheless.
                assert!(RowWeights::of((m, 1.0), 1.0).probability(score).is_finite());
            }
        }
    }

    #[test]
    fn rows_without_keys_and_poisoned_rows() {
        let empty = RowWeights::of((f32::NEG_INFINITY, 0.0), 1.0);
        assert_eq!((empty.probability(5.0), empty.probability(f32::NEG_INFINITY)), (0.0, 0.0));
        for poisoned in
            [(f32::NAN, 1.0), (0.0, f32::NAN), (f32::NEG_INFINITY, f32::NAN), (f32::INFINITY, 1.0)]
        {
            let weights = RowWeights::of(poisoned, 1.0);
            assert!(weights.probability(0.0).is_nan(), "{poisoned:?}");
            assert_eq!(weights.probability(f32::NEG_INFINITY), 0.0);
        }
    }

    #[test]
    fn the_derivative_of_the_cap_has_no_cancellation() {
        for x in [0.0f32, 1e-20, 0.3, 0.62, 0.63, 1.0, 4.0, 9.0, 30.0, -2.5] {
            let exact = 1.0 / libm::pow(libm::cosh(f64::from(x)), 2.0);
            let found = f64::from(sech_squared(x));
            assert!(
                (found - exact).abs() <= exact * 1e-6 * (1.0 + f64::from(x.abs())),
                "{x}: {found} {exact}"
            );
        }
    }
}
