//! Measures the distance between computed attention and a reference in six ways (ELSA section C.2).
//!
//! The measures compare computed probabilities `P̂` and outputs `Ŷ` with a reference `P` and `Y`, over all rows:
//!
//! ```text
//! 1  max |P̂ − P|               4  share of rows whose argmax differs
//! 2  ‖P̂ − P‖₂ / ‖P‖₂           5  max |Ŷ − Y|
//! 3  mean JS(P̂ ‖ P)            6  ‖Ŷ − Y‖₂ / ‖Y‖₂
//! ```
//!
//! A row is streamed through a [`RowDrift`], in any number of chunks of keys and of output elements. A caller that
//! visits all rows before the next chunk keeps one `RowDrift` per row. [`Drift::finish_row`] adds a row to the totals
//! and returns its six measures, which the caller may keep for [`percentile`](crate::drift::percentile).
//!
//! 1. **Jensen–Shannon in nats, by the half-difference.** With `m = (p̂ + p) / 2` and `d = (p̂ − p) / (p̂ + p)`, the
//!    two Kullback–Leibler terms of a key add up to `m ((1 + d) log(1 + d) + (1 − d) log(1 − d)) / 2`, with
//!    `0 log 0 = 0`. If the rows are close, the two terms in the parentheses nearly cancel and leave about `d²`, so
//!    small `d` uses the series `d² + d⁴/6 + d⁶/15 + …`. No term is negative, so neither is the sum, and nothing is
//!    clamped.
//! 2. **NaN propagates.** If a computed number or its reference is NaN, every measure that uses it is NaN, and the
//!    argmax counts as different.
//! 3. **Ties.** The computed argmax is the first of several equal maxima. The computed row and its reference disagree if
//!    the reference's probability of this key is below the reference's largest probability. So choosing another of several
//!    equal maxima is not a disagreement. A strict count is reported as well. It compares first indices, as defined in
//!    ELSA, and is never smaller than the count above.
//! 4. **A zero reference** is treated as in [`crate::drift`].

use crate::drift::Distance;

/// The measures of one row so far. [`RowDrift::probability`] and [`RowDrift::output`] add to them, in any order.
#[derive(Clone, Copy, Debug)]
pub struct RowDrift {
    probabilities: Distance,
    outputs: Distance,
    /// Jensen–Shannon divergence of the keys so far.
    divergence: f64,
    keys: usize,
    /// Largest computed probability so far. `computed_key` is the first key that has it, and `reference_there` is the
    /// reference's probability of that key.
    computed_max: f64,
    computed_key: usize,
    reference_there: f64,
    /// Largest probability of the reference so far. `reference_key` is the first key that has it.
    reference_max: f64,
    reference_key: usize,
}

/// Returns `(1 + d) log(1 + d) + (1 − d) log(1 − d)`: nonnegative for `−1 ≤ d ≤ 1`, NaN for other `d`.
fn divergence_of(d: f64) -> f64 {
    let square = d * d;
    if square < 2.5e-3 {
        // Σ d^{2k} / (k (2k − 1)); the first omitted term is below 2^-53 of the sum.
        let tail = 1.0 / 28.0 + square * (1.0 / 45.0 + square * (1.0 / 66.0));
        return square * (1.0 + square * (1.0 / 6.0 + square * (1.0 / 15.0 + square * tail)));
    }
    let part = |x: f64| if x == -1.0 { 0.0 } else { (1.0 + x) * libm::log1p(x) };
    part(d) + part(-d)
}

impl Default for RowDrift {
    fn default() -> RowDrift {
        RowDrift::new()
    }
}

impl RowDrift {
    /// Creates a row without keys and without outputs.
    #[must_use]
    pub const fn new() -> RowDrift {
        RowDrift {
            probabilities: Distance::NONE,
            outputs: Distance::NONE,
            divergence: 0.0,
            keys: 0,
            computed_max: f64::NEG_INFINITY,
            computed_key: 0,
            reference_there: 0.0,
            reference_max: f64::NEG_INFINITY,
            reference_key: 0,
        }
    }

