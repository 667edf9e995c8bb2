//! The softmax state `(m, S, W)`: its definition and its merge law.
//!
//! For a set of keys with scores `s_j` (in base-2 units) and values `v_j`, the state contains
//!
//! ```text
//! m   a reference near the largest score
//! S = Σ 2^(s_j − m)
//! W = Σ 2^(s_j − m) v_j
//! ```
//!
//! and the output is `W / S` for every reference. The states of two disjoint sets are merged by rescaling both to the
//! larger reference and adding (ELSA equations 4 and 5):
//!
//! ```text
//! m = max(m_a, m_b)    S = S_a 2^(m_a − m) + S_b 2^(m_b − m)    W likewise
//! ```
//!
//! The textbook form uses the maximum itself as `m` and natural exponentials. This implementation differs:
//!
//! 1. **References are integers.** Then `2^(m_a − m)` is a power of two, products with it are exact, and only the additions
//!    of a merge round.
//! 2. **References lag.** A score changes the reference only if it exceeds the reference by more than [`HEADROOM`], so
//!    sums are seldom rescaled ([`raised`]).
//! 3. **The empty state is canonical**: `(−∞, 0, 0)`. Merging two empty states returns exactly this state, because a
//!    factor whose reference is `−∞` is defined as zero instead of `2^(−∞ + ∞)`. [`is_empty`] is the only test for it.
//! 4. **NaN propagates.** A NaN score makes `S` and `W` NaN; no maximum can hide it.
//! 5. **A factor below `2^-126` is zero**, because it would scale sums out of the range of normal f32 values.
//! 6. **Zeros are positive.** A zero sum may be `−0`, depending on which keys of weight zero were added to it. The
//!    library always returns `+0` ([`State::finish`], [`NaturalState::w`]).
//! 7. **The definition divides, kernels multiply.** [`State::finish`] divides every element of `W` by `S` and rounds
//!    once. A CPU kernel divides once per row and multiplies by `1 / S`, because a vector division costs as much as
//!    several products and a row has as many elements as the head size of values. That rounds twice, and the error
//!    bound counts both roundings for every kernel.
//!
//! [`Number`] is the set of operations that these laws require. `f32` implements it here, and the kernels implement it for
//! vectors of independent rows, so both execute this source.
//!
//! Outside the library, references are in natural-log units: [`natural_reference`] and [`NaturalState`] convert to
//! these units. [`NaturalMerge`] merges states in natural-log units directly, because such a reference is not an
//! integer in base-2 units and converting it back would round it.

use crate::monoid::Monoid;
use core::f64::consts::LN_2;

/// Headroom in base-2 units: a score changes the reference only if it exceeds the reference by more than this number.
/// Weights are then at most `2^HEADROOM`, which leaves most of the exponent range to the values.
pub const HEADROOM: f32 = 8.0;

/// Smallest exponent of a weight relative to the reference: the end of the normal f32 range. An attended key with a
/// lower score has weight zero; if the exponential of a kernel has a larger range, the weight may be positive, up to
/// its exact value. A NaN or infinity in the value of such a key still poisons the row.
pub const WEIGHT_FLOOR: f32 = -126.0;

/// Largest `|log2 S|` for which a row with a frozen reference is accepted ([`crate::attention::traversal::guard`]).
pub(crate) const FROZEN_RANGE: f32 = 24.0;

/// The operations that the laws of the state require, on an `f32` or on a vector whose lanes are independent rows.
pub trait Number: Copy {
    /// Returns the larger of two references.
    #[must_use]
    fn larger(self, other: Self) -> Self;
    /// Returns `2^(self − to)` for integers `self ≤ to`; zero if `self` is `−∞` or if the result is below `2^-126`.
    #[must_use]
    fn factor(self, to: Self) -> Self;
    /// Returns `self · other`.
    #[must_use]
    fn times(self, other: Self) -> Self;
    /// Returns `self + other`.
    #[must_use]
    fn plus(self, other: Self) -> Self;
    /// Returns `self` rounded to the nearest integer, ties to even.
    #[must_use]
    fn nearest(self) -> Self;
    /// Returns `yes` if `self > than`, else `no`. If either is NaN, returns `no`.
    #[must_use]
    fn if_greater(self, than: Self, yes: Self, no: Self) -> Self;
}

