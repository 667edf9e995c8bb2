//! Bounds the difference between a computed result and that of the oracle, for verification.
//!
//! Consider one row with scores `s_j`, probabilities `p_j = exp(s_j) / Σ exp(s)` and the result `y = Σ p_j v_j`, all
//! known in f64. This module bounds the error of each component that a run computes in f32 (`u = 2^-24`,
//! `γ_k = k u / (1 − k u)`). It uses the oracle's numbers, so it judges a finished result; [`super::prior`] bounds the
//! error before the run. `core/BOUNDS.md` has the derivation.
//!
//! # The worst case
//!
//! **Scores.** [`Arithmetic::score`] tracks a score through its partial sums. Let `ω_j` be its largest error, `b_j` the sum
//! of the magnitudes of mask and bias, `C_j` the largest capped score, and `x_j` the distance from the reference. Then the
//! exponent that a run computes differs from the exact one, in natural-log units, by at most
//!
//! ```text
//! δ_j = ω_j + τ C_j + γ_2 C_j (cap) + u C_j (bias) + γ_5 |b_j| + u x_j
//! ```
//!
//! Let `η` be the kernel's declared error of the exponential. Then the weight of key `j` is off by a factor within
//! `1 ± E_j`, where `E_j = exp(δ_j)(1 + η) − 1`.
//!
//! **Sums.** `TrackedSum` tracks the partial sums `W_r` and `S_r` of the run. Let `k` be the number of roundings of a
//! weighted value on the longest path, and `l` the number of roundings of a weight on the longest path. Then
//!
//! ```text
//! N = Σ p_j E_j |v_j − y|
//!   + u Σ |W_r| + k u γ_k Σ p_j |v_j| + γ_k Σ p_j E_j |v_j|
//!   + |y| ( u Σ S_r + l u γ_l + γ_l Σ p_j E_j )
//! |ŷ − y| ≤ (1 + h) N / (1 − D) + h |y| + t            D = Σ p_j E_j + γ_l (1 + Σ p_j E_j)
//! ```
//!
//! Here `h` is the error of the division and of the conversion to the output type, and `t` is the error of underflow.
//!
//! **An average stays an average.** For any weights, `ŷ` is an average of the values whose weight is not lost. So
//! `|ŷ − y|` is at most the largest `|v_j − y|` of these values, plus the roundings of the sums. This bound applies
//! when scores are so large that the first bound is infinite.
//!
//! **Lost weights.** A weight below `2^`[`WEIGHT_FLOOR`] relative to its reference counts as zero or is rounded as a
//! subnormal number. A state is lost if a merge scales it below the normal numbers. So a weight may be lost if its
//! probability is below `2^(WEIGHT_FLOOR + HEADROOM + 1)` in the run.
//!
//! # The likely case
//!
//! Errors of random sign partly cancel (Higham and Mary, *A new approach to probabilistic rounding error analysis*, 2019).
//! To first order `ŷ − y` is a sum of individual roundings, each at most `u` times a known coefficient. If they are
//! independent with mean zero, the Azuma–Hoeffding inequality bounds the sum by `λ u` times the root of the sum of squared
//! coefficients. The bound fails in at most a fraction `2 exp(−λ²/2)` of cases. There are three kinds of coefficients:
//! `p_j (v_j − y)` times a coefficient of the score, the partial sums `W_r`, and `y S_r`:
//!
//! ```text
//! λ u √( Σ p_j² (v_j − y)² σ_j² + Σ W_r² + y² (Σ S_r² + 3) ) + systematic + u_out |y| + t
//! ```
//!
//! Here `λ` is chosen for the fraction [`super::UNLIKELY`]. Errors that are known, or equal in every key, enter with
//! their largest value. These are the rounding of the scaled query, whose sign is known, the approximations of
//! exponential and tangent, lost weights, and the rounding to a 16-bit type. The model is plausible for random data. It
//! fails if equal roundings repeat, for example if a key occurs many times. Exceeding this bound is a warning, not a
//! proof of an error.

