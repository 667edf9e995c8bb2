//! The softmax state `(m, S, W)`: the one definition of what it is and how two of them merge.
//!
//! For a set of keys with scores `s_j` (in units of `log 2`) and values `v_j` the state holds
//!
//! ```text
//! m   a reference near the largest score
//! S = Σ 2^(s_j − m)
//! W = Σ 2^(s_j − m) v_j
//! ```
//!
//! and the answer is `W / S`, whatever the reference. Two states of disjoint sets merge by bringing both to
//! the larger reference and adding (ELSA equations 4 and 5):
//!
//! ```text
//! m = max(m_a, m_b)    S = S_a 2^(m_a − m) + S_b 2^(m_b − m)    W likewise
//! ```
//!
//! The naive form takes `m` as the maximum itself and natural exponentials. Here:
//!
//! 1. **References are whole numbers.** Then `2^(m_a − m)` is a power of two, the products with it are
//!    exact, and a merge rounds nowhere but in its additions.
//! 2. **The empty state is canonical**: `(−∞, 0, 0)`, and merging two empty states gives it back bit for
//!    bit, because a factor whose reference is `−∞` is zero by definition and not `2^(−∞ + ∞)`.
//! 3. **NaN poisons.** A NaN score makes `S` and `W` NaN; no maximum can swallow that.
//! 4. **A factor below `2^-126` is zero**: it would push its side out of the range of normal singles.
//!
//! [`Number`] is what the law asks of a number. It is implemented by `f32` here and by vectors of
//! independent rows in the kernels, so that both execute this text.

use crate::monoid::Monoid;

/// A score of this much above the reference (in units of `log 2`) moves the reference. Weights then stay
/// below `2^HEADROOM`, which leaves the rest of the exponent range to the values.
pub const HEADROOM: f32 = 8.0;

/// The least exponent of a weight relative to the reference: an attended key whose score lies further below
/// counts as `2^WEIGHT_FLOOR`. It keeps weights, and their products with ordinary values, out of the
/// subnormal range, where x86 cores stall. What it adds to a row is at most `2^WEIGHT_FLOOR · Σ|v_j|`.
pub const WEIGHT_FLOOR: f32 = -100.0;

/// What the merge law asks of a number: an `f32`, or a vector whose lanes are independent rows.
pub trait Number: Copy {
    /// The larger of two references.
    #[must_use]
    fn larger(self, other: Self) -> Self;
    /// `2^(self − to)` for whole numbers `self ≤ to`; zero where `self` is `−∞`, and below `2^-126`.
    #[must_use]
    fn factor(self, to: Self) -> Self;
    /// Product.
    #[must_use]
    fn times(self, other: Self) -> Self;
    /// Sum.
    #[must_use]
    fn plus(self, other: Self) -> Self;
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
}

/// `2^n` for a whole `n` in −126 ..= 127.
#[inline(always)]
fn power_of_two(n: f32) -> f32 {
    f32::from_bits(((n as i32 + 127) as u32) << 23)
}

/// The merge of two references, to be applied to every sum that hangs on them.
#[derive(Clone, Copy, Debug)]
pub struct Merge<N> {
    /// The reference of the merged state.
    pub m: N,
    /// Factor of the earlier state's sums.
    pub earlier: N,
    /// Factor of the later state's sums.
    pub later: N,
}

impl<N: Number> Merge<N> {
    /// Of references `a` (earlier) and `b` (later).
    #[inline(always)]
    pub fn of(a: N, b: N) -> Merge<N> {
        let m = a.larger(b);
        Merge { m, earlier: a.factor(m), later: b.factor(m) }
    }

    /// `a 2^(m_a − m) + b 2^(m_b − m)`. Only the addition rounds.
    #[inline(always)]
    #[must_use]
    pub fn apply(&self, a: N, b: N) -> N {
        a.times(self.earlier).plus(b.times(self.later))
    }
}