impl Number for f32 {
    #[inline(always)]
    fn larger(self, other: f32) -> f32 {
        if self > other { self } else { other }
    }
    #[inline(always)]
    fn factor(self, to: f32) -> f32 {
        let shift = self - to;
        if shift >= -126.0 { power_of_two(shift) } else { 0.0 }
    }
    #[inline(always)]
    fn times(self, other: f32) -> f32 {
        self * other
    }
    #[inline(always)]
    fn plus(self, other: f32) -> f32 {
        self + other
    }
    #[inline(always)]
    fn nearest(self) -> f32 {
        libm::rintf(self)
    }
    #[inline(always)]
    fn if_greater(self, than: f32, yes: f32, no: f32) -> f32 {
        if self > than { yes } else { no }
    }
}

/// Returns the largest score that leaves a reference `m` unchanged. `headroom` must be [`HEADROOM`], converted to `N`.
#[inline(always)]
#[must_use]
pub fn limit<N: Number>(m: N, headroom: N) -> N {
    m.plus(headroom)
}

/// Returns the new reference of a row with reference `m` when scores with maximum `top` are added to it:
///
/// ```text
/// m' = rint(top)   where top > limit(m) = m + HEADROOM
/// m' = m           elsewhere
/// ```
///
/// In an empty row `m` is `−∞`, and every score except `−∞` and NaN changes it.
#[inline(always)]
#[must_use]
pub fn raised<N: Number>(m: N, top: N, headroom: N) -> N {
    top.if_greater(limit(m, headroom), top.nearest(), m)
}

/// Returns `2^n` for an integer `n` in −126 ..= 127.
#[inline(always)]
fn power_of_two(n: f32) -> f32 {
    f32::from_bits(((n as i32 + 127) as u32) << 23)
}

/// The merge of two references: the new reference, and the factors by which the sums of both states are multiplied.
#[derive(Clone, Copy, Debug)]
pub struct Merge<N> {
    /// The reference of the merged state.
    pub m: N,
    /// Factor by which the earlier state's sums are multiplied.
    pub earlier: N,
    /// Factor by which the later state's sums are multiplied.
    pub later: N,
}

impl<N: Number> Merge<N> {
    /// Merges the references `a` of the earlier state and `b` of the later state.
    #[inline(always)]
    pub fn of(a: N, b: N) -> Merge<N> {
        let m = a.larger(b);
        Merge { m, earlier: a.factor(m), later: b.factor(m) }
    }

    /// Merges the sums `a` and `b`: returns `a 2^(m_a − m) + b 2^(m_b − m)`. Only the addition rounds.
    #[inline(always)]
    #[must_use]
    pub fn apply(&self, a: N, b: N) -> N {
        a.times(self.earlier).plus(b.times(self.later))
    }
}

/// The state of one query row over a set of keys. `W` is the type of the weighted sums: an array, or a slice of the
/// caller's memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct State<W> {
    /// Reference in base-2 units: an integer, or `−∞` for the empty state.
    pub m: f32,
    /// Sum of the weights, `Σ 2^(s_j − m)`.
    pub s: f32,
    /// Weighted sum of the values, `Σ 2^(s_j − m) v_j`.
    pub w: W,
}

impl<const D: usize> Monoid for State<[f32; D]> {
    fn identity() -> Self {
        State { m: f32::NEG_INFINITY, s: 0.0, w: [0.0; D] }
    }

    fn combine(&self, later: &Self) -> Self {
        let mut out = *self;
        out.merge(later);
        out
    }
}

impl<const D: usize> State<[f32; D]> {
    /// Returns the state of a single key with the given score (in base-2 units) and value.
    #[must_use]
    pub fn of(score: f32, value: &[f32; D]) -> Self {
        let mut x = Self::identity();
        x.absorb(score, |i| value[i]);
        x
    }
}

