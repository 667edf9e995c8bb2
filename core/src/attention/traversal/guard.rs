//! The guard: decides which rows of a run are accepted.
//!
//! A row whose reference did not follow its scores is as exact as any other under three conditions:
//!
//! 1. `2^-24 ≤ S ≤ 2^24` (`FROZEN_RANGE`). Then every weight that vanished, because it was below `2^`[`WEIGHT_FLOOR`]
//!    relative to the reference, has a probability below `2^(24 + WEIGHT_FLOOR)`. Since `ln p_j = (s_j − m) ln 2 − ln S`,
//!    each score is within `|ln p_j| + |ln S|` of its reference. This distance bounds the rounding of the subtraction.
//! 2. Every element of `W` is finite: no product and no sum overflowed.
//! 3. Every exponent was in the range for which kernels compute powers of two, at most [`LARGEST_EXPONENT`]. Beyond
//!    this range, a kernel that builds powers of two from integer bits computes a weight that is finite and wrong, and
//!    `S` does not show the error.
//!
//! A row whose reference moved after it had weights must meet two more conditions. First, none of these weights was
//! computed with an exponent beyond [`HEADROOM`]. Such an exponent is the distance of a score from the reference at
//! that time. The distance was rounded, and the final reference does not show how large it was. Second, no move dropped
//! weights that matter: if a move multiplies the sums by zero, they must be below `2^WEIGHT_FLOOR` relative to the new
//! reference.

use crate::state::{HEADROOM, WEIGHT_FLOOR};

/// Largest accepted sum `S`, `2^FROZEN_RANGE`. The smallest accepted sum is `2^-FROZEN_RANGE`.
const MOST: f32 = 16_777_216.0;

/// Largest exponent of a weight for which every kernel's exponential is defined.
pub const LARGEST_EXPONENT: f32 = 127.0;

/// The guard's record of the exponents of a row's weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exponents {
    /// Largest exponent relative to the current reference; `−∞` before the first weight.
    largest: f32,
    /// Largest exponent relative to the reference used to compute its weight; `−∞` before the first weight.
    peak: f32,
    /// `true` if an exponent exceeded [`LARGEST_EXPONENT`] or was NaN, if the reference moved after an exponent beyond
    /// [`HEADROOM`], or if a move dropped weights that matter.
    broken: bool,
}

impl Default for Exponents {
    fn default() -> Exponents {
        Exponents { largest: f32::NEG_INFINITY, peak: f32::NEG_INFINITY, broken: false }
    }
}

impl Exponents {
    /// Records the exponent `score − m` of a weight. The guard rejects the row if the exponent is NaN.
    #[inline]
    pub fn see(&mut self, exponent: f32) {
        let defined = exponent <= LARGEST_EXPONENT;
        self.broken |= !defined;
        if exponent > self.largest {
            self.largest = exponent;
        }
        if exponent > self.peak {
            self.peak = exponent;
        }
    }

    /// Returns the largest exponent of a weight, relative to the reference that was used to compute it; `−∞` before the
    /// first weight.
    #[must_use]
    pub fn peak(&self) -> f32 {
        self.peak
    }

    /// Records that the reference rose from `from` to `to` when the row already had weights.
    pub fn moved(&mut self, from: f32, to: f32) {
        let dropped = from - to < WEIGHT_FLOOR;
        self.largest -= to - from;
        self.broken |= self.peak > HEADROOM || (dropped && self.largest > WEIGHT_FLOOR);
    }

    /// Returns `true` if a row with sum `s` is accepted. `finite` is `true` if every element of `W` is finite.
    /// `near_zero` is `true` if the row's scores are known to stay near zero and its reference is zero; then only
    /// overflow could spoil its sums.
    #[must_use]
    pub fn accept(&self, s: f32, finite: bool, near_zero: bool) -> bool {
        let held = if near_zero { s.is_normal() && s > 0.0 } else { (1.0 / MOST..=MOST).contains(&s) };
        held && finite && !self.broken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(exponents: &[f32]) -> Exponents {
        let mut x = Exponents::default();
        exponents.iter().for_each(|e| x.see(*e));
        x
    }

    #[test]
    fn sums_within_the_range_are_accepted() {
        assert_eq!(MOST, crate::state::FROZEN_RANGE.exp2());
        let row = seen(&[-3.0, 0.5]);
        for (s, held) in [
            (1.0, true),
            (MOST, true),
            (MOST.next_up(), false),
            (1.0 / MOST, true),
            ((1.0 / MOST).next_down(), false),
            (0.0, false),
            (f32::NAN, false),
            (f32::INFINITY, false),
        ] {
            assert_eq!(row.accept(s, true, false), held, "{s}");
            assert!(!row.accept(s, false, false), "{s}");
        }
        for (s, held) in
            [(1e-14, true), (1e14, true), (0.0, false), (f32::NAN, false), (f32::INFINITY, false)]
        {
            assert_eq!((row.accept(s, true, true), row.accept(s, false, true)), (held, false), "{s}");
        }
    }

    /// Checks a kernel whose powers of two wrap: it returns 2.4e-4 for `2^500`, so the sum looks ordinary, but the
    /// exponent shows the error and the row is rejected.
    #[test]
    fn an_undefined_exponent_is_never_accepted() {
        for bad in [LARGEST_EXPONENT.next_up(), 128.0, 500.0, f32::INFINITY, f32::NAN] {
            assert!(!seen(&[0.0, bad, -2.0]).accept(1.0 + 2.4e-4, true, false), "{bad}");
            // The row is not accepted either after the reference has moved beyond the undefined exponent.
            let mut row = seen(&[bad]);
            row.moved(0.0, 600.0);
            row.see(0.0);
            assert!(!row.accept(1.0, true, false), "{bad}");
        }
        assert!(seen(&[LARGEST_EXPONENT, f32::NEG_INFINITY]).accept(1.0, true, false));
    }

    #[test]
    fn a_peak_stays_where_it_was() {
        let mut row = seen(&[-3.0, 20.0, 4.0, f32::NAN]);
        row.moved(0.0, 30.0);
        row.see(-1.0);
        assert_eq!((row.peak(), Exponents::default().peak()), (20.0, f32::NEG_INFINITY));
    }

    #[test]
    fn a_move_may_drop_only_what_has_vanished() {
        for (exponent, to, held) in
            [(8.0, 126.0, true), (8.0, 130.0, false), (8.0, 134.0, true), (0.0, 127.0, true)]
        {
            let mut row = seen(&[exponent]);
            row.moved(0.0, to);
            assert_eq!(row.accept(1.0, true, false), held, "{exponent} {to}");
        }
        // Two moves drop no weight: a weight of 2^8 becomes 1, and then 2^-120.
        let mut row = seen(&[8.0]);
        row.moved(0.0, 8.0);
        row.moved(8.0, 128.0);
        assert!(row.accept(1.0, true, false));
    }

    /// Checks that a row is rejected if its reference moved to a distant score. The score is 20 above its reference, so
    /// its distance is rounded relative to 20. Once the reference has followed, `S` does not show that error.
    #[test]
    fn a_move_away_from_far_exponents_is_not_accepted() {
        for (exponent, held) in [(HEADROOM, true), (HEADROOM.next_up(), false), (20.0, false), (100.0, false)]
        {
            let mut row = seen(&[exponent, -1.0]);
            assert!(row.accept(1.0, true, false), "{exponent}: while it stays");
            row.moved(0.0, exponent);
            row.see(0.0);
            assert_eq!(row.accept(1.0, true, false), held, "{exponent}");
        }
    }
}