    /// Adds the probabilities of the next key. Keys must be added in order. The caller passes zero for a distribution that
    /// does not attend the key.
    pub fn probability(&mut self, computed: f64, reference: f64) {
        self.probabilities.add(computed, reference);
        let sum = computed + reference;
        if sum != 0.0 {
            self.divergence += 0.25 * sum * divergence_of((computed - reference) / sum);
        } else if computed != 0.0 {
            // The divergence is undefined if the probabilities have opposite signs.
            self.divergence = f64::NAN;
        }
        if computed > self.computed_max {
            (self.computed_max, self.computed_key, self.reference_there) = (computed, self.keys, reference);
        }
        if reference > self.reference_max {
            (self.reference_max, self.reference_key) = (reference, self.keys);
        }
        self.keys += 1;
    }

    /// Adds the next element of the output row.
    pub fn output(&mut self, computed: f64, reference: f64) {
        self.outputs.add(computed, reference);
    }

    /// Returns the first key with the largest computed probability; zero without keys.
    #[must_use]
    pub const fn computed_argmax(&self) -> usize {
        self.computed_key
    }

    /// Returns the first key with the reference's largest probability; zero without keys.
    #[must_use]
    pub const fn reference_argmax(&self) -> usize {
        self.reference_key
    }

    /// Returns the six measures of this row alone. Its share of differing argmaxes is zero or one.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        let nan = self.probabilities.max_abs().is_nan();
        let differs = |differs: bool| if nan || differs { 1.0 } else { 0.0 };
        Metrics {
            max_abs_p: self.probabilities.max_abs(),
            rel_l2_p: self.probabilities.relative(),
            js: self.divergence,
            argmax: differs(self.keys > 0 && self.reference_there < self.reference_max),
            argmax_strict: differs(self.computed_key != self.reference_key),
            max_abs_y: self.outputs.max_abs(),
            rel_l2_y: self.outputs.relative(),
        }
    }
}

/// The six measures of a row or of a tensor, and the strict share of differing argmaxes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metrics {
    /// Largest absolute difference between a probability and the reference's probability.
    pub max_abs_p: f64,
    /// L2 norm of the difference of the probabilities, relative to the norm of the reference.
    pub rel_l2_p: f64,
    /// Mean Jensen–Shannon divergence over the rows, in nats; 0 to `log 2` for distributions.
    pub js: f64,
    /// Share of rows whose computed argmax is not a maximum of the reference.
    pub argmax: f64,
    /// Share of rows whose first computed argmax is not the first argmax of the reference.
    pub argmax_strict: f64,
    /// Largest absolute difference between an output element and the reference's element.
    pub max_abs_y: f64,
    /// L2 norm of the difference of the outputs, relative to the norm of the reference.
    pub rel_l2_y: f64,
}

/// Totals of the measures over rows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Drift {
    probabilities: Distance,
    outputs: Distance,
    divergence: f64,
    differ: usize,
    differ_strictly: usize,
    rows: usize,
}

impl Drift {
    /// Creates totals over zero rows.
    #[must_use]
    pub fn new() -> Drift {
        Drift::default()
    }

    /// Adds a row to the totals, after the row's last key and output element, and returns the measures of the row.
    pub fn finish_row(&mut self, row: &RowDrift) -> Metrics {
        let metrics = row.metrics();
        self.probabilities.join(&row.probabilities);
        self.outputs.join(&row.outputs);
        self.divergence += metrics.js;
        self.differ += usize::from(metrics.argmax != 0.0);
        self.differ_strictly += usize::from(metrics.argmax_strict != 0.0);
        self.rows += 1;
        metrics
    }

    /// Returns the number of rows so far.
    #[must_use]
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the six measures over all rows so far; `None` without rows.
    #[must_use]
    pub fn metrics(&self) -> Option<Metrics> {
        let rows = self.rows as f64;
        (self.rows > 0).then(|| Metrics {
            max_abs_p: self.probabilities.max_abs(),
            rel_l2_p: self.probabilities.relative(),
            js: self.divergence / rows,
            argmax: self.differ as f64 / rows,
            argmax_strict: self.differ_strictly as f64 / rows,
            max_abs_y: self.outputs.max_abs(),
            rel_l2_y: self.outputs.relative(),
        })
    }
}
