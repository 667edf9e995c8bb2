//! Least squares without negative coefficients.
//!
//! The fit minimises the sum over samples of `(Σ_k a_k f_k(x) / y − 1)²` over all `a ≥ 0`. Errors are relative to the
//! measured value, so that a size that takes a microsecond counts as much as one that takes a minute.
//!
//! Plain least squares may yield a negative coefficient, which leads to negative predicted times for short sequences.
//! Under the constraint `a ≥ 0`, the best solution is a plain least-squares solution over its nonzero coefficients
//! (Lawson and Hanson, Solving Least Squares Problems, chapter 23). There are at most three coefficients, and therefore
//! at most seven nonempty sets of nonzero coefficients. The problem of each set is solved by Givens rotations, row by
//! row. The best solution without a negative coefficient is returned. This method needs no memory and no iteration.

use libm::{fabs, sqrt};

/// Bytes or seconds that a call with a given number of tokens takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Number of tokens of the measured call.
    pub tokens: f64,
    /// Measured bytes or seconds.
    pub value: f64,
}

/// Reason why a fit failed.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum FitError {
    /// The samples have fewer different numbers of tokens than the fit has coefficients.
    Few {
        /// Number of different numbers of tokens in the samples.
        found: usize,
        /// Number of different numbers of tokens that the fit requires.
        needed: usize,
    },
    /// An invalid sample: tokens and value must be positive and finite.
    Value {
        /// Index of the sample.
        index: usize,
        /// Number of tokens of the sample.
        tokens: f64,
        /// Value of the sample.
        value: f64,
    },
}

impl std::fmt::Display for FitError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FitError::Few { found, needed } => {
                write!(f, "samples: {found} different sizes; allowed: at least {needed}")
            }
            FitError::Value { index, tokens, value } => {
                write!(f, "sample {index}: {value} at {tokens} tokens; allowed: positive finite numbers")
            }
        }
    }
}

impl std::error::Error for FitError {}

/// Nonnegative coefficients and the quality of the fit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit<const K: usize> {
    /// Coefficient `a_k` of each function `f_k`.
    pub coefficients: [f64; K],
    /// Largest relative error of a sample, `|fitted / measured − 1|`.
    pub worst: f64,
    /// Root mean square of the relative errors.
    pub rms: f64,
}

/// Fits `Σ_k a_k f_k(tokens)` to `samples`; `functions` returns the values of all `f_k` at a number of tokens.
///
/// # Errors
/// Returns an error for fewer different sizes than coefficients, or for samples that are not positive and finite.
pub fn fit<const K: usize>(
    samples: &[Sample],
    functions: impl Fn(f64) -> [f64; K],
) -> Result<Fit<K>, FitError> {
    const { assert!(K > 0 && K <= 3) };
    let positive = |x: f64| x.is_finite() && x > 0.0;
    for (index, &Sample { tokens, value }) in samples.iter().enumerate() {
        if !(positive(tokens) && positive(value)) {
            return Err(FitError::Value { index, tokens, value });
        }
    }
    let new = |i: &usize| samples[..*i].iter().all(|other| other.tokens != samples[*i].tokens);
    let found = (0..samples.len()).filter(new).count();
    if found < K {
        return Err(FitError::Few { found, needed: K });
    }
    // Columns are scaled to length one, because their magnitudes range from one to a squared number of tokens.
    let mut lengths = [0.0; K];
    for &Sample { tokens, value } in samples {
        for (length, f) in lengths.iter_mut().zip(functions(tokens)) {
            *length += (f / value) * (f / value);
        }
    }
    let lengths = lengths.map(sqrt);
    let scaled = |sample: &Sample| {
        let mut row = functions(sample.tokens);
        for (x, length) in row.iter_mut().zip(lengths) {
            *x /= sample.value * length;
        }
        row
    };
    let mut best: Option<([f64; K], f64)> = None;
    for set in 1..1usize << K {
        let Some(a) = solve(samples.iter().map(scaled), set) else { continue };
        if a.iter().any(|x| x.is_nan() || *x < 0.0) {
            continue;
        }
        let residue = |sample: &Sample| {
            let sum: f64 = scaled(sample).iter().zip(a).map(|(f, a)| f * a).sum();
            (sum - 1.0) * (sum - 1.0)
        };
        let squares: f64 = samples.iter().map(residue).sum();
        if best.is_none_or(|(_, least)| squares < least) {
            best = Some((a, squares));
        }
    }
    // The fit of a single function has a positive coefficient, so there is a best set.
    let Some((mut coefficients, squares)) = best else { return Err(FitError::Few { found, needed: K }) };
    for (a, length) in coefficients.iter_mut().zip(lengths) {
        *a /= length;
    }
    let relative = |sample: &Sample| {
        let sum: f64 = functions(sample.tokens).iter().zip(coefficients).map(|(f, a)| f * a).sum();
        fabs(sum / sample.value - 1.0)
    };
    let worst = samples.iter().map(relative).fold(0.0, f64::max);
    Ok(Fit { coefficients, worst, rms: sqrt(squares / samples.len() as f64) })
}