impl<W: AsRef<[f32]>> State<W> {
    /// Returns `true` if the state contains no key, as [`is_empty`] defines it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        is_empty(self.m, self.s)
    }

    /// Returns log-sum-exp in natural-log units: `(m + log2 S) · log 2`; `−∞` for the empty state.
    #[must_use]
    pub fn log_sum_exp(&self) -> f32 {
        log_sum_exp(self.m, f64::from(self.s))
    }
}

/// Returns `true` if a state with reference `m` and sum `s` is empty: its reference is `−∞` and its sum is not NaN.
///
/// A row whose attended scores are all `−∞` counts as empty. A state whose sum is NaN does not: it is poisoned.
#[must_use]
pub fn is_empty(m: f32, s: f32) -> bool {
    m == f32::NEG_INFINITY && !s.is_nan()
}

/// Returns log-sum-exp, in natural-log units, of a state with reference `m` (in base-2 units) and sum `s`: `−∞` for the
/// empty state, NaN if `s` is NaN. It is computed in f64 and rounded once.
#[must_use]
pub fn log_sum_exp(m: f32, s: f64) -> f32 {
    if is_empty(m, s as f32) {
        return f32::NEG_INFINITY;
    }
    (f64::from(m) * LN_2 + libm::log(s)) as f32
}

/// The factor that [`natural_reference`] returns is a power of `e` that compensates for the rounding of the reference. This
/// constant is the largest magnitude of the exponent of that power. References below `2^30` in natural-log units never need
/// a larger exponent, because neighbouring f32 values there are at most 64 apart.
pub(crate) const MOST_ROUNDING: f64 = 32.0;

/// Converts the reference `m` of a state (in base-2 units) to natural-log units. Returns the new reference and the
/// factor by which `S` and `W` must be multiplied. A reference that is not finite is returned unchanged, with factor
/// one.
///
/// The reference is rounded to f32, and the factor `exp(exact − rounded)` compensates for the rounding. It is nearly
/// one for ordinary references and up to `e^0.5` at 10^7; `MOST_ROUNDING` limits its exponent.
///
/// If `m < 2^30` in natural-log units, `S exp(m)` is preserved. From `2^30` on, neighbouring f32 references are at least
/// 128 apart, and no f32 sum could compensate for every rounding. There `m + log S` is preserved within the spacing of
/// f32 at `m`; `W / S` is always preserved. Merges stay correct: equal references have equal factors. Different references
/// remain at least 128 apart, so the sums of the state with the smaller reference are multiplied by at most `e^-56`.
#[must_use]
pub fn natural_reference(m: f32) -> (f32, f64) {
    if !m.is_finite() {
        return (m, 1.0);
    }
    let rounded = (f64::from(m) * LN_2) as f32;
    let rest = libm::fma(f64::from(m), LN_2, -f64::from(rounded));
    (rounded, libm::exp(rest.clamp(-MOST_ROUNDING, MOST_ROUNDING)))
}

/// A state in natural-log units, as the library returns it. [`NaturalState::w`] converts its weighted sums one at a
/// time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NaturalState {
    /// Reference in natural-log units; `−∞` for the empty state.
    pub m: f32,
    /// Sum of the weights; zero for the empty state.
    pub s: f32,
    /// Factor that converts the weighted sums; `None` for the empty state.
    factor: Option<f64>,
}

impl NaturalState {
    /// Converts a state with reference `m` (in base-2 units) and sum `s`. The state's weighted sums contain the factor
    /// `weight_scale`. `divided` is `true` if the weighted sums have already been divided by `s`.
    #[must_use]
    pub fn of(m: f32, s: f32, weight_scale: f64, divided: bool) -> NaturalState {
        let (natural, factor) = natural_reference(m);
        if is_empty(m, s) {
            return NaturalState { m: natural, s: 0.0, factor: None };
        }
        let (factor, s) = (factor / weight_scale, f64::from(s));
        let factor_of_w = if divided { factor * s } else { factor };
        NaturalState { m: natural, s: (s * factor) as f32, factor: Some(factor_of_w) }
    }