use super::partials::TrackedSum;
use super::{
    ABOVE, ADDED, Arithmetic, LAMBDA, LOST, LOST_FROZEN, LOWEST, OUTWARD, Score, U, gamma, left_out,
};
use crate::attention::certificate::Executed;
use crate::state::{FROZEN_RANGE, HEADROOM, WEIGHT_FLOOR};
use core::f64::consts::LN_2;

/// Half the distance between two neighbouring references, in natural-log units, rounded up: the largest rounding of a
/// reference. When a score moves a reference, the new reference exceeds the score by at most this amount.
const HALF: f64 = 0.35;
const _: () = assert!(0.5 * LN_2 < HALF);

/// `ln LOST`, rounded up.
const LN_LOST: f64 = -81.0;
const _: () = assert!((WEIGHT_FLOOR + HEADROOM + 1.0) as f64 * LN_2 < LN_LOST);

/// `ln LOST_FROZEN`, rounded up.
const LN_LOST_FROZEN: f64 = -70.0;
const _: () = assert!((WEIGHT_FLOOR + FROZEN_RANGE + 1.0) as f64 * LN_2 < LN_LOST_FROZEN);

/// Largest change that errors of scores cause in a reference, in natural-log units. If [`Row::wild`] is set, the change
/// may be larger.
const MOVED: f64 = 1.0 / 64.0;

/// Rounding of the constant `log2 e` to f32, in units of `u`. The same rounding affects every key.
const LOG2_E_ROUNDED: f64 = 0.25;

/// Returns `a b`, or zero if either factor is zero. So an infinite error has no effect if it is multiplied by zero.
fn times(a: f64, b: f64) -> f64 {
    if a == 0.0 || b == 0.0 { 0.0 } else { a * b }
}

/// The error bounds of the weight of one attended key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeyBound {
    /// Index of the key in the sequence.
    pub j: usize,
    /// Probability of the key.
    pub p: f64,
    /// Largest error `δ_j` of the distance between the key's score and the reference, in natural-log units.
    pub delta: f64,
    /// Largest change of the key's probability before renormalization: `p_j E_j`.
    change: f64,
    /// `true` if the key's probability is certainly below the threshold for lost weights.
    lost: bool,
    /// Largest change of the key's probability if its weight is lost.
    vanishing: f64,
    /// `true` if the key's probability may be below the threshold for lost weights. The run may then drop the weight, or
    /// round it as a subnormal number.
    may_be_lost: bool,
    /// Squared effect of the roundings of the score, `p_j² σ_j²`, in units of `u²`.
    squares: f64,
    /// Systematic part of the change of the key's probability; `shift` is the part of known sign.
    systematic: f64,
    shift: f64,
}

impl KeyBound {
    /// The bounds of a key that has no weight.
    const NOTHING: KeyBound = KeyBound {
        j: 0,
        p: 0.0,
        delta: 0.0,
        change: 0.0,
        lost: true,
        vanishing: 2.0 * LOST,
        may_be_lost: false,
        squares: 0.0,
        systematic: 0.0,
        shift: 0.0,
    };
}

/// The accumulated bound of a row over the keys absorbed so far.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    arithmetic: Arithmetic,
    /// Logarithms of the probabilities of all keys of the sequence.
    ln_p: &'a [f64],
    /// Indices of the current group and of its segment. The keys of a group move a reference together.
    tile: Option<(usize, usize)>,
    /// Largest `ln p` of the segment's first group; `top` is the largest of all groups so far.
    first: f64,
    top: f64,
    /// Largest `ln p` of the row.
    most: f64,
    /// The sum `Σ p_j E_j`. The likely part of this sum is in `likely_change`.
    change: f64,
    likely_change: f64,
    /// `true` if a score, and therefore a reference, may be off by more than [`MOVED`].
    wild: bool,
    weights: TrackedSum,
    keys: usize,
    /// `ln S` of a row whose reference need not follow its scores; `None` if the reference follows the scores.
    ln_s: Option<f64>,
}