/// Solves the least-squares problem `row · a = 1` over the columns in the bit set `set`; the other coefficients are
/// zero. Returns `None` if these columns are linearly dependent.
fn solve<const K: usize>(rows: impl Iterator<Item = [f64; K]>, set: usize) -> Option<[f64; K]> {
    // The upper triangle, and the right-hand side of the equations.
    let (mut r, mut right) = ([[0.0; K]; K], [0.0; K]);
    for mut row in rows {
        let mut one = 1.0;
        for i in (0..K).filter(|i| set >> i & 1 == 1) {
            let length = sqrt(r[i][i] * r[i][i] + row[i] * row[i]);
            if length == 0.0 {
                continue;
            }
            let (cosine, sine) = (r[i][i] / length, row[i] / length);
            for j in i..K {
                let (above, below) = (r[i][j], row[j]);
                r[i][j] = cosine * above + sine * below;
                row[j] = cosine * below - sine * above;
            }
            let above = right[i];
            right[i] = cosine * above + sine * one;
            one = cosine * one - sine * above;
        }
    }
    let mut a = [0.0; K];
    for i in (0..K).rev().filter(|i| set >> i & 1 == 1) {
        // Columns have length one, so a diagonal element this small is a rounding error: the column is dependent.
        if fabs(r[i][i]) <= 1e-12 {
            return None;
        }
        let sum: f64 = (i + 1..K).filter(|j| set >> j & 1 == 1).map(|j| r[i][j] * a[j]).sum();
        a[i] = (right[i] - sum) / r[i][i];
    }
    Some(a)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parabola(x: f64) -> [f64; 3] {
        [x * x, x, 1.0]
    }

    fn samples<const N: usize>(sizes: [f64; N], value: impl Fn(f64) -> f64) -> [Sample; N] {
        sizes.map(|tokens| Sample { tokens, value: value(tokens) })
    }

    #[test]
    fn known_coefficients_are_found() {
        let sizes = [1e3, 3e3, 1e4, 1e5, 2e6];
        for known in
            [[9.4e-12, 1e-6, 3.5e-2], [1e-9, 0.0, 0.0], [0.0, 2e-6, 1.0], [3e-9, 0.0, 0.2], [0.0, 0.0, 5.0]]
        {
            let value = |x: f64| parabola(x).iter().zip(known).map(|(f, a)| f * a).sum();
            let fit = fit(&samples(sizes, value), parabola).unwrap();
            for ((found, known), f) in fit.coefficients.iter().zip(known).zip(parabola(2e6)) {
                // The error of a term at the largest size is small relative to the total there.
                assert!((found - known).abs() * f <= 1e-9 * value(2e6), "{found} {known}");
            }
            assert!(fit.worst < 1e-9 && fit.rms < 1e-9, "{fit:?}");
        }
    }

    #[test]
    fn no_coefficient_is_negative_and_no_other_set_fits_better() {
        // Each parabola has a negative coefficient; the first is the paper's fit.
        for wrong in [[9.37e-12, 9.92e-7, -3.51e-2], [1e-9, -1e-6, 1e-2], [-1e-12, 1e-5, 0.0]] {
            let value = |x: f64| parabola(x).iter().zip(wrong).map(|(f, a)| f * a).sum::<f64>();
            let all = samples([1e5, 2e5, 3e5, 5e5, 1e6], value);
            let found = fit(&all, parabola).unwrap();
            assert!(found.coefficients.iter().all(|a| *a >= 0.0), "{found:?}");
            let squares = |a: [f64; 3]| {
                let each = |s: &Sample| {
                    parabola(s.tokens).iter().zip(a).map(|(f, a)| f * a).sum::<f64>() / s.value - 1.0
                };
                all.iter().map(|s| each(s) * each(s)).sum::<f64>()
            };
            let least = squares(found.coefficients);
            assert!((sqrt(least / 5.0) - found.rms).abs() <= 1e-12 + 1e-9 * found.rms);
            // No allowed change of a single coefficient improves the fit.
            for k in 0..3 {
                for by in [1.001, 0.999] {
                    let mut near = found.coefficients;
                    near[k] *= by;
                    assert!(squares(near) >= least * (1.0 - 1e-12), "{k} {by}");
                }
                let mut near = found.coefficients;
                near[k] += 1e-5 * value(1e6) / parabola(1e6)[k];
                assert!(squares(near) >= least * (1.0 - 1e-12), "{k}");
            }
        }
    }

    #[test]
    fn errors_are_relative_to_what_was_measured() {
        // Values at the short sizes are a ten-thousandth of those at the long size, and the fit still meets them.
        let value = |x: f64| x * x + 100.0 * x + 1e4;
        let all = samples([10.0, 20.0, 1e4, 1e4], value);
        let mut bent = all;
        bent[3].value *= 1.1;
        let found = fit(&bent, parabola).unwrap();
        let at = |x: f64| parabola(x).iter().zip(found.coefficients).map(|(f, a)| f * a).sum::<f64>();
        assert!((at(10.0) / value(10.0) - 1.0).abs() < 1e-6, "{found:?}");
        assert!(found.worst > 0.04 && found.worst < 0.06, "{found:?}");
    }

    #[test]
    fn what_is_no_measurement_is_refused() {
        let good = samples([1.0, 2.0, 3.0], |x| x);
        for (tokens, value) in [
            (1.0, -1.0),
            (1.0, 0.0),
            (1.0, f64::NAN),
            (1.0, f64::INFINITY),
            (0.0, 1.0),
            (f64::NAN, 1.0),
            (-2.0, 1.0),
        ] {
            let all = [good[0], good[1], good[2], Sample { tokens, value }];
            assert!(matches!(fit(&all, parabola), Err(FitError::Value { index: 3, .. })), "{tokens} {value}");
        }
        assert_eq!(fit(&good[..2], parabola), Err(FitError::Few { found: 2, needed: 3 }));
        let twice = [good[0], good[0], good[1]];
        assert_eq!(fit(&twice, parabola), Err(FitError::Few { found: 2, needed: 3 }));
        assert_eq!(fit(&[], |x| [x, 1.0]), Err(FitError::Few { found: 0, needed: 2 }));
        assert!(fit(&twice, |x| [x, 1.0]).is_ok());
    }
}