    /// Converts the element `w` of the weighted sums to natural-log units. Returns zero for the empty state,
    /// independently of `w`.
    #[must_use]
    pub fn w(&self, w: f32) -> f32 {
        self.factor.map_or(0.0, |factor| (f64::from(w) * factor) as f32 + 0.0)
    }
}

/// Checks a state in natural-log units. If neither a run nor a merge can produce the state, returns the name of the
/// invalid array, the number found in the array, and the allowed values. Returns `None` for valid states, which are:
///
/// - the empty state, `m = −∞` with `S = 0`;
/// - a finite `m` with `S > 0` and any `W`, including NaN and infinities;
/// - a poisoned state, in which `S` and all of `W` are NaN and `m` is not.
#[must_use]
pub fn misfit(m: f32, s: f32, w: &[f32]) -> Option<(&'static str, f32, &'static str)> {
    if m.is_nan() {
        return Some(("m", m, "a reference, which is no NaN"));
    }
    if s.is_nan() {
        return w.iter().find(|w| !w.is_nan()).map(|w| ("W", *w, "NaN, as S is"));
    }
    let (fits, allowed) = match m {
        f32::NEG_INFINITY => (s == 0.0, "0 or NaN, as m is minus infinity"),
        f32::INFINITY => (false, "NaN, as m is infinity"),
        _ => (s > 0.0 && s < f32::INFINITY, "a positive number or NaN"),
    };
    if fits { None } else { Some(("S", s, allowed)) }
}

/// The merge of two states in natural-log units. The library returned both states to the caller, who now merges them.
/// The merged state is
///
/// ```text
/// m = max(m_a, m_b)    S = S_a exp(m_a − m) + S_b exp(m_b − m)    W likewise
/// ```
///
/// The differences of the references are exact, everything else is computed in f64, and `S` and each element of `W` are
/// rounded once, to f32. If one state is empty, the other is returned with the same bits; two empty states merge to
/// `(−∞, 0, 0)`. The `W` of an empty state is ignored. A NaN in either `S` makes the merged `S` and `W` NaN. Callers
/// reject states that [`misfit`] reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NaturalMerge {
    /// Reference of the merged state in natural-log units; `−∞` for the empty state.
    pub m: f32,
    /// Sum of the weights; zero for the empty state.
    pub s: f32,
    sides: Sides,
}

/// The merged states that are not empty. `Both` contains the factors that multiply the weighted sums of the two states.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Sides {
    Neither,
    Earlier,
    Later,
    Both { earlier: f64, later: f64 },
}

impl NaturalMerge {
    /// Merges the reference and sum `(m, S)` of the earlier state with those of the later state.
    #[must_use]
    pub fn of((ma, sa): (f32, f32), (mb, sb): (f32, f32)) -> NaturalMerge {
        match (is_empty(ma, sa), is_empty(mb, sb)) {
            (true, true) => NaturalMerge { m: f32::NEG_INFINITY, s: 0.0, sides: Sides::Neither },
            (false, true) => NaturalMerge { m: ma, s: sa, sides: Sides::Earlier },
            (true, false) => NaturalMerge { m: mb, s: sb, sides: Sides::Later },
            (false, false) => {
                let m = ma.larger(mb);
                let factor = |from: f32| libm::exp(f64::from(from) - f64::from(m));
                let sides = Sides::Both { earlier: factor(ma), later: factor(mb) };
                let merge = NaturalMerge { m, s: 0.0, sides };
                NaturalMerge { s: merge.w(sa, sb), ..merge }
            }
        }
    }

    /// Merges one element of the weighted sums: `a` of the earlier state with `b` of the later state.
    #[must_use]
    pub fn w(&self, a: f32, b: f32) -> f32 {
        match self.sides {
            Sides::Neither => 0.0,
            Sides::Earlier => a,
            Sides::Later => b,
            Sides::Both { earlier, later } => (f64::from(a) * earlier + f64::from(b) * later) as f32,
        }
    }
}

