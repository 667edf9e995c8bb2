//! How far rounding can move an answer away from the oracle's: a bound for verification.
//!
//! For one row with scores `s_j`, probabilities `p_j = exp(s_j) / Σ exp(s)` and the answer `y = Σ p_j v_j` known
//! in f64, this module bounds the error of each component of a run in f32 (`u = 2^-24`, `γ_k = k u / (1 − k u)`).
//! It reads the oracle's numbers, so it judges an answer afterwards; it cannot predict one.
//!
//! # The worst case
//!
//! **Scores.** Let `M_j = |scale| Σ_c |q_c k_jc|`, with `b_j` the sum of the magnitudes of mask and bias,
//! and soft cap `X` (zero if absent). The exponent
//! that a run computes for a key differs from the exact one, in natural-log units, by at most
//!
//! ```text
//! δ_j = γ_K M_j + u [ 5 |b_j| + 2 (|ln p_j| + 6) ] + τ min(M_j, X)
//! ```
//!
//! The terms are, in order: the `K` roundings of a product on its way into a score, with the factors that convert it to
//! base 2; the conversion of mask and bias, their sum and its addition; the subtraction of the reference, from which a
//! score lies at most `|ln p_j| + 8 ln 2` away ([`HEADROOM`](crate::state::HEADROOM)); and the approximation of the
//! hyperbolic tangent. With the kernel's declared error `η` of the exponential a weight is off by a factor within
//! `1 ± E_j`, `E_j = exp(δ_j) (1 + η) − 1`.
//!
//! If a kernel sums chains of `c` products in f16 (`u_h = 2^-11`, `η_h = c u_h / (1 − c u_h)`), each step also loses
//! up to `2^-25` to subnormal f16 values: `δ_j` grows by `η_h (1 + γ_K) M_j + |scale| d 2^-25`, and `σ_j²` below
//! by `c (u_h / u)² M_j² + (|scale| d 2^-25 / u)²`. Sums beyond the range of f16 are not covered: the kernel
//! answers them with NaN.
//!
//! **Sums.** Let `A` be the largest number of additions on the path of a weight into `S`, and `B` that into `W`. They put
//! factors `1 + θ`, `|θ| ≤ γ_A`, on the terms of `S`; with the product by the value, `|θ| ≤ γ_(B+1)` on those of `W`.
//! So `ŷ = Σ p_j a_j v_j / Σ p_j b_j` with
//!
//! ```text
//! |b_j − 1| ≤ F_j = (1 + E_j)(1 + γ_A) − 1        |a_j − b_j| ≤ (1 + E_j)(γ_A + γ_(B+1))
//! ```
//!
//! Since `Σ p_j (v_j − y) = 0`, the numerator of `ŷ − y` is `Σ p_j (b_j − 1)(v_j − y) + Σ p_j (a_j − b_j) v_j`.
//! Let `D = Σ p_j F_j`; let `h = γ_3` for the final division and product, plus the unit roundoff of a 16-bit
//! output type; and let `t` be the smallest normal number of f32, `2^-126`, for what underflows, plus half of the
//! smallest positive number of a 16-bit output type (`2^-25` of f16, `2^-134` of bf16), for outputs that are subnormal
//! there. Then [`Bounds::worst`] is
//!
//! ```text
//! |ŷ − y| ≤ (1 + h) [ Σ p_j F_j |v_j − y| + (γ_A + γ_(B+1)) Σ p_j (1 + E_j) |v_j| ] / (1 − D) + h |y| + t
//! ```
//!
//! **Lost weights.** A weight below `2^`[`WEIGHT_FLOOR`](crate::state::WEIGHT_FLOOR) relative to its reference counts as zero or is rounded as a
//! subnormal number, and a state is lost where a merge scales it below the normal numbers. Such a weight is at most
//! `2^(WEIGHT_FLOOR + HEADROOM)` relative to the reference, and the sum is at least `2^-1/2`. So a probability below
//! `2^(WEIGHT_FLOOR + HEADROOM + 1)` may be lost: it changes by at most itself, and `F_j` is at least one. A key whose
//! probability is zero in f64 is assumed to lie that far below the reference in the run too.
//!
//! There is no such bound relative to `‖y‖`, because values may cancel: the bound scales with `Σ p |v|`.
//!
//! # The likely case
//!
//! Errors of random sign partly cancel (Higham and Mary, *A new approach to probabilistic rounding error
//! analysis*, 2019). To first order `ŷ − y` is a sum of individual roundings, each at most `u` times a known
//! largest coefficient. If they are independent with mean zero, the Azuma–Hoeffding inequality bounds the sum by
//! `λ u` times the root of the sum of squared coefficients, except in a fraction `2 exp(−λ²/2)` of cases. The
//! coefficients are `p_j (v_j − y)` times those of the score; for the additions of `W`, those of a tree of depth
//! `B`, whose squares add up to at most `B (Σ p |v|)²`; and for `S` likewise `A y²`. Systematic errors, namely the
//! approximation of exponential and tangent, lost weights, and the rounding to a 16-bit type, are added at their
//! worst. [`Bounds::likely`] is
//!
//! ```text
//! λ u √( Σ p_j² (v_j − y)² σ_j² + (B + 1)(Σ p |v|)² + (A + 2) y² ) + Σ ((η + τ min(M_j, X)) p_j + lost_j) |v_j − y| + u_out |y| + t
//! σ_j² = K M_j² + 5 b_j² + 2 (|ln p_j| + 6)²
//! ```
//!
//! with `λ` for the fraction [`super::UNLIKELY`]. The model is plausible for random data. It fails where the same
//! roundings repeat, for example if a key occurs many times. Exceeding this bound is a warning, not a proof of an
//! error.