/// The accumulated sums of one component of a row's output.
#[derive(Clone, Copy, Debug)]
pub struct Component {
    /// Result of the oracle.
    y: f64,
    /// `Σ p_j E_j |v_j − y|`; `raised` is `Σ p_j E_j |v_j|`.
    change: f64,
    raised: f64,
    /// Squared effect of the roundings of the scores: `Σ p_j² (v_j − y)² σ_j²`.
    squares: f64,
    /// `Σ systematic |v_j − y|`; `shift` is `Σ p_j shift_j (v_j − y)`.
    systematic: f64,
    shift: f64,
    /// `Σ p_j |v_j|`; `magnitude_squares` is `Σ (p_j v_j)²`.
    magnitude: f64,
    magnitude_squares: f64,
    /// Largest `|v_j − y|` over the keys whose weight is not lost; `lost` is the contribution of lost weights.
    far: f64,
    lost: f64,
    /// Smallest value of the component; `largest` is the largest.
    least: f64,
    largest: f64,
    /// Largest magnitude of the channel over all keys of the sequence; only known and needed if operands are split.
    channel: f64,
    /// `true` if an infinite or NaN value may have weight zero in the run.
    poisoned: bool,
    weighted: TrackedSum,
}

impl Component {
    /// Creates a component with exact value `y`, before any key is absorbed.
    #[must_use]
    pub fn new(arithmetic: &Arithmetic, y: f64) -> Component {
        let Executed { into_w, merge_depth, fused, order, split, .. } = arithmetic.executed;
        Component {
            y,
            change: 0.0,
            raised: 0.0,
            squares: 0.0,
            systematic: 0.0,
            shift: 0.0,
            magnitude: 0.0,
            magnitude_squares: 0.0,
            far: 0.0,
            lost: 0.0,
            least: f64::INFINITY,
            largest: f64::NEG_INFINITY,
            channel: if split { f64::INFINITY } else { 0.0 },
            poisoned: false,
            weighted: TrackedSum::new(order.of_values(into_w.saturating_sub(merge_depth) + 1, fused)),
        }
    }

    /// Sets the largest magnitude of the channel over all keys of the sequence, attended or not. If operands are split, the bounds
    /// are infinite without it.
    pub const fn within_channel(&mut self, largest: f64) {
        self.channel = largest;
    }

    /// Absorbs a key and its value in this component.
    #[inline]
    pub fn absorb(&mut self, key: &KeyBound, v: f64) {
        let from = (v - self.y).abs();
        let magnitude = v.abs();
        self.poisoned |= key.may_be_lost && !v.is_finite();
        (self.least, self.largest) = (self.least.min(v), self.largest.max(v));
        if key.lost {
            self.lost += key.vanishing * from;
        } else if from > self.far {
            self.far = from;
        }
        self.change += times(key.change, from);
        self.raised += times(key.change, magnitude);
        self.squares += times(key.squares, from * from);
        self.systematic += times(key.systematic, from);
        self.shift += times(key.shift, v - self.y);
        let weighted = times(key.p, v);
        self.magnitude += weighted.abs();
        self.magnitude_squares += weighted * weighted;
        self.weighted.absorb(key.j, weighted);
    }
}

/// Allowed difference between a computed component and the oracle's component.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Largest difference in the worst case. No run with this arithmetic exceeds it.
    pub worst: f64,
    /// The bound for errors of random sign: at most a fraction [`super::UNLIKELY`] of components exceeds it. Never
    /// greater than `worst`.
    pub likely: f64,
    /// `true` if the result may be NaN where the oracle's result is infinite. The reason is that the weight of a value
    /// that is not finite may be lost, and zero times infinity is NaN.
    pub poisoned: bool,
}

