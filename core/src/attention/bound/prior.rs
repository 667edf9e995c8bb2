//! Bounds the rounding error of a result, from the plan and norms of the inputs alone.
//!
//! For a row with scores `s_j`, probabilities `p_j` and the exact output `y_c = Σ p_j v_jc`, [`Arithmetic::prior`]
//! bounds the error of the computed output `ŷ`:
//!
//! ```text
//! |ŷ_c − y_c| ≤ relative · Σ_j p_j |v_jc| + lost · max_j |v_jc| + tiny
//! ```
//!
//! `u = 2^-24` and `γ_k = k u / (1 − k u)`; `core/BOUNDS.md` derives every term. If operands are split, the largest value is that of
//! all keys of the sequence, attended or not.
//!
//! **Scores.** `R = |scale| ‖q‖ ‖k‖` is at least `Σ_c |scale q_c k_c|`, and therefore at least every partial sum of a score.
//! A score in natural-log units is off by at most
//!
//! ```text
//! δ = γ_K R + τ C + γ_5 b + u x + (half-precision chains) + (underflow)
//! ```
//!
//! `K = min(d, chain + chain_depth) + SCALING` counts the roundings of a product. `C = min(R, X)` is the largest capped
//! score, `τ` the error of the tangent, and `b` the largest magnitude added to a score.
//! `x = min(2 (C + b) + ABOVE, LOWEST)` is the largest distance from the reference at which a weight is not lost. The
//! exponential is off by a factor of `1 ± η`, the kernel's declared constant. So a weight is off by a factor within
//! `1 ± E`, `E = exp(δ)(1 + η) − 1`.
//!
//! **Sums.** `ŷ = Σ p_j a_j v_j / Σ p_j b_j`. If a weight has at most `s` additions on its way into `S`, then
//! `|b_j − 1| ≤ B = (1 + E)(1 + γ_s) − 1`. If a weighted value has at most `w` roundings on its way into `W`, then
//! `|a_j − b_j| ≤ (1 + E)(γ_s + γ_w)`. Let `h` be the error of the division and of the conversion to the output type.
//! Then
//!
//! ```text
//! relative = (1 + h) [ 2 B + (1 + E)(γ_s + γ_w) ] / (1 − B) + h
//! ```
//!
//! because `Σ p_j |v_j − y| ≤ 2 Σ p_j |v_j|`.
//!
//! **The likely case** models roundings as independent with mean zero, as in [`super::rounding`], and assumes the largest
//! error of the exponential.
//!
//! Every quantity except `1 − B` is a sum, product or quotient of nonnegative numbers, and `B` is at most one half, so
//! no rounding is amplified much. The bounds take fewer than a thousand operations in f64, each off by a factor within
//! `1 ± 2^-52`, and `OUTWARD` widens the results accordingly.

use super::{
    ABOVE, ADDED, Arithmetic, GATE, LAMBDA, LN_RANGE, LOST, LOST_FROZEN, LOWEST, OUTWARD, SCALING, U, gamma,
};
use crate::dtype::DType;
use crate::state::FROZEN_RANGE;

/// The largest f16 number.
const HALF_LARGEST: f64 = 65_504.0;

/// Upper bounds of the norms of the inputs of a call, or of a part of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norms {
    /// Largest Euclidean norm of a query row.
    pub query: f64,
    /// Largest Euclidean norm of a key row.
    pub key: f64,
    /// Largest magnitude added to a score: the largest sum of `|mask| + |bias|` over finite elements. Zero without mask
    /// and bias.
    pub bias: f64,
}

/// The error bound of a call, computed from its plan and from norms of its inputs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prior {
    /// Largest error of a component, relative to `Σ_j p_j |v_j|`. Infinite if the norms are infinite, NaN, or too large
    /// for a bound.
    pub relative: f64,
    /// Like `relative`, under the model that the signs of roundings are random. If this model holds, at most a fraction
    /// [`super::UNLIKELY`] of components exceeds this bound. Never greater than `relative`.
    pub likely: f64,
    /// Largest error from lost weights, relative to the largest magnitude of a value.
    pub lost: f64,
    /// Largest error from underflow.
    pub tiny: f64,
    /// Bound that holds for any scores, because both `ŷ` and `y` are averages of values: `|ŷ − y|` is at most `average`
    /// times the largest magnitude of a value, plus `tiny`.
    pub average: f64,
    /// Largest magnitude of values for which no sum can overflow.
    pub range: f64,
}