use super::{ABOVE, ADDED, Arithmetic, LAMBDA, LOST, U, gamma};
use crate::attention::certificate::Executed;
use crate::dtype::DType;

/// The error bounds of the weight of one attended key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Key {
    /// Its probability.
    pub p: f64,
    /// Largest error of its score, `δ_j`, in natural-log units.
    pub delta: f64,
    /// Largest change of its probability before renormalization: `p_j F_j`.
    change: f64,
    /// `p_j (1 + E_j)`.
    raised: f64,
    /// `p_j² σ_j²`.
    squares: f64,
    /// Systematic part of the change of its probability.
    systematic: f64,
}

impl Arithmetic {
    /// Bounds the error of a key with probability `p`, `M_j = magnitude`, and `|bias| + |mask|`, or either with its sign
    /// where there is one, in `bias`.
    #[must_use]
    pub fn key(&self, p: f64, magnitude: f64, bias: f64) -> Key {
        let may_be_lost = if p < LOST { p } else { 0.0 };
        // A probability of zero in f64 is lost; its distance is unknown and not needed.
        let distance = if p == 0.0 { 0.0 } else { libm::fabs(libm::log(p)) } + ABOVE;
        let dot = self.score_roundings();
        let e = &self.executed;
        let tangent = self.tangent() * if self.softcap > 0.0 { magnitude.min(self.softcap) } else { 0.0 };
        let (halves, lost) = self.in_halves();
        let rounded = gamma(dot) + halves * (1.0 + gamma(dot));
        let delta = rounded * magnitude + lost + tangent + U * (ADDED * bias.abs() + 2.0 * distance);
        let excess =
            if p == 0.0 { 0.0 } else { libm::expm1(delta) * (1.0 + e.exp2_relative) + e.exp2_relative };
        let sums = gamma(e.into_s as f64);
        let steps = DType::F16.unit_roundoff() / U;
        let dots = dot + if e.fused { 0.0 } else { 1.0 } + e.half_chain as f64 * steps * steps;
        let variance = dots * magnitude * magnitude
            + ADDED * bias * bias
            + 2.0 * distance * distance
            + (lost / U) * (lost / U);
        let change = p * (excess + sums + excess * sums);
        Key {
            p,
            delta,
            change: if change < may_be_lost { may_be_lost } else { change },
            raised: p * (1.0 + excess),
            squares: p * p * variance,
            systematic: (e.exp2_relative + tangent) * p + may_be_lost,
        }
    }
}

