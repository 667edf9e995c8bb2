//! The softmax state of a run that skips keys, and the budget of skipped weights.
//!
//! In addition to `m`, `S` and `W` of the kept keys, the state has the sum `D = Σ 2^(s_j − m)` over the skipped keys. `D`
//! rescales and merges like `S`.
//!
//! **A merge preserves the budget.** Let `D_a ≤ E (S_a + D_a)` and `D_b ≤ E (S_b + D_b)`. The merge multiplies both
//! sums of each state by a power of two, `f_a ≥ 0` or `f_b ≥ 0`, and adds:
//!
//! ```text
//! D = f_a D_a + f_b D_b ≤ f_a E (S_a + D_a) + f_b E (S_b + D_b) = E (S + D)
//! ```
//!
//! A factor of zero drops both sums of its state. Moving a reference is a merge with the empty state, for which the
//! condition holds as `0 ≤ 0`. So each tile, segment, split and board may decide separately, from its sums alone, and
//! the merged result keeps the budget.
//!
//! **The bound.** Let `σ = D / (S + D)`, and let `y_K` and `y_D` be the averages of the kept and of the skipped values. The
//! output over all keys is `y = (1 − σ) y_K + σ y_D`, so
//!
//! ```text
//! |y_K − y| = σ |y_K − y_D| ≤ σ (max v − min v)
//! ```
//!
//! component by component. Log-sum-exp over all keys is the logarithm of `S + D`.
//!
//! **Roundings.** For `E < 1` the condition `D ≤ E (S + D)` is equivalent to `D ≤ E/(1 − E) · S`, which takes one
//! product and one comparison. After `k` additions of nonnegative numbers a sum is off by a factor within `1 ± γ_k`.
//! The factor [`odds`] is reduced so that the exact sums obey `E`, and [`share`] is increased so that it bounds the
//! share of the exact sums. Rescaling is exact unless the result is below the normal numbers. In that case `D` loses at
//! most `2^-149`, while `S` is at least `2^-24`. This loss is far below the error that
//! [`bound`](crate::attention::bound) includes for weights that vanish.

use crate::attention::bound::gamma;
use crate::monoid::Monoid;
use crate::state::{Merge, State, is_empty, log_sum_exp};

/// The state `(m, S, W)` of the kept keys, and the sum `D` of the weights of the skipped keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thinned<W> {
    /// The state of the kept keys.
    pub state: State<W>,
    /// `D = Σ 2^(s_j − m)` over the skipped keys, or an upper bound of it.
    pub d: f32,
}

impl<const N: usize> Monoid for Thinned<[f32; N]> {
    fn identity() -> Self {
        Thinned { state: State::identity(), d: 0.0 }
    }

    fn combine(&self, later: &Self) -> Self {
        let mut out = *self;
        out.merge(later);
        out
    }
}

impl<W: AsRef<[f32]> + AsMut<[f32]>> Thinned<W> {
    /// Merges the state `later` into this state: `self ⊕ later`.
    pub fn merge<V: AsRef<[f32]>>(&mut self, later: &Thinned<V>) {
        self.d = Merge::of(self.state.m, later.state.m).apply(self.d, later.d);
        self.state.merge(&later.state);
    }

    /// Rescales the state to the reference `m`, which must be at least the current reference.
    pub fn raise(&mut self, m: f32) {
        let merge = Merge::of(self.state.m, m);
        self.state.m = merge.m;
        self.state.s *= merge.earlier;
        self.d *= merge.earlier;
        for w in self.state.w.as_mut() {
            *w *= merge.earlier;
        }
    }

    /// Returns `true` if the state has neither kept nor skipped keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        is_empty(self.state.m, self.state.s + self.d)
    }

    /// Returns log-sum-exp of all keys, in natural-log units; `−∞` for the empty state.
    #[must_use]
    pub fn log_sum_exp(&self) -> f32 {
        log_sum_exp(self.state.m, f64::from(self.state.s) + f64::from(self.d))
    }
}

/// Returns a limit slightly below `budget / (1 − budget)`: if the computed `D / S` is at most this limit, the exact
/// sums obey `D ≤ budget (S + D)`. A weight passes through at most `additions` roundings on its way into either sum.
/// The limit is zero if the roundings leave no budget.
#[must_use]
pub fn odds(budget: f32, additions: usize) -> f32 {
    let budget = f64::from(budget);
    // The factors cover both sums and the product in the comparison:
    // 1/((1 + γ_k)² (1 + u)) ≥ (1 − k u)² (1 − u) ≥ 1 − γ_{2k+2}.
    let inwards = 1.0 - gamma(2.0 * additions as f64 + 2.0);
    let most = budget / (1.0 - budget) * inwards;
    if most > 0.0 { ((most as f32).next_down()).max(0.0) } else { 0.0 }
}

/// Returns `true` if a row with sums `s` and `d` may skip weights whose sum is `b`. `odds` is the result of [`odds`] for
/// the budget. Returns `false` if an argument is NaN.
#[inline]
#[must_use]
pub fn fits(s: f32, d: f32, b: f32, odds: f32) -> bool {
    // Below the normal numbers, the rounding of a product is not relative.
    let room = odds * s;
    b == 0.0 || (room >= f32::MIN_POSITIVE && d + b <= room)
}