impl<W: AsRef<[f32]> + AsMut<[f32]>> State<W> {
    /// Resets the state to the empty state.
    pub fn clear(&mut self) {
        self.m = f32::NEG_INFINITY;
        self.s = 0.0;
        self.w.as_mut().fill(0.0);
    }

    /// Adds one key, given its score in base-2 units and a function that returns the elements of its value. A score of
    /// `−∞` changes nothing, and the value is not read.
    pub fn absorb(&mut self, score: f32, value: impl Fn(usize) -> f32) {
        if score == f32::NEG_INFINITY {
            return;
        }
        // A NaN does not move a reference. But a state with a key needs a finite reference, so a first NaN sets it to
        // zero.
        let first_is_nan = self.m == f32::NEG_INFINITY && score.is_nan();
        let m = if first_is_nan { 0.0 } else { raised(self.m, score, HEADROOM) };
        if m > self.m {
            let merge = Merge::of(self.m, m);
            self.m = merge.m;
            self.s *= merge.earlier;
            for w in self.w.as_mut() {
                *w *= merge.earlier;
            }
        }
        let weight = weight(score, self.m);
        self.s += weight;
        for (i, w) in self.w.as_mut().iter_mut().enumerate() {
            *w += weight * value(i);
        }
    }

    /// Replaces this state by `self ⊕ later`.
    pub fn merge<V: AsRef<[f32]>>(&mut self, later: &State<V>) {
        let merge = Merge::of(self.m, later.m);
        self.m = merge.m;
        self.s = merge.apply(self.s, later.s);
        for (a, b) in self.w.as_mut().iter_mut().zip(later.w.as_ref()) {
            *a = merge.apply(*a, *b);
        }
    }

    /// Divides `W` by `S`, which yields the output row: zeros for the empty state, NaN if `S` is NaN. Each element
    /// is rounded once; kernels multiply by `1 / S` instead (item 7 of the module's list).
    pub fn finish(&mut self) {
        if self.is_empty() {
            self.w.as_mut().fill(0.0);
        } else {
            for w in self.w.as_mut() {
                *w = *w / self.s + 0.0;
            }
        }
    }
}

/// Returns the weight `2^(score − m)` of an attended key: zero below `2^WEIGHT_FLOOR`, NaN if the score is NaN.
#[inline]
#[must_use]
pub fn weight(score: f32, m: f32) -> f32 {
    let x = score - m;
    if x < WEIGHT_FLOOR { 0.0 } else { libm::exp2f(x) }
}

#[cfg(test)]
mod tests {
    use super::*;
    type S = State<[f32; 2]>;

    fn bits(x: &S) -> [u32; 4] {
        [x.m.to_bits(), x.s.to_bits(), x.w[0].to_bits(), x.w[1].to_bits()]
    }

    #[test]
    fn empty_state_is_canonical() {
        let e = S::identity();
        assert_eq!(bits(&e.combine(&e)), bits(&e));
        let x = S::of(3.7, &[1.5, -2.0]);
        assert_eq!(bits(&e.combine(&x)), bits(&x));
        assert_eq!(bits(&x.combine(&e)), bits(&x));
        assert_eq!(e.log_sum_exp(), f32::NEG_INFINITY);
        let mut y = e;
        y.finish();
        assert_eq!(y.w, [0.0, 0.0]);
    }

    #[test]
    fn a_cleared_state_is_the_empty_one() {
        let mut x = S::of(3.7, &[f32::NAN, -2.0]);
        x.clear();
        assert_eq!(bits(&x), bits(&S::identity()));
    }

    /// Checks that only a score beyond the headroom changes the reference, and that NaN never changes it.
    #[test]
    fn references_lag() {
        assert_eq!([7.9, 8.0, 8.3].map(|top| raised(0.0, top, HEADROOM)), [0.0, 0.0, 8.0]);
        assert_eq!(S::of(f32::NAN, &[1.0, 1.0]).m, 0.0);
        let mut x = S::of(-5.0, &[1.0, 1.0]);
        x.absorb(f32::NAN, |_| 1.0);
        assert_eq!(x.m, -5.0);
    }

