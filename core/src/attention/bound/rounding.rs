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
//! δ_j = γ_(d+6) M_j + u [ 5 |b_j| + 2 (|ln p_j| + 6) + 8 (1 + X) ]
//! ```
//!
//! The terms are, in order: a dot product of `d` terms in any order, with the factors that convert it to base 2;
//! the conversion of mask and bias, their sum and its addition; the subtraction of the reference, from which a score lies at most
//! `|ln p_j| + 8 ln 2` away ([`HEADROOM`]); and the approximations of the exponential and the hyperbolic tangent.
//! A weight is therefore off by a factor within `1 ± E_j`, with `E_j = exp(δ_j) − 1`.
//!
//! If a kernel sums chains of `c` products in f16 (`u_h = 2^-11`, `η = c u_h / (1 − c u_h)`), each step also loses
//! up to `2^-25` to subnormal f16 values: `δ_j` grows by `η (1 + γ_(d+6)) M_j + |scale| d 2^-25`, and `σ_j²` below
//! by `c (u_h / u)² M_j² + (|scale| d 2^-25 / u)²`. Sums beyond the range of f16 are not covered: the kernel
//! answers them with NaN.
//!
//! **Sums.** Let `A` be the largest number of additions on the path of a weight into either sum. They put factors
//! `1 + θ`, `|θ| ≤ γ_A`, on the terms of `S`; with the product by the value, `|θ| ≤ γ_(A+1)` on the terms of `W`.
//! So `ŷ = Σ p_j a_j v_j / Σ p_j b_j` with
//!
//! ```text
//! |b_j − 1| ≤ F_j = (1 + E_j)(1 + γ_A) − 1        |a_j − b_j| ≤ (1 + E_j)(γ_A + γ_(A+1))
//! ```
//!
//! Since `Σ p_j (v_j − y) = 0`, the numerator of `ŷ − y` is `Σ p_j (b_j − 1)(v_j − y) + Σ p_j (a_j − b_j) v_j`.
//! Let `D = Σ p_j F_j`; let `h = γ_3` for the final division and product, plus the unit roundoff of a 16-bit
//! output type; and let `t` be the smallest normal number of f32, `2^-126`, for what underflows, plus half of the
//! smallest positive number of a 16-bit output type (`2^-25` of f16, `2^-134` of bf16), for outputs that are subnormal
//! there. Then [`Bounds::worst`] is
//!
//! ```text
//! |ŷ − y| ≤ (1 + h) [ Σ p_j F_j |v_j − y| + (γ_A + γ_(A+1)) Σ p_j (1 + E_j) |v_j| ] / (1 − D) + h |y| + t
//! ```
//!
//! **Lost weights.** A weight below `2^`[`WEIGHT_FLOOR`] relative to its reference counts as zero or is rounded as a
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
//! `A`, whose squares add up to at most `A (Σ p |v|)²`; and for `S` likewise `A y²`. Systematic errors, namely the
//! approximation of exponential and tangent, lost weights, and the rounding to a 16-bit type, are added at their
//! worst. [`Bounds::likely`] is
//!
//! ```text
//! λ u √( Σ p_j² (v_j − y)² σ_j² + (A + 1)(Σ p |v|)² + (A + 2) y² ) + Σ (8 (1 + X) u p_j + lost_j) |v_j − y| + u_out |y| + t
//! σ_j² = (d + 6) M_j² + 5 b_j² + 2 (|ln p_j| + 6)²
//! ```
//!
//! with `λ` for the fraction [`UNLIKELY`]. The model is plausible for random data. It fails where the same
//! roundings repeat, for example if a key occurs many times. Exceeding this bound is a warning, not a proof of an
//! error.

use crate::dtype::DType;
use crate::state::{HEADROOM, WEIGHT_FLOOR};

/// Unit roundoff of f32, in which scores and sums are computed.
const U: f64 = DType::F32.unit_roundoff();

/// Error of the approximations of exponential and hyperbolic tangent, in unit roundoffs.
const APPROXIMATION: f64 = 8.0;