/// The state of one query row over some set of keys. `W` is an array where states are values, and a slice
/// of the caller's where they are streamed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct State<W> {
    /// Reference in units of `log 2`: a whole number, or `−∞` for the empty state.
    pub m: f32,
    /// `Σ 2^(s_j − m)`.
    pub s: f32,
    /// `Σ 2^(s_j − m) v_j`.
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
    /// The state of a single key with score `score` (in units of `log 2`) and value `value`.
    #[must_use]
    pub fn of(score: f32, value: &[f32; D]) -> Self {
        let mut x = Self::identity();
        x.absorb(score, |i| value[i]);
        x
    }
}

impl<W: AsRef<[f32]>> State<W> {
    /// Whether no key was absorbed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.m == f32::NEG_INFINITY && self.s == 0.0
    }

    /// Log-sum-exp in natural-log units: `(m + log2 S) · log 2`; `−∞` for the empty state.
    #[must_use]
    pub fn log_sum_exp(&self) -> f32 {
        log_sum_exp(self.m, f64::from(self.s))
    }
}

/// Log-sum-exp, in natural-log units, of a state with reference `m` (in units of `log 2`) and sum `s`; `−∞`
/// for the empty state, NaN for a poisoned one. Computed in f64 and rounded once.
#[must_use]
pub fn log_sum_exp(m: f32, s: f64) -> f32 {
    if m == f32::NEG_INFINITY && !s.is_nan() {
        return f32::NEG_INFINITY;
    }
    (f64::from(m) * core::f64::consts::LN_2 + libm::log(s)) as f32
}

/// The reference of a state in natural-log units, and the factor that its `S` and `W` take on for it: the
/// reference is rounded to a single, and the factor (within a few roundings of one for ordinary
/// references) makes up for it.
#[must_use]
pub fn natural_reference(m: f32) -> (f32, f64) {
    if !m.is_finite() {
        return (m, 1.0);
    }
    let exact = f64::from(m) * core::f64::consts::LN_2;
    let rounded = exact as f32;
    (rounded, libm::exp(exact - f64::from(rounded)))
}

impl<W: AsRef<[f32]> + AsMut<[f32]>> State<W> {
    /// Makes it the empty state.
    pub fn clear(&mut self) {
        self.m = f32::NEG_INFINITY;
        self.s = 0.0;
        self.w.as_mut().fill(0.0);
    }

    /// Takes in one key: its score in units of `log 2`, and its value by index. A score of `−∞` changes
    /// nothing and the value is not looked at.
    pub fn absorb(&mut self, score: f32, value: impl Fn(usize) -> f32) {
        if score == f32::NEG_INFINITY {
            return;
        }
        if score > self.m + HEADROOM || self.m == f32::NEG_INFINITY {
            // NaN compares false with everything and leaves an old reference alone.
            let m = if score.is_nan() { 0.0 } else { libm::rintf(score) };
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

    /// `self ⊕ later`, in place.
    pub fn merge<V: AsRef<[f32]>>(&mut self, later: &State<V>) {
        let merge = Merge::of(self.m, later.m);
        self.m = merge.m;
        self.s = merge.apply(self.s, later.s);
        for (a, b) in self.w.as_mut().iter_mut().zip(later.w.as_ref()) {
            *a = merge.apply(*a, *b);
        }
    }

    /// Divides `W` by `S`, which makes it the output row: zeros for the empty state, NaN when poisoned.
    pub fn finish(&mut self) {
        if self.is_empty() {
            self.w.as_mut().fill(0.0);
        } else {
            for w in self.w.as_mut() {
                *w /= self.s;
            }
        }
    }
}

/// The weight `2^(score − m)` of an attended key, not below `2^WEIGHT_FLOOR`; NaN stays NaN.
#[inline]
#[must_use]
pub fn weight(score: f32, m: f32) -> f32 {
    let x = score - m;
    libm::exp2f(if x < WEIGHT_FLOOR { WEIGHT_FLOOR } else { x })
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

    #[test]
    fn natural_reference_keeps_the_sum() {
        for m in [0.0f32, 1.0, -7.0, 513.0, 123_456.0, f32::NEG_INFINITY] {
            let (n, f) = natural_reference(m);
            let (s, e) = (3.25f32, core::f64::consts::LN_2 * f64::from(m));
            let back = f64::from(n) + libm::log(f64::from(s) * f);
            assert!(m.is_infinite() || (back - (e + libm::log(f64::from(s)))).abs() < 2e-7, "{m}");
        }
    }
}