/// The accumulated bound of a row over the keys absorbed so far.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    arithmetic: Arithmetic,
    /// `D`.
    change: f64,
}

/// The accumulated sums of one component of a row's answer.
#[derive(Clone, Copy, Debug)]
pub struct Component {
    /// The oracle's answer.
    y: f64,
    /// `Σ p_j F_j |v_j − y|`.
    change: f64,
    /// `Σ p_j (1 + E_j) |v_j|`.
    raised: f64,
    /// `Σ p_j² (v_j − y)² σ_j²`.
    squares: f64,
    /// `Σ systematic |v_j − y|`.
    systematic: f64,
    /// `Σ p_j |v_j|`.
    magnitude: f64,
}

impl Component {
    /// A component with exact value `y`, before any key is absorbed.
    #[must_use]
    pub const fn new(y: f64) -> Component {
        Component { y, change: 0.0, raised: 0.0, squares: 0.0, systematic: 0.0, magnitude: 0.0 }
    }

    /// Absorbs a key and its value in this component.
    #[inline]
    pub fn absorb(&mut self, key: &Key, v: f64) {
        let from = (v - self.y).abs();
        let v = v.abs();
        self.change += key.change * from;
        self.raised += key.raised * v;
        self.squares += key.squares * from * from;
        self.systematic += key.systematic * from;
        self.magnitude += key.p * v;
    }
}

/// How far a component may differ from the oracle's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// The worst case: no run with this arithmetic differs by more.
    pub worst: f64,
    /// With errors of random sign: exceeded by at most a fraction [`super::UNLIKELY`] of components. At most `worst`.
    pub likely: f64,
}

impl Row {
    /// A row before any key is absorbed.
    #[must_use]
    pub const fn new(arithmetic: Arithmetic) -> Row {
        Row { arithmetic, change: 0.0 }
    }

    /// Absorbs a key. Every component must absorb the same key.
    pub fn absorb(&mut self, key: &Key) {
        self.change += key.change;
    }