/// Whether the bound covers kernels whose weights have at most this relative error.
#[must_use]
pub const fn covers_exp2(relative: f64) -> bool {
    relative <= APPROXIMATION * U
}

/// The most that a sum of f16 values loses where it is subnormal.
const SUBNORMAL: f64 = DType::F16.subnormal_roundoff();

/// Upper bound of the distance of a score above its reference, in natural-log units.
const ABOVE: f64 = 6.0;
const _: () = assert!(HEADROOM as f64 * core::f64::consts::LN_2 < ABOVE);

/// A probability below this may be lost, `2^(WEIGHT_FLOOR + HEADROOM + 1)`.
const LOST: f64 = f64::from_bits(((1024 + WEIGHT_FLOOR as i64 + HEADROOM as i64) as u64) << 52);

/// Fraction of components that may exceed [`Bounds::likely`] if its model holds.
pub const UNLIKELY: f64 = 1e-9;

/// `2 exp(−λ²/2) ≤ UNLIKELY`.
const LAMBDA: f64 = 6.55;

/// `γ_k = k u / (1 − k u)`; infinite if `k u` is 1 or more.
#[must_use]
pub fn gamma(k: f64) -> f64 {
    let x = k * U;
    if x < 1.0 { x / (1.0 - x) } else { f64::INFINITY }
}