impl Prior {
    /// Returns the weaker of two bounds, field by field. The result holds wherever at least one of the two bounds
    /// holds.
    #[must_use]
    pub(crate) fn wider(&self, other: &Prior) -> Prior {
        Prior {
            relative: self.relative.max(other.relative),
            likely: self.likely.max(other.likely),
            lost: self.lost.max(other.lost),
            tiny: self.tiny.max(other.tiny),
            average: self.average.max(other.average),
            range: self.range.min(other.range),
        }
    }

    /// The bound that guarantees nothing: every error may be infinite.
    const NOTHING: Prior = Prior {
        relative: f64::INFINITY,
        likely: f64::INFINITY,
        lost: f64::INFINITY,
        tiny: f64::INFINITY,
        average: f64::INFINITY,
        range: 0.0,
    };

    /// Returns the largest error of an output component if the magnitudes of its values are at most `value`. The result is
    /// infinite if `value` is NaN or exceeds [`Prior::range`].
    #[must_use]
    pub fn absolute(&self, value: f64) -> f64 {
        if !(value >= 0.0 && value <= self.range) {
            return f64::INFINITY;
        }
        if value == 0.0 {
            return self.tiny;
        }
        let sum = (self.relative + self.lost).min(self.average);
        (sum * value + self.tiny) * OUTWARD
    }

    /// Returns `true` if the bound is meaningful: the largest error of an output component is less than the largest
    /// magnitude of the values.
    #[must_use]
    pub fn claims(&self) -> bool {
        self.relative + self.lost < 1.0
    }
}

/// Properties of a reference that determine the bound.
struct Reference {
    /// Margin in natural-log units. If the weight of a score is not lost, the distance between the score and the
    /// reference is at most this margin plus twice the largest score.
    above: f64,
    /// Probability below which a weight may be lost.
    lost: f64,
    /// Inverse of the smallest sum `S`, up to a factor of two.
    sum: f64,
}

/// Returns the largest change of a component that skipped keys can cause. `share` is the skipped fraction of the weights,
/// and `spread` is the distance between the largest and the smallest value. The result is zero if `share` is zero.
/// Otherwise, an infinite or NaN argument makes the result infinite or NaN.
///
/// `y_K = y + σ (y_K − y_D)`, where `y_K` is the average of the kept values and `y_D` that of the skipped ones.
#[must_use]
pub fn left_out(share: f64, spread: f64) -> f64 {
    if share == 0.0 { 0.0 } else { share * spread * OUTWARD }
}

impl Arithmetic {
    /// Bounds the error of a call in which a row attends at most `keys` keys. NaN and infinite norms yield infinite bounds.
    #[must_use]
    pub fn prior(&self, keys: usize, norms: &Norms) -> Prior {
        self.prior_beside(keys, norms, &Reference { above: ABOVE, lost: LOST, sum: 1.0 })
    }

    /// Bounds the error as [`Arithmetic::prior`] does, for rows that the guard ([`crate::attention::traversal::guard`])
    /// accepts and whose reference need not follow their scores. A score whose weight is not lost is within
    /// `|ln p| + |ln S|` of its reference, and a key whose probability is at least `2^(24 + WEIGHT_FLOOR + 1)` is not lost.
    /// If a run skipped keys, the bound applies to the output over the kept keys, and [`left_out`] must be added.
    #[must_use]
    pub fn prior_frozen(&self, keys: usize, norms: &Norms) -> Prior {
        let above = libm::log(keys.max(1) as f64) + LN_RANGE;
        let sum = libm::exp2(f64::from(FROZEN_RANGE) + 1.0);
        self.prior_beside(keys, norms, &Reference { above, lost: LOST_FROZEN, sum })
    }