    #[test]
    fn weights_end_at_the_floor() {
        assert_eq!([-126.0, -126.5, -200.0].map(|x| weight(3.0 + x, 3.0)), [f32::MIN_POSITIVE, 0.0, 0.0]);
        assert!(weight(f32::NAN, 3.0).is_nan());
    }

    #[test]
    fn zeros_that_leave_are_positive() {
        let mut x = S { m: 0.0, s: 2.0, w: [-0.0, -1e-45] };
        let natural = NaturalState::of(x.m, x.s, 1.0, false);
        x.finish();
        assert_eq!(x.w.map(f32::to_bits), [0, 0]);
        assert_eq!(natural.w(-0.0).to_bits(), 0);
    }

    #[test]
    fn far_apart_references_do_not_overflow() {
        let a = S::of(-30000.25, &[1.0, 2.0]);
        let b = S::of(40000.5, &[3.0, 4.0]);
        for mut x in [a.combine(&b), b.combine(&a)] {
            assert!(!x.s.is_nan());
            x.finish();
            assert_eq!(x.w, [3.0, 4.0]);
        }
    }

    #[test]
    fn nan_poisons_and_absent_keys_do_not() {
        let mut x = S::of(1.0, &[1.0, 1.0]);
        x.absorb(f32::NEG_INFINITY, |_| f32::NAN);
        assert_eq!(bits(&x), bits(&S::of(1.0, &[1.0, 1.0])));
        x.absorb(f32::NAN, |_| 0.0);
        x.absorb(5.0, |_| 0.0);
        x = x.combine(&S::of(90.0, &[1.0, 1.0]));
        x.finish();
        assert!(x.w[0].is_nan() && x.w[1].is_nan() && !x.is_empty());
        let mut y = S::of(f32::NAN, &[1.0, 1.0]);
        y.finish();
        assert!(y.w[0].is_nan());
    }

    /// Returns the rounding error of the reference `m` in natural-log units, computed with an ln 2 of extended
    /// precision.
    fn left(m: f32) -> f64 {
        let rounded = (f64::from(m) * LN_2) as f32;
        libm::fma(f64::from(m), LN_2, -f64::from(rounded)) + f64::from(m) * 2.319_046_813_846_3e-17
    }

    #[test]
    fn natural_reference_keeps_the_sum() {
        let ordinary = [0.0f32, 1.0, -7.0, 513.0, 123_456.0];
        let large = [16_777_218.0f32, -28_853_902.0, 1.0e8, -987_654_272.0, 1.549e9];
        for m in ordinary.into_iter().chain(large) {
            let (n, f) = natural_reference(m);
            assert_eq!(n, (f64::from(m) * LN_2) as f32);
            let off = (libm::log(f) - left(m)).abs();
            assert!(off <= 1e-16 + 2.5e-17 * f64::from(m.abs()), "{m}: {off:e}");
        }
        assert_eq!(natural_reference(f32::NEG_INFINITY), (f32::NEG_INFINITY, 1.0));
    }

    #[test]
    fn natural_references_beyond_f32_sums_stay_apart() {
        // Miri interprets the code and is slow, so it runs fewer steps.
        let (step, least) = if cfg!(miri) { (1.7, 50) } else { (1.001, 1000) };
        let mut m = 1.5e9f32;
        let mut clamped = 0;
        while m < 3e38 {
            for sign in [-1.0, 1.0] {
                let ((a, f), (b, g)) = (natural_reference(sign * m), natural_reference(sign * m.next_up()));
                let e = f64::exp(MOST_ROUNDING) * 1.000_001;
                assert!(f <= e && g <= e && f >= 1.0 / e && g >= 1.0 / e, "{m}: {f} {g}");
                let gap = f64::from(b) - f64::from(a) + libm::log(g / f);
                assert!(gap.abs() > 56.0 && (gap > 0.0) == (sign > 0.0), "{m}: {gap}");
                clamped += usize::from(f.max(1.0 / f) > 7.8e13);
            }
            m *= step;
        }
        assert!(clamped > least, "{clamped}");
    }