/// Returns an upper bound of `D / (S + D)` of the exact sums, from the computed sums `s` and `d`. A weight passes
/// through at most `additions` roundings on its way into either sum. The result is zero if nothing was skipped, one if
/// nothing was kept, and NaN if a sum is NaN.
#[must_use]
pub fn share(s: f32, d: f32, additions: usize) -> f64 {
    if d == 0.0 {
        return 0.0;
    }
    // (1 − k u)(1 + γ_k) = 1.
    let off = gamma(additions as f64);
    let (s, d) = (f64::from(s) * (1.0 - off), f64::from(d) * (1.0 + off));
    let found = d / (s + d) * (1.0 + 1e-12);
    if found > 1.0 { 1.0 } else { found }
}

#[cfg(test)]
mod tests {
    use super::*;

    type T = Thinned<[f32; 2]>;

    #[test]
    fn d_goes_the_way_of_s() {
        let a = T { state: State { m: 3.0, s: 1.5, w: [1.0, -2.0] }, d: 0.25 };
        let b = T { state: State { m: 5.0, s: 1.0, w: [4.0, 0.5] }, d: 0.125 };
        let both = a.combine(&b);
        assert_eq!((both.state.m, both.state.s, both.d), (5.0, 1.375, 0.1875));
        assert_eq!(both.state.w, [4.25, 0.0]);
        let swapped = b.combine(&a);
        assert_eq!((swapped.state.m, swapped.state.s, swapped.d), (5.0, 1.375, 0.1875));
        let mut raised = a;
        raised.raise(5.0);
        assert_eq!((raised.state.m, raised.state.s, raised.d), (5.0, 0.375, 0.0625));
        assert_eq!(raised.state.w, [0.25, -0.5]);
        // Sums that are too small relative to the new reference become zero.
        raised.raise(200.0);
        assert_eq!((raised.state.s, raised.d), (0.0, 0.0));
        let e = T::identity();
        assert!(e.is_empty() && e.combine(&e) == e && e.combine(&a) == a && a.combine(&e) == a);
        assert!(!a.is_empty());
        // Log-sum-exp is known even if everything was skipped.
        let left_out = T { state: State { m: 0.0, s: 0.0, w: [0.0; 2] }, d: 1.0 };
        assert!(!left_out.is_empty() && left_out.log_sum_exp() == 0.0);
        assert!((a.log_sum_exp() - (8.0f32 * 1.75).ln()).abs() < 1e-6);
    }

    #[test]
    fn odds_round_inwards_and_shares_outwards() {
        for budget in [1e-30f32, 1e-6, 1e-3, 0.01, 0.5, 0.9, 1.0f32.next_down()] {
            for additions in [0, 64, 10_000] {
                let (exact, e) = (f64::from(budget) / (1.0 - f64::from(budget)), f64::from(budget));
                let found = f64::from(odds(budget, additions));
                let slack = 3.0 * gamma(additions as f64 + 3.0);
                assert!(found < exact && found >= exact * (1.0 - slack), "{budget} {found}");
                // The final rounding to f32 does not raise the odds either.
                let inwards = 1.0 - gamma(2.0 * additions as f64 + 2.0);
                assert!(found <= exact * inwards, "{budget} {found}");
                // The exact sums obey the budget even if both computed sums have their largest errors.
                let (s, d) = (1.0 + gamma(additions as f64), (1.0 - gamma(additions as f64)).recip());
                assert!(found * s * d <= e / (1.0 - e), "{budget}");
            }
        }
        assert_eq!(odds(0.5, 1 << 24), 0.0);
        assert_eq!((share(1.0, 0.0, 5), share(0.0, 1.0, 5), share(0.0, 0.0, 5)), (0.0, 1.0, 0.0));
        assert!(share(f32::NAN, 1.0, 5).is_nan() && share(1.0, f32::NAN, 5).is_nan());
        let found = share(3.0, 1.0, 100);
        // Sums without errors: the share is at least the exact quotient, as the sign of the fused remainder shows.
        for (s, d) in (1u8..100).flat_map(|s| (1u8..20).map(move |d| (f32::from(s), f32::from(d)))) {
            let (found, whole) = (share(s, d, 0), f64::from(s + d));
            assert!(found.mul_add(whole, -f64::from(d)) >= 0.0 && found < f64::from(d) / whole * 1.000_01);
        }
        let off = gamma(100.0);
        assert!(found > 0.25 * (1.0 + 1.4 * off) && found < 0.25 * (1.0 + 1.6 * off), "{found}");
    }

    #[test]
    fn nothing_fits_that_is_not_known_to() {
        let odds = odds(0.01, 10);
        assert!(fits(1.0, 0.0, 0.01, odds) && !fits(1.0, 0.0, 0.011, odds));
        assert!(fits(1.0, 0.005, 0.005, odds) && !fits(1.0, 0.01, 0.001, odds));
        assert!(fits(0.0, 0.0, 0.0, odds) && !fits(0.0, 0.0, 1e-30, odds));
        for bad in [f32::NAN, f32::INFINITY] {
            assert!(!fits(1.0, 0.0, bad, odds));
        }
        assert!(!fits(f32::NAN, 0.0, 0.1, odds) && !fits(1.0, f32::NAN, 0.1, odds));
        // If the remaining budget is below the normal numbers, nothing may be skipped.
        assert!(!fits(f32::MIN_POSITIVE, 0.0, 1e-44, odds));
    }
}