    /// The bounds of a component that has absorbed every key of the row. NaN if the oracle's numbers are NaN.
    #[must_use]
    pub fn bounds(&self, c: &Component) -> Bounds {
        let (last, lost) = self.arithmetic.output();
        let output = self.arithmetic.rounded();
        let tiny = f64::from(f32::MIN_POSITIVE) + lost;
        let Executed { into_s, into_w, .. } = self.arithmetic.executed;
        let (s, w, y) = (into_s as f64, into_w as f64, c.y.abs());
        let numerator = c.change + (gamma(s) + gamma(w + 1.0)) * c.raised;
        // If the weights are so far off that their sum may vanish, there is no bound.
        let kept = if self.change < 1.0 { 1.0 - self.change } else { 0.0 };
        let sums = if numerator == 0.0 { 0.0 } else { numerator / kept };
        let worst = (1.0 + last) * sums + last * y + tiny;
        let squares = c.squares + (w + 1.0) * c.magnitude * c.magnitude + (s + 2.0) * y * y;
        let likely = LAMBDA * U * libm::sqrt(squares) + c.systematic + output * y + tiny;
        Bounds { worst, likely: if likely > worst { worst } else { likely } }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{HALF_SUBNORMAL, UNLIKELY};
    use super::*;
    use crate::state::{HEADROOM, WEIGHT_FLOOR};

    /// Dots of 64 terms in one chain, with the exponential off by 2.5 u.
    const PLAIN: Arithmetic = Arithmetic {
        head_dim: 64,
        softcap: 0.0,
        scale: 0.125,
        dtype: DType::F32,
        executed: Executed {
            kernel: "some",
            block: 64,
            segment_blocks: 8,
            merge_depth: 0,
            additions: 10,
            into_s: 10,
            into_w: 10,
            chain: 64,
            chain_depth: 0,
            fused: true,
            exp2_relative: 2.5 * U,
            half_chain: 0,
        },
    };

    fn with(change: impl Fn(&mut Executed)) -> Arithmetic {
        let mut arithmetic = PLAIN;
        change(&mut arithmetic.executed);
        arithmetic
    }

    fn bounds(arithmetic: Arithmetic, keys: &[(f64, f64, f64)]) -> Bounds {
        let y = keys.iter().map(|(p, _, v)| p * v).sum();
        let (mut row, mut component) = (Row::new(arithmetic), Component::new(y));
        for &(p, magnitude, v) in keys {
            let key = arithmetic.key(p, magnitude, 0.0);
            row.absorb(&key);
            component.absorb(&key, v);
        }
        row.bounds(&component)
    }

    #[test]
    fn lambda_is_that_of_the_share() {
        let share = |lambda: f64| 2.0 * libm::exp(-0.5 * lambda * lambda);
        assert!(share(LAMBDA) <= UNLIKELY && share(LAMBDA - 0.01) > UNLIKELY);
    }

    #[test]
    fn a_score_by_hand() {
        let arithmetic = Arithmetic { softcap: 3.0, ..PLAIN };
        let delta = arithmetic.key(libm::exp(-2.0), 10.0, -7.0).delta / U;
        let by_hand = 69.0 * 10.0 + 5.0 * 7.0 + 2.0 * 8.0 + (0.7 * 2.5 + 6.0) * 3.0;
        assert!((delta / by_hand - 1.0).abs() < 1e-5, "{delta}");
        assert_eq!((gamma(1.0), gamma(1e9)), (U / (1.0 - U), f64::INFINITY));
    }

    #[test]
    fn a_single_key_is_off_by_its_sums_alone() {
        // Its weight cancels whatever the score: y = v.
        let near = bounds(PLAIN, &[(1.0, 1.0, 5.0)]);
        let far = bounds(PLAIN, &[(1.0, 1000.0, 5.0)]);
        let by_hand = 5.0 * U * (10.0 + 11.0 + 3.0);
        assert!((near.worst / by_hand - 1.0).abs() < 1e-3, "{near:?}");
        assert!((far.worst / near.worst - 1.0).abs() < 1e-2, "{far:?}");
    }

    #[test]
    fn two_keys_by_hand() {
        // y = 0, F = 1: δ = 69 · 2 + 2 (ln 2 + 6), the exponential, and the sums.
        let delta = 138.0 + 2.0 * (core::f64::consts::LN_2 + 6.0) + 2.5;
        let found = bounds(PLAIN, &[(0.5, 2.0, 1.0), (0.5, 2.0, -1.0)]);
        let by_hand = U * (delta + 10.0 + 21.0);
        assert!((found.worst / by_hand - 1.0).abs() < 1e-4, "{found:?} {by_hand:e}");
        let variance = 69.0 * 4.0 + 2.0 * (core::f64::consts::LN_2 + 6.0).powi(2);
        let likely = LAMBDA * U * libm::sqrt(0.5 * variance + 11.0) + 2.5 * U;
        assert!((found.likely.min(likely) / likely - 1.0).abs() < 1e-4, "{found:?} {likely:e}");
    }

    #[test]
    fn many_keys_cancel_in_likelihood_only() {
        let keys = |n: i32| {
            let p = 1.0 / f64::from(n);
            (0..n).map(move |j| (p, 20.0, if j % 2 == 0 { 1.0 } else { -1.0 }))
        };
        let mut found = [Bounds { worst: 0.0, likely: 0.0 }; 2];
        for (found, n) in found.iter_mut().zip([64, 4096]) {
            let mut all = [(0.0, 0.0, 0.0); 4096];
            for (at, key) in all.iter_mut().zip(keys(n)) {
                *at = key;
            }
            *found = bounds(PLAIN, &all[..n as usize]);
        }
        assert!((found[1].worst / found[0].worst - 1.0).abs() < 0.05, "{found:?}");
        assert!(found[1].likely < found[0].likely / 3.0, "{found:?}");
        assert!(found[1].likely < found[1].worst / 20.0, "{found:?}");
    }

    #[test]
    fn a_lost_weight_is_off_by_itself() {
        assert_eq!(LOST, libm::exp2(f64::from(WEIGHT_FLOOR + HEADROOM) + 1.0));
        // Beside a value of zero, so that only the change of the small probability counts.
        for (p, lost) in [(2.0 * LOST, false), (0.99 * LOST, true), (1e-87, true), (0.0, true)] {
            let v = 1e33;
            let found = bounds(PLAIN, &[(1.0, 0.0, 0.0), (p, 1.0, v)]);
            let tiny = f64::from(f32::MIN_POSITIVE);
            assert!(
                if lost { found.worst >= p * v } else { found.worst < p * v / 1000.0 + tiny },
                "{p}: {found:?}"
            );
            assert!(found.worst <= 1.001 * p * v + tiny, "{p}: {found:?}");
            assert!(!lost || found.likely >= p * v, "{p}: {found:?}");
        }
        // A key masked by an enormous negative number.
        let masked = PLAIN.key(0.0, 1.0, f64::from(f32::MIN));
        assert_eq!((masked.change, masked.squares), (0.0, 0.0));
    }

    #[test]
    fn hopeless_scores_bound_nothing_and_nan_stays() {
        assert_eq!(bounds(PLAIN, &[(0.5, 1e6, 1.0), (0.5, 1e6, -1.0)]).worst, f64::INFINITY);
        assert!(bounds(PLAIN, &[(f64::NAN, 1.0, 1.0)]).worst.is_nan());
        // An empty row is exact except for underflow.
        assert_eq!(bounds(PLAIN, &[]).worst, f64::from(f32::MIN_POSITIVE));
    }

    #[test]
    fn sums_in_halves_widen_the_bound_by_their_chain() {
        let halves = |half_chain| with(|e| e.half_chain = half_chain).key(0.5, 3.0, 0.0);
        let (none, short, long) = (halves(0), halves(8), halves(16));
        // 16 roundings of 2^-11 each of a magnitude of 3, and a little more.
        let more = (long.delta - none.delta) / (3.0 * 16.0 / 2048.0);
        assert!((1.0..1.02).contains(&more), "{more}");
        assert!(none.delta < short.delta && short.delta < long.delta && none.squares < short.squares);
        assert_eq!(halves(2048).delta, f64::INFINITY);
        // The loss to subnormal f16 values does not depend on the magnitude.
        let lost = with(|e| e.half_chain = 16).key(0.5, 0.0, 0.0).delta - PLAIN.key(0.5, 0.0, 0.0).delta;
        assert!((lost / (0.125 * 64.0 * HALF_SUBNORMAL) - 1.0).abs() < 1e-6, "{lost}");
    }

    #[test]
    fn subnormal_outputs_lose_half_of_their_least_number() {
        let tiny = |dtype| bounds(Arithmetic { dtype, ..PLAIN }, &[]).worst;
        let normal = f64::from(f32::MIN_POSITIVE);
        assert_eq!(tiny(DType::F16), normal + libm::exp2(-25.0));
        assert_eq!(tiny(DType::Bf16), normal + libm::exp2(-134.0));
        for (dtype, smallest) in [
            (DType::F32, f64::from(f32::from_bits(1))),
            (DType::F16, half::f16::from_bits(1).to_f64()),
            (DType::Bf16, half::bf16::from_bits(1).to_f64()),
        ] {
            assert_eq!(dtype.subnormal_roundoff(), smallest / 2.0, "{dtype}");
        }
    }

    #[test]
    fn half_outputs_round_once_more() {
        let half = Arithmetic { dtype: DType::F16, ..PLAIN };
        let [single, half] = [PLAIN, half].map(|a| bounds(a, &[(1.0, 1.0, 3.0)]));
        let more = 3.0 / 2048.0;
        assert!(((half.worst - single.worst) / more - 1.0).abs() < 0.1, "{half:?}");
        assert!(((half.likely - single.likely) / more - 1.0).abs() < 0.1, "{half:?}");
    }
}