    #[test]
    fn natural_states_merge_in_their_own_units() {
        // Beyond 2^24 ln 2, neighbouring f32 references are two apart in base-2 units and one apart in natural-log units.
        let merge = NaturalMerge::of((2.0e7, 1.5), (2.0e7 + 2.0, 0.25));
        let (weaker, all) = (1.5 * libm::exp(-2.0), 0.25 + 1.5 * libm::exp(-2.0));
        assert_eq!((merge.m, merge.s), (2.0e7 + 2.0, all as f32));
        assert_eq!(merge.w(3.0, 0.0), (3.0 * weaker / 1.5) as f32);
        let swapped = NaturalMerge::of((2.0e7 + 2.0, 0.25), (2.0e7, 1.5));
        assert_eq!((swapped.m, swapped.s, swapped.w(0.0, 3.0)), (merge.m, merge.s, merge.w(3.0, 0.0)));
        // If two references are equal, the sums are added, however large the references are.
        for m in [0.0, -5.0e8, 1.0e9, 3.0e38] {
            let merge = NaturalMerge::of((m, 0.5), (m, 0.75));
            assert_eq!((merge.m, merge.s, merge.w(1.0, -4.0)), (m, 1.25, -3.0));
        }
        // A state without keys is ignored, and a poisoned state poisons the result.
        let (none, nan) = ((f32::NEG_INFINITY, 4.0), (f32::NEG_INFINITY, f32::NAN));
        let empty = NaturalMerge::of(none, none);
        assert_eq!((empty.m, empty.s, empty.w(f32::NAN, 7.0)), (f32::NEG_INFINITY, 0.0, 0.0));
        let (left, right) = (NaturalMerge::of((0.1, 0.3), none), NaturalMerge::of(none, (0.1, 0.3)));
        assert_eq!((left.m, left.s, left.w(0.7, f32::NAN)), (0.1, 0.3, 0.7));
        assert_eq!((right.m, right.s, right.w(f32::NAN, 0.7)), (0.1, 0.3, 0.7));
        for poison in [nan, (f32::NAN, 1.0), (f32::INFINITY, 1.0), (3.0, f32::NAN)] {
            for other in [(0.1, 0.3), poison] {
                assert!(
                    NaturalMerge::of(poison, other).s.is_nan() && NaturalMerge::of(other, poison).s.is_nan()
                );
            }
            assert!(NaturalMerge::of(poison, none).s.is_nan() || poison.1 == 1.0);
        }
    }

    #[test]
    fn natural_states_undo_scale_and_division() {
        let (m, s, w, scale) = (5.0f32, 3.0f32, 6.0f32, 1.5);
        let whole = NaturalState::of(m, s, scale, false);
        let divided = NaturalState::of(m, s, scale, true);
        assert_eq!((whole.m, whole.s), (divided.m, divided.s));
        assert_eq!(whole.w(w), divided.w(w / s));
        let lse = f64::from(whole.m) + libm::log(f64::from(whole.s));
        assert!((lse - f64::from(log_sum_exp(m, f64::from(s) / scale))).abs() < 1e-6);
        // With reference −∞, a state is empty even if its sum is not zero, but poisoned if its sum is NaN.
        for s in [0.0, 4.0] {
            let empty = NaturalState::of(f32::NEG_INFINITY, s, scale, false);
            assert_eq!((empty.m, empty.s, empty.w(f32::NAN)), (f32::NEG_INFINITY, 0.0, 0.0));
        }
        let poisoned = NaturalState::of(f32::NEG_INFINITY, f32::NAN, scale, false);
        assert!(poisoned.s.is_nan() && poisoned.w(1.0) == 1.0 / 1.5);
    }
}