impl Bounds {
    /// Returns `true` if `found` is an allowed result where the oracle's result is `y`. If `y` is finite, `found` must be
    /// within the worst case. If `y` is NaN, `found` must be NaN. If `y` is infinite, `found` must equal `y`; it may also
    /// be NaN if [`Bounds::poisoned`] is set.
    #[must_use]
    pub fn admit(&self, y: f64, found: f64) -> bool {
        if y.is_finite() {
            (found - y).abs() <= self.worst
        } else if y.is_nan() {
            found.is_nan()
        } else {
            found == y || (found.is_nan() && self.poisoned)
        }
    }
}

impl<'a> Row<'a> {
    /// Creates a row before any key is absorbed. `ln_p` contains the logarithms of the probabilities of all keys of the
    /// sequence; `−∞` for keys that are not attended.
    #[must_use]
    pub fn new(arithmetic: Arithmetic, ln_p: &'a [f64]) -> Row<'a> {
        let Executed { into_s, merge_depth, order, .. } = arithmetic.executed;
        Row {
            arithmetic,
            ln_p,
            tile: None,
            first: f64::NEG_INFINITY,
            top: f64::NEG_INFINITY,
            most: ln_p.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            change: 0.0,
            likely_change: 0.0,
            wild: false,
            weights: TrackedSum::new(order.of_weights(into_s.saturating_sub(merge_depth))),
            keys: 0,
            ln_s: None,
        }
    }

    /// Creates a row that the guard accepted ([`crate::attention::traversal::guard`]). Its reference `m` (here in
    /// natural-log units) need not follow its scores. `ln_s` is the exact log-sum-exp of all its keys minus `m`. Because
    /// `s_j − m = ln p_j + ln_s`, a score is within `|ln p_j| + |ln_s|` of the row's last reference. Scores exceeded
    /// earlier references by at most the headroom.
    #[must_use]
    pub fn frozen(arithmetic: Arithmetic, ln_p: &'a [f64], ln_s: f64) -> Row<'a> {
        Row { ln_s: Some(ln_s), ..Row::new(arithmetic, ln_p) }
    }

    /// Returns `(ln p, p)`, where `p` is the probability below which a weight may be lost.
    fn losing(&self) -> (f64, f64) {
        if self.ln_s.is_some() { (LN_LOST_FROZEN, LOST_FROZEN) } else { (LN_LOST, LOST) }
    }

    /// Returns the underflow error of products and sums, relative to the sum of weights.
    fn tiny(&self) -> f64 {
        // The sum of weights in a frozen row may be small.
        let inverse = self.ln_s.map_or(1.0, |ln_s| libm::exp(-ln_s).max(1.0) * 2.0);
        let (_, lost_output) = self.arithmetic.output();
        f64::from(f32::MIN_POSITIVE) + self.keys as f64 * libm::exp2(-148.0) * inverse + lost_output
    }

    /// Returns the largest distance between the score of key `j` and the reference that the run subtracts, assuming
    /// exact scores.
    fn distance(&mut self, j: usize, ln_p: f64) -> f64 {
        let order = self.arithmetic.executed.order;
        if let Some(ln_s) = self.ln_s {
            // Earlier references of the row were below a score by at most the headroom.
            return (ln_p.abs() + ln_s.abs()).max(ABOVE);
        }
        if order.references == 0 || order.segment == 0 {
            return (self.most - ln_p + HALF).max(ABOVE);
        }
        let tile = (j / order.references, j / order.segment);
        if self.tile != Some(tile) {
            let start = tile.0 * order.references;
            let end = start.saturating_add(order.references).min(self.ln_p.len());
            let top = self.ln_p[start..end].iter().copied().fold(f64::NEG_INFINITY, f64::max);
            if self.tile.is_none_or(|(_, segment)| segment != tile.1) {
                (self.first, self.top) = (top, top);
            }
            (self.tile, self.top) = (Some(tile), self.top.max(top));
        }
        let above = (ln_p - self.first + HALF).min(ABOVE);
        (self.top - ln_p + HALF).max(above)
    }

    /// Bounds the error of key `j`, whose score is `score`, and absorbs the key. `bias` is `|bias| + |mask|`, or the
    /// signed value if only one of them exists. Absorb attended keys only, in increasing order, and pass the returned
    /// key to every component.
    pub fn absorb(&mut self, j: usize, score: &Score, bias: f64) -> KeyBound {
        let ln_p = self.ln_p.get(j).copied().unwrap_or(f64::NAN);
        let distance = self.distance(j, ln_p);
        let a = self.arithmetic;
        let Executed { exp2_relative, .. } = a.executed;
        let capped = if a.softcap > 0.0 { score.magnitude.min(a.softcap) } else { score.magnitude };
        let (tangent, cap) = if a.softcap > 0.0 { (a.tangent() * capped, capped) } else { (0.0, 0.0) };
        let added = if bias == 0.0 { 0.0 } else { capped };
        let before =
            score.worst + tangent + gamma(2.0) * cap + gamma(1.0) * added + gamma(ADDED) * bias.abs();
        // If a weight is not lost, it is a normal number, so its rounded distance is limited too.
        let within = (distance + MOVED).min(LOWEST);
        let delta = before + gamma(1.0) * (within + before);
        let (ln_lost, least) = self.losing();
        let vanishing = 2.0 * least;
        if ln_p == f64::NEG_INFINITY {
            return KeyBound { j, p: 0.0, delta, vanishing, ..KeyBound::NOTHING };
        }
        let lost = ln_p + delta < ln_lost;
        let may_be_lost = ln_p - delta <= ln_lost;
        // A certainly lost key does not move a reference that other weights depend on, and no key moves a frozen
        // reference.
        self.wild |= !lost && self.ln_s.is_none() && (before.is_nan() || before > MOVED);
        let p = libm::exp(ln_p);
        let grown = libm::exp(ln_p + delta) * (1.0 + exp2_relative);
        let excess = libm::expm1(delta) * (1.0 + exp2_relative) + exp2_relative;
        let mut change = times(p, excess).min(grown);
        if lost {
            change = vanishing;
        } else if may_be_lost {
            change = change.max(p);
        }
        // The variance of the errors of random sign, to first order; all other errors are systematic.
        let variance = score.squares + cap * cap + added * added + ADDED * bias * bias + within * within;
        let spread = (LAMBDA * U * libm::sqrt(variance) + score.shift.abs() + score.systematic).min(delta);
        let second = if spread < 1.0 { libm::expm1(spread) - spread } else { f64::INFINITY };
        let constants = U * (cap + LOG2_E_ROUNDED * bias.abs());
        let (known, unknown) = if a.softcap > 0.0 { (0.0, score.shift.abs()) } else { (score.shift, 0.0) };
        let systematic = exp2_relative + tangent + unknown + score.systematic + constants + second;
        self.change += change;
        self.likely_change += if lost { vanishing } else { times(p, libm::expm1(spread)) };
        self.weights.absorb(j, p);
        self.keys += 1;
        KeyBound {
            j,
            p,
            delta,
            change,
            lost,
            vanishing,
            may_be_lost,
            squares: times(p * p, variance),
            systematic: if lost {
                vanishing
            } else {
                times(p, systematic) + if may_be_lost { p } else { 0.0 }
            },
            shift: times(p, known),
        }
    }

    /// Returns the bounds of a component that has absorbed every key of the row. The bounds are NaN if numbers of the
    /// oracle are NaN.
    #[must_use]
    pub fn bounds(&self, c: &Component) -> Bounds {
        let a = &self.arithmetic;
        let Executed { into_s, into_w, order, .. } = a.executed;
        let (last, _) = a.output();
        let (output, tiny) = (a.rounded(), self.tiny());
        let (s, w) = (into_s as f64, (into_w + a.value_roundings()) as f64);
        let (of_s, of_w, y) = (gamma(s), gamma(w), c.y.abs());
        let (weights, mut weighted) = (self.weights.roundings(), c.weighted.roundings());
        if order.normalizes {
            weighted.worst += c.magnitude;
            weighted.squares += c.magnitude_squares;
        }
        let sums_of_w = U * weighted.worst + w * U * of_w * c.magnitude + of_w * c.raised;
        let sums_of_s = U * weights.worst + s * U * of_s + of_s * self.change;
        let moved = if self.wild { gamma(1.0) * LOWEST * (c.magnitude + y) } else { 0.0 };
        let (of_weights, of_values) = a.split_values(self.keys as f64);
        let of_values = times(of_values, c.channel);
        let splits = times(of_weights, c.magnitude + c.raised) + of_values;
        let numerator = c.change + moved + sums_of_w + y * sums_of_s + splits;
        // If the errors of the weights are so large that the sum of the weights may vanish, the output is still an average
        // of values.
        let kept = 1.0 - self.change - of_s * (1.0 + self.change);
        let sums = if kept > 0.0 { numerator / kept } else { f64::INFINITY };
        let held = of_s < 1.0 && of_w < 1.0;
        let splits_of_average = of_weights * (c.far + y) + of_values;
        let average =
            ((1.0 + of_w) * c.far + (of_w + of_s) * y + splits_of_average) / (1.0 - of_s) + 2.0 * c.lost;
        let sums = if held && average < sums { average } else { sums };
        let worst = ((1.0 + last) * sums + last * y + tiny) * OUTWARD;
        let squares = c.squares + weighted.squares + y * y * (weights.squares + 3.0);
        let first = LAMBDA * U * libm::sqrt(squares) + c.shift.abs() + c.systematic + splits;
        let kept = 1.0 - self.likely_change.min(0.5);
        let likely = (first / kept + output * y + tiny) * OUTWARD;
        Bounds { worst, likely: if likely > worst { worst } else { likely }, poisoned: c.poisoned }
    }

    /// Returns the bounds of a component of a row that skipped keys. `share` is an upper bound of the skipped fraction
    /// of the weights, `D / (S + D)` ([`crate::attention::traversal::share`]). The row and the component must have
    /// absorbed every attended key, including skipped ones. The likely case equals the worst case.
    ///
    /// Let `ŵ_j` be the computed weights, `P = Σ p_j (1 + ε_j)` and `σ` the share. Let `ỹ` be the average of all
    /// values, `ỹ_K` that of the kept values and `ỹ_D` that of the skipped values:
    ///
    /// ```text
    /// |ỹ − y| ≤ Σ p_j E_j |v_j − y| / P          ỹ_K − ỹ = σ (ỹ_K − ỹ_D)
    /// |ŷ − ỹ_K| ≤ [ γ_k Σ p_j (1 + E_j) |v_j| + |ỹ_K| γ_l P ] / ( P (1 − σ)(1 − γ_l) )
    /// ```
    ///
    /// The bound holds for any order of additions. Sums over the kept keys are at most the sums over all keys.
    #[must_use]
    pub fn bounds_left_out(&self, c: &Component, share: f64) -> Bounds {
        let a = &self.arithmetic;
        let Executed { into_s, into_w, .. } = a.executed;
        let (last, _) = a.output();
        let (of_s, of_w) = (gamma(into_s as f64), gamma((into_w + a.value_roundings()) as f64));
        let (y, whole) = (c.y.abs(), 1.0 - self.change);
        let moved = c.change / whole + left_out(share, c.largest - c.least);
        let weighted = of_w * (c.magnitude + c.raised) + (y + moved) * of_s * (1.0 + self.change);
        let sums = moved + weighted / (whole * (1.0 - share) * (1.0 - of_s));
        let held = of_s < 1.0 && of_w < 1.0;
        let sums = if whole > 0.0 && share < 1.0 && held { sums } else { f64::INFINITY };
        // The output is an average of the kept values for any weights.
        let average =
            ((1.0 + of_w) * c.far + (of_w + of_s) * y) / (1.0 - of_s) + 2.0 * c.lost / (1.0 - share);
        let sums = if held && average < sums { average } else { sums };
        let worst = ((1.0 + last) * sums + last * y + self.tiny()) * OUTWARD;
        Bounds { worst, likely: worst, poisoned: c.poisoned }
    }
}

#[cfg(test)]
mod tests;