    /// Bounds the error as [`Arithmetic::prior`] does, for rows whose reference is zero because
    /// [their scores stay near zero](Arithmetic::stays_near_zero): `2^-49 ≤ S ≤ n 2^49`, and no weight is lost.
    #[must_use]
    pub(crate) fn prior_near_zero(&self, keys: usize, norms: &Norms) -> Prior {
        let above = libm::log(keys.max(1) as f64) + (GATE + 1.0) * core::f64::consts::LN_2;
        self.prior_beside(keys, norms, &Reference { above, lost: LOST_FROZEN, sum: libm::exp2(GATE + 2.0) })
    }

    /// Bounds the error as [`Arithmetic::prior`] does, for rows whose reference has the properties in `reference`.
    fn prior_beside(&self, keys: usize, norms: &Norms, reference: &Reference) -> Prior {
        let Norms { query, key, bias } = *norms;
        let usable = |x: f64| x >= 0.0 && x <= f64::from(f32::MAX);
        let (d, n) = (self.head_dim as f64, keys as f64);
        let largest = libm::fabs(self.scale) * query * key;
        // Upper bound of scores in base-2 units. The factor 2 exceeds log2 e, with room for rounding.
        let scores = 2.0 * (largest + bias);
        if !(usable(query) && usable(key) && usable(bias) && usable(scores) && usable(2.0 * query * key)) {
            return Prior::NOTHING;
        }
        let e = &self.executed;
        // If sums may exceed the range of f16, they may be infinite.
        if e.half_chain > 0 && query * key > HALF_LARGEST {
            return Prior::NOTHING;
        }
        let capped = if self.softcap > 0.0 { largest.min(self.softcap) } else { largest };
        let tangent = self.tangent();
        let distance = (2.0 * (capped + bias) + reference.above).min(LOWEST);

        let steps = self.product_roundings() as f64 + SCALING;
        let (halves, lost_in_halves) = self.in_halves();
        let underflow = f64::from(f32::MIN_POSITIVE) * (libm::sqrt(d) * key + 2.0 * d);
        // `Σ |q_c| K_c ≤ √d ‖q‖ max ‖k‖`.
        let dots = gamma(steps)
            + halves * (1.0 + gamma(steps))
            + self.split_score() * libm::sqrt(d)
            + self.one_product();
        let delta =
            dots * largest + tangent * capped + gamma(ADDED) * bias + gamma(1.0) * distance * (1.0 + 4.0 * U);
        let delta = (delta + lost_in_halves + underflow) * OUTWARD;

        let w_roundings = (e.into_w + self.value_roundings()) as f64;
        let (into_s, into_w) = (gamma(e.into_s as f64), gamma(w_roundings));
        let (last, tiny_output) = self.output();
        let tiny = f64::from(f32::MIN_POSITIVE) + n * libm::exp2(-148.0) * reference.sum + tiny_output;
        let (of_weights, of_values) = self.split_values(n);
        let weighted = (1.0 + into_w) * (1.0 + of_weights) + 2.0 * of_values;
        let average = (1.0 + weighted / (1.0 - into_s) * (1.0 + last)) * OUTWARD;
        let range = f64::from(f32::MAX) / (1024.0 * (n + 1.0));
        let sums_hold = into_w < 0.5 && into_s < 0.5;
        if !sums_hold {
            return Prior::NOTHING;
        }
        let nothing =
            Prior { lost: 0.0, tiny, average, range, relative: f64::INFINITY, likely: f64::INFINITY };
        let weight = libm::expm1(delta) * (1.0 + e.exp2_relative) + e.exp2_relative;
        let changed = weight + into_s + weight * into_s;
        // If the weights may be off by more than a half, the bound claims nothing.
        if changed.is_nan() || changed > 0.5 {
            return nothing;
        }
        let lost = 8.0 * n * reference.lost + of_values * 2.0;
        let sums = (2.0 * changed + (1.0 + weight) * (into_s + into_w + of_weights)) / (1.0 - changed);
        let relative = ((1.0 + last) * sums + last) * OUTWARD;

        let halves =
            e.half_chain as f64 * (DType::F16.unit_roundoff() / U) * (DType::F16.unit_roundoff() / U);
        let products = if e.fused { 0.0 } else { 1.0 };
        let score = (steps + products + halves) * largest * largest
            + ADDED * bias * bias
            + distance * distance
            + (lost_in_halves / U) * (lost_in_halves / U);
        let squares = 4.0 * score + w_roundings + (e.into_s as f64 + 2.0);
        let splits = (self.split_score() * libm::sqrt(d) + self.one_product()) * largest;
        let systematic = 2.0 * (e.exp2_relative + tangent * capped + underflow + splits) + of_weights;
        let likely =
            (LAMBDA * U * libm::sqrt(squares) + systematic) / (1.0 - changed) * (1.0 + last) + self.rounded();
        Prior { relative, likely: (likely * OUTWARD).min(relative), lost, ..nothing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::certificate::{Executed, Order};

    const PLAIN: Arithmetic = Arithmetic {
        head_dim: 64,
        softcap: 0.0,
        scale: 0.125,
        factor: 0.125,
        dtype: DType::F32,
        executed: Executed {
            kernel: "some",
            block: 64,
            segment_blocks: 8,
            merge_depth: 1,
            additions: 72,
            into_s: 71,
            into_w: 72,
            chain: 64,
            chain_depth: 0,
            fused: true,
            exp2_relative: 2.5 * U,
            half_chain: 0,
            split: false,
            one_product: false,
            order: Order::ANY,
        },
    };
    const NORMS: Norms = Norms { query: 8.0, key: 9.0, bias: 0.0 };

    #[test]
    fn by_hand() {
        let found = PLAIN.prior(1024, &NORMS);
        // `R` is 9. The error of a weight has three parts: 69 R, a distance of 24, and the exponential.
        let weight = 69.0 * 9.0 + 24.0 + 2.5;
        let by_hand = 2.0 * (weight + 71.0) + (71.0 + 73.0) + 3.0;
        assert!((found.relative / U / by_hand - 1.0).abs() < 1e-3, "{found:?} {by_hand}");
        assert!(found.claims() && found.likely < found.relative, "{found:?}");
        assert!(found.absolute(2.0) > 2.0 * found.relative);
    }

    /// Compares the bound for a reference of zero with a bound derived by hand. Scores reach the limit of the gate, and
    /// sums may be as small as `2^-49`.
    #[test]
    fn by_hand_beside_zero() {
        let found = PLAIN.prior_near_zero(1024, &NORMS);
        // The largest distance from the reference is the sum of two scores, the logarithm of the number of keys, and 49
        // bits.
        let distance = 18.0 + 1024.0f64.ln() + 49.0 * core::f64::consts::LN_2;
        let weight = 69.0 * 9.0 + distance + 2.5;
        let by_hand = 2.0 * (weight + 71.0) + (71.0 + 73.0) + 3.0;
        assert!((found.relative / U / by_hand - 1.0).abs() < 1e-3, "{found:?} {by_hand}");
        // Each of 1024 products loses up to 2^-150, relative to a sum of 2^-49.
        let lost = 1024.0 * (-150.0f64).exp2() / (-49.0f64).exp2();
        assert!(found.tiny >= lost && found.tiny <= 16.0 * lost, "{found:?} {lost:e}");
        let plain = PLAIN.prior(1024, &NORMS);
        assert!(found.claims() && found.relative > plain.relative && found.tiny > 1e10 * plain.tiny);
        assert!(found.likely > plain.likely && found.likely < found.relative);
        // A bias increases the distance twice, and has five roundings.
        let added = PLAIN.prior_near_zero(1024, &Norms { bias: 7.0, ..NORMS });
        let more = 2.0 * (2.0 * 7.0 + 5.0 * 7.0);
        assert!(((added.relative - found.relative) / U / more - 1.0).abs() < 1e-3, "{added:?} {found:?}");
        // More keys increase the logarithm of their number, and each additional product may underflow.
        let many = PLAIN.prior_near_zero(65_536, &NORMS);
        assert!(many.tiny > 60.0 * found.tiny && many.relative > found.relative);
        for bad in [f64::NAN, f64::INFINITY] {
            assert!(!PLAIN.prior_near_zero(1024, &Norms { bias: bad, ..NORMS }).claims());
        }
    }

    #[test]
    fn every_constant_widens_the_bound() {
        type Change<'a> = (&'a str, &'a dyn Fn(&mut Executed));
        let plain = PLAIN.prior(1024, &NORMS);
        let wider: [Change<'_>; 9] = [
            ("the exponential", &|e| e.exp2_relative *= 2.0),
            ("shorter chains that are joined", &|e| (e.chain, e.chain_depth) = (32, 40)),
            ("additions into S", &|e| e.into_s *= 2),
            ("additions into W", &|e| e.into_w *= 2),
            ("chains in f16", &|e| e.half_chain = 16),
            ("weights that are divided first", &|e| e.order.normalizes = true),
            ("products that round apart", &|e| e.fused = false),
            ("operands of two f16 values", &|e| e.split = true),
            ("operands of one f16 value", &|e| (e.split, e.one_product) = (true, true)),
        ];
        for (what, change) in wider {
            let mut arithmetic = Arithmetic { head_dim: 128, ..PLAIN };
            change(&mut arithmetic.executed);
            let found = arithmetic.prior(1024, &NORMS);
            // A product that rounds separately replaces an addition on the longest path.
            assert!(found.relative > plain.relative || what.starts_with("products"), "{what}: {found:?}");
            assert!(found.likely > plain.likely, "{what}: {found:?}");
        }
        // Three roundings to 11 bits: of the weight, of the value, and, with their effect on numerator and sum, of the score.
        let mut one = PLAIN;
        (one.executed.split, one.executed.one_product) = (true, true);
        let found = one.prior(1024, &NORMS);
        let by_hand = (2.0 * 9.0 + 1.0) / 1024.0;
        assert!(
            (found.relative / by_hand - 1.0).abs() < 0.03 && found.average > 2.0 + 1.0 / 1024.0,
            "{found:?}"
        );
        let of = |arithmetic: Arithmetic, norms: Norms| arithmetic.prior(1024, &norms).relative;
        for dtype in [DType::F16, DType::Bf16] {
            assert!(of(Arithmetic { dtype, ..PLAIN }, NORMS) > plain.relative + 0.9 * dtype.unit_roundoff());
        }
        assert!(of(Arithmetic { scale: -0.25, ..PLAIN }, NORMS) > plain.relative);
        assert!(of(PLAIN, Norms { query: 9.0, ..NORMS }) > plain.relative);
        assert!(of(PLAIN, Norms { key: 10.0, ..NORMS }) > plain.relative);
        assert!(of(PLAIN, Norms { bias: 1.0, ..NORMS }) > plain.relative);
        assert!(of(Arithmetic { softcap: 50.0, factor: 0.0025, ..PLAIN }, NORMS) > plain.relative);
    }

    #[test]
    fn nothing_is_claimed_beyond_what_it_covers() {
        // These scores may be off by more than a half.
        let far = PLAIN.prior(1024, &Norms { query: 1e4, key: 1e4, bias: 0.0 });
        assert!(!far.claims() && far.relative == f64::INFINITY && far.likely == f64::INFINITY, "{far:?}");
        // The output is still an average of values.
        assert!((2.0..2.01).contains(&far.absolute(1.0)), "{far:?}");
        assert_eq!(far.absolute(0.0), far.tiny);
        // Sums of these values may overflow.
        assert_eq!(PLAIN.prior(1024, &NORMS).absolute(1e36), f64::INFINITY);
        // Sums of these products may overflow in f16.
        let mut halves = PLAIN;
        halves.executed.half_chain = 16;
        assert!(!halves.prior(1024, &Norms { query: 1e3, key: 1e2, bias: 0.0 }).claims());
        // The bound is infinite for this number of additions.
        let mut long = PLAIN;
        long.executed.into_w = 1 << 24;
        assert!(!long.prior(1024, &NORMS).claims());
    }

    #[test]
    fn what_is_not_finite_is_never_claimed() {
        for bad in [f64::NAN, f64::INFINITY, -1.0, 1e39] {
            for norms in
                [Norms { query: bad, ..NORMS }, Norms { key: bad, ..NORMS }, Norms { bias: bad, ..NORMS }]
            {
                let found = PLAIN.prior(1024, &norms);
                assert!(!found.claims() && found.absolute(1.0) == f64::INFINITY, "{norms:?}: {found:?}");
            }
            assert_eq!(PLAIN.prior(1024, &NORMS).absolute(bad), f64::INFINITY, "{bad}");
        }
    }
}
