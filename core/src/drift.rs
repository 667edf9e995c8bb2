//! Drift: how far computed tensors lie from a reference, of any operator.
//!
//! 1. **NaN surfaces.** A NaN on either side makes every measure that it enters NaN. It is never taken for agreement, not
//!    even where both sides hold it.
//! 2. **Nothing to be relative to.** A relative error is zero where difference and reference both vanish, and infinite
//!    where only the reference does.

/// How far computed numbers lie from a reference: the largest difference, and the sums of squares of a relative error.
#[derive(Clone, Copy, Debug, Default)]
pub struct Distance {
    max: f64,
    squares: f64,
    reference_squares: f64,
}

impl Distance {
    /// Of no numbers.
    pub const NONE: Distance = Distance { max: 0.0, squares: 0.0, reference_squares: 0.0 };

    /// Takes in a number.
    pub fn add(&mut self, computed: f64, reference: f64) {
        let difference = computed - reference;
        self.max = larger(self.max, difference.abs());
        self.squares += difference * difference;
        self.reference_squares += reference * reference;
    }

    /// Takes in the numbers of another.
    pub fn join(&mut self, other: &Distance) {
        self.max = larger(self.max, other.max);
        self.squares += other.squares;
        self.reference_squares += other.reference_squares;
    }

    /// The largest absolute difference; NaN if there is one on either side.
    #[must_use]
    pub const fn max_abs(&self) -> f64 {
        self.max
    }

    /// The L2 norm of the difference relative to that of the reference.
    #[must_use]
    pub fn relative(&self) -> f64 {
        if self.squares == 0.0 && !self.reference_squares.is_nan() {
            0.0
        } else {
            // Infinite where only the reference vanishes.
            libm::sqrt(self.squares) / libm::sqrt(self.reference_squares)
        }
    }
}

/// The larger of two; NaN when either is NaN.
#[must_use]
pub fn larger(a: f64, b: f64) -> f64 {
    if b > a || b.is_nan() { b } else { a }
}

/// The percentile `percent` (0 to 100) of `values` by nearest rank: the smallest value that at least
/// `percent` in a hundred of them do not exceed; for zero, the least value. It is always one of the values.
/// Sorts them. NaN when any value is NaN; none without values or for `percent` above 100.
#[must_use]
pub fn percentile(values: &mut [f64], percent: u32) -> Option<f64> {
    if values.is_empty() || percent > 100 {
        return None;
    }
    if values.iter().any(|x| x.is_nan()) {
        return Some(f64::NAN);
    }
    values.sort_unstable_by(f64::total_cmp);
    // In whole numbers, and in 128 bits, which no length exceeds.
    let rank = (values.len() as u128 * u128::from(percent)).div_ceil(100) as usize;
    values.get(rank.saturating_sub(1)).copied()
}