/// The arithmetic of a run, as far as the bound depends on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arithmetic {
    /// Head size `d`, the number of terms of a score.
    pub head_dim: usize,
    /// Soft cap of the scores; zero if absent.
    pub softcap: f64,
    /// Number of additions on the longest path of a weight into `S` or `W`, `A`.
    pub additions: usize,
    /// Element type of the output.
    pub dtype: DType,
    /// Longest chain of products that is summed in f16; zero if scores are summed in f32.
    pub half_chain: usize,
    /// `|scale|`, the factor from sums of products to scores.
    pub scale: f64,
}

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
    /// What sums in f16 add to the error of a score: relative to `M_j`, and absolute in natural-log units.
    fn in_halves(&self) -> (f64, f64) {
        if self.half_chain == 0 {
            return (0.0, 0.0);
        }
        let x = self.half_chain as f64 * DType::F16.unit_roundoff();
        let relative = if x < 1.0 { x / (1.0 - x) } else { f64::INFINITY };
        (relative, self.scale.abs() * self.head_dim as f64 * SUBNORMAL)
    }

    /// Bounds the error of a key with probability `p`, `M_j = magnitude`, and `|bias| + |mask|`, or either with its sign
    /// where there is one, in `bias`.
    #[must_use]
    pub fn key(&self, p: f64, magnitude: f64, bias: f64) -> Key {
        let may_be_lost = if p < LOST { p } else { 0.0 };
        // A probability of zero in f64 is lost; its distance is unknown and not needed.
        let distance = if p == 0.0 { 0.0 } else { libm::fabs(libm::log(p)) } + ABOVE;
        let dot = self.head_dim as f64 + 6.0;
        let approximation = APPROXIMATION * (1.0 + self.softcap);
        let (halves, lost) = self.in_halves();
        let rounded = gamma(dot) + halves * (1.0 + gamma(dot));
        let delta = rounded * magnitude + lost + U * (5.0 * bias.abs() + 2.0 * distance + approximation);
        let excess = if p == 0.0 { 0.0 } else { libm::expm1(delta) };
        let sums = gamma(self.additions as f64);
        let steps = DType::F16.unit_roundoff() / U;
        let dots = dot + self.half_chain as f64 * steps * steps;
        let variance = dots * magnitude * magnitude
            + 5.0 * bias * bias
            + 2.0 * distance * distance
            + (lost / U) * (lost / U);
        let change = p * (excess + sums + excess * sums);
        Key {
            p,
            delta,
            change: if change < may_be_lost { may_be_lost } else { change },
            raised: p * (1.0 + excess),
            squares: p * p * variance,
            systematic: U * approximation * p + may_be_lost,
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
    /// With errors of random sign: exceeded by at most a fraction [`UNLIKELY`] of components. At most `worst`.
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
        let Arithmetic { additions, dtype, .. } = self.arithmetic;
        let (output, lost) = match dtype {
            DType::F32 => (0.0, 0.0),
            DType::F16 | DType::Bf16 => (dtype.unit_roundoff(), dtype.subnormal_roundoff()),
        };
        let tiny = f64::from(f32::MIN_POSITIVE) + lost;
        let (a, y) = (additions as f64, c.y.abs());
        let last = gamma(3.0) + output * (1.0 + gamma(3.0));
        let numerator = c.change + (gamma(a) + gamma(a + 1.0)) * c.raised;
        // If the weights are so far off that their sum may vanish, there is no bound.
        let kept = if self.change < 1.0 { 1.0 - self.change } else { 0.0 };
        let sums = if numerator == 0.0 { 0.0 } else { numerator / kept };
        let worst = (1.0 + last) * sums + last * y + tiny;
        let squares = c.squares + (a + 1.0) * c.magnitude * c.magnitude + (a + 2.0) * y * y;
        let likely = LAMBDA * U * libm::sqrt(squares) + c.systematic + output * y + tiny;
        Bounds { worst, likely: if likely > worst { worst } else { likely } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Arithmetic = Arithmetic {
        head_dim: 64,
        softcap: 0.0,
        additions: 10,
        dtype: DType::F32,
        half_chain: 0,
        scale: 0.125,
    };

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
        let by_hand = 70.0 * 10.0 + 5.0 * 7.0 + 2.0 * 8.0 + 8.0 * 4.0;
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
        // y = 0, F = 1: δ = 70 · 2 + 2 (ln 2 + 6) + 8, and the sums.
        let delta = 140.0 + 2.0 * (core::f64::consts::LN_2 + 6.0) + 8.0;
        let found = bounds(PLAIN, &[(0.5, 2.0, 1.0), (0.5, 2.0, -1.0)]);
        let by_hand = U * (delta + 10.0 + 21.0);
        assert!((found.worst / by_hand - 1.0).abs() < 1e-4, "{found:?} {by_hand:e}");
        let variance = 70.0 * 4.0 + 2.0 * (core::f64::consts::LN_2 + 6.0).powi(2);
        let likely = LAMBDA * U * libm::sqrt(0.5 * variance + 11.0) + 8.0 * U;
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
        let halves = |half_chain| Arithmetic { half_chain, ..PLAIN }.key(0.5, 3.0, 0.0);
        let (none, short, long) = (halves(0), halves(8), halves(16));
        // 16 roundings of 2^-11 each of a magnitude of 3, and a little more.
        let more = (long.delta - none.delta) / (3.0 * 16.0 / 2048.0);
        assert!((1.0..1.02).contains(&more), "{more}");
        assert!(none.delta < short.delta && short.delta < long.delta && none.squares < short.squares);
        assert_eq!(halves(2048).delta, f64::INFINITY);
        // The loss to subnormal f16 values does not depend on the magnitude.
        let lost =
            Arithmetic { half_chain: 16, ..PLAIN }.key(0.5, 0.0, 0.0).delta - PLAIN.key(0.5, 0.0, 0.0).delta;
        assert!((lost / (0.125 * 64.0 * SUBNORMAL) - 1.0).abs() < 1e-6, "{lost}");
    }

    /// The bounds by the formulas of the module, term by term, for keys `(p, M, b, v)` above the floor.
    fn by_formula(a: Arithmetic, keys: &[(f64, f64, f64, f64)]) -> [f64; 2] {
        let g = |k: usize| k as f64 * U / (1.0 - k as f64 * U);
        let (d, x, s) = (a.head_dim, a.softcap, libm::fabs(a.scale));
        let step = libm::exp2(-11.0);
        let eta = a.half_chain as f64 * step / (1.0 - a.half_chain as f64 * step);
        let lost = if a.half_chain > 0 { s * d as f64 * libm::exp2(-25.0) } else { 0.0 };
        let y: f64 = keys.iter().map(|(p, _, _, v)| p * v).sum();
        let (mut first, mut second, mut change, mut likely, mut systematic, mut spread) =
            (0.0, 0.0, 0.0, 0.0, 0.0, 0.0);
        for &(p, m, b, v) in keys {
            let distance = libm::fabs(libm::log(p)) + 6.0;
            let delta = g(d + 6) * m
                + U * (5.0 * libm::fabs(b) + 2.0 * distance + 8.0 * (1.0 + x))
                + eta * (1.0 + g(d + 6)) * m
                + lost;
            let e = libm::exp(delta) - 1.0;
            let f = (1.0 + e) * (1.0 + g(a.additions)) - 1.0;
            first += p * f * libm::fabs(v - y);
            second += p * (1.0 + e) * libm::fabs(v);
            change += p * f;
            let halves = a.half_chain as f64 * (step / U) * (step / U) * m * m + (lost / U) * (lost / U);
            let variance = (d as f64 + 6.0) * m * m + 5.0 * b * b + 2.0 * distance * distance + halves;
            likely += p * p * (v - y) * (v - y) * variance;
            systematic += 8.0 * (1.0 + x) * U * p * libm::fabs(v - y);
            spread += p * libm::fabs(v);
        }
        let unit = if a.dtype == DType::F32 { 0.0 } else { a.dtype.unit_roundoff() };
        let t = libm::exp2(-126.0) + if a.dtype == DType::F32 { 0.0 } else { a.dtype.subnormal_roundoff() };
        let (h, y) = (g(3) + unit * (1.0 + g(3)), libm::fabs(y));
        let sums = (first + (g(a.additions) + g(a.additions + 1)) * second) / (1.0 - change);
        let roundings = a.additions as f64;
        let squares = likely + (roundings + 1.0) * spread * spread + (roundings + 2.0) * y * y;
        [(1.0 + h) * sums + h * y + t, LAMBDA * U * libm::sqrt(squares) + systematic + unit * y + t]
    }

    #[test]
    fn the_bounds_are_the_formulas() {
        let keys = [(0.5, 4.0, -0.75, 3.0), (0.3, 2.0, 0.5, -1.0), (0.2, 7.0, 0.0, 0.25)];
        // Scores, masks, caps, sums and outputs take turns at being the largest term.
        let large = keys.map(|(p, m, b, v)| (p, m, 1e5 * b, v));
        let small = keys.map(|(p, m, b, v)| (p, 1e-3 * m, b, v));
        let plain = Arithmetic { head_dim: 5, additions: 7, ..PLAIN };
        for arithmetic in [
            plain,
            Arithmetic { additions: 4000, ..plain },
            Arithmetic { softcap: 30.0, ..plain },
            Arithmetic { head_dim: 900, ..plain },
            Arithmetic { dtype: DType::F16, ..plain },
            Arithmetic { dtype: DType::Bf16, ..plain },
            Arithmetic { half_chain: 16, scale: -0.25, ..plain },
            Arithmetic { half_chain: 1, scale: 800.0, ..plain },
        ] {
            for keys in [keys, large, small] {
                let y = keys.iter().map(|(p, _, _, v)| p * v).sum();
                let (mut row, mut component) = (Row::new(arithmetic), Component::new(y));
                for (p, magnitude, bias, v) in keys {
                    let key = arithmetic.key(p, magnitude, bias);
                    row.absorb(&key);
                    component.absorb(&key, v);
                }
                let found = row.bounds(&component);
                let [worst, likely] = by_formula(arithmetic, &keys);
                let near = |a: f64, b: f64| libm::fabs(a / b - 1.0) < 1e-7;
                assert!(near(found.worst, worst), "{arithmetic:?}: {found:?} {worst:e}");
                assert!(near(found.likely, likely.min(worst)), "{arithmetic:?}: {found:?} {likely:e}");
            }
        }
    }

    #[test]
    fn weights_are_covered_up_to_the_error_of_the_exponential() {
        assert!(covers_exp2(0.0) && covers_exp2(8.0 * U) && !covers_exp2(8.1 * U));
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
