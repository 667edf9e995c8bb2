//! Measures the distance between computed tensors and a reference, for any operator.
//!
//! 1. **NaN propagates.** If a computed number or its reference is NaN, every measure that uses it is NaN.
//! 2. **A zero reference.** A relative error is zero if difference and reference are both zero, and infinite if only the
//!    reference is zero.

/// Distance between computed numbers and a reference: the largest difference, and the sums of squares for a relative
/// error.
#[derive(Clone, Copy, Debug, Default)]
pub struct Distance {
    max: f64,
    squares: f64,
    reference_squares: f64,
}

impl Distance {
    /// Distance before any number is added.
    pub const NONE: Distance = Distance { max: 0.0, squares: 0.0, reference_squares: 0.0 };

    /// Adds a computed number and its reference.
    pub fn add(&mut self, computed: f64, reference: f64) {
        let difference = computed - reference;
        self.max = larger(self.max, difference.abs());
        self.squares += difference * difference;
        self.reference_squares += reference * reference;
    }

    /// Merges `other`, as if its numbers had been added to this distance.
    pub fn join(&mut self, other: &Distance) {
        self.max = larger(self.max, other.max);
        self.squares += other.squares;
        self.reference_squares += other.reference_squares;
    }

    /// Returns the largest absolute difference; NaN if a computed number or a reference is NaN.
    #[must_use]
    pub const fn max_abs(&self) -> f64 {
        self.max
    }

    /// Returns the L2 norm of the difference, relative to the L2 norm of the reference.
    #[must_use]
    pub fn relative(&self) -> f64 {
        if self.squares == 0.0 && !self.reference_squares.is_nan() {
            0.0
        } else {
            // The quotient is infinite if only the reference is zero.
            libm::sqrt(self.squares) / libm::sqrt(self.reference_squares)
        }
    }
}

/// Returns the larger of two numbers; NaN if either is NaN.
#[must_use]
pub fn larger(a: f64, b: f64) -> f64 {
    if b > a || b.is_nan() { b } else { a }
}

/// Returns the percentile `percent` (0 to 100) of `values` by nearest rank: the smallest value that at least `percent`
/// percent of the values do not exceed, or the minimum if `percent` is zero. The result is always one of the values. Sorts
/// `values`. Returns NaN if any value is NaN, and `None` if `values` is empty or `percent` exceeds 100.
#[must_use]
pub fn percentile(values: &mut [f64], percent: u32) -> Option<f64> {
    if values.is_empty() || percent > 100 {
        return None;
    }
    if values.iter().any(|x| x.is_nan()) {
        return Some(f64::NAN);
    }
    values.sort_unstable_by(f64::total_cmp);
    // Integer arithmetic in 128 bits cannot overflow.
    let rank = (values.len() as u128 * u128::from(percent)).div_ceil(100) as usize;
    values.get(rank.saturating_sub(1)).copied()
}
