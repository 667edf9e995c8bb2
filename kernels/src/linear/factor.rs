//! Multiplies rows of a state by factors, and flushes numbers that would be subnormal to zero.

use super::exponential::NEUTRAL;
use super::kernel::{CLEARS, Factors};
use super::tile::BIAS;
use crate::lanes::Lanes;

/// Factor of a row, in every lane: the sum of `high` and `low`. `limit` is the smallest magnitude whose product with
/// `high` is a normal number.
#[derive(Clone, Copy)]
pub(super) struct Factor<L> {
    high: L,
    low: L,
    limit: L,
}

impl Factors {
    /// Returns `true` if all rows have the factor one. A multiplication by this factor changes only numbers that would
    /// be subnormal, which become zero.
    ///
    /// # Safety
    /// - The factors are readable.
    #[inline(always)]
    pub(super) unsafe fn is_one(&self) -> bool {
        // SAFETY: the first factor is readable (clause).
        !self.per_dim && unsafe { (self.high.read(), self.rest.read()) } == NEUTRAL
    }
}

impl<L: Lanes> Factor<L> {
    /// Loads the factor of row `r`. The factor must be within the range of f32 numbers and not zero.
    ///
    /// # Safety
    /// - The factor is readable: the `high` and `rest` that all rows share, or those of row `r`.
    #[inline(always)]
    pub(super) unsafe fn of(isa: L::Isa, factors: &Factors, r: usize) -> Factor<L> {
        let n = if factors.per_dim { r } else { 0 };
        // SAFETY: factor `n` is readable (clause).
        let (high, rest) = unsafe { (factors.high.add(n).read(), factors.rest.add(n).read()) };
        Factor::new(isa, high, rest)
    }

    /// Creates the factor `high · (1 + rest)`.
    #[inline(always)]
    fn new(isa: L::Isa, high: f32, rest: f32) -> Factor<L> {
        Factor {
            high: L::splat(isa, high),
            low: L::splat(isa, high * rest),
            limit: L::splat(isa, f32::MIN_POSITIVE / high),
        }
    }

    /// Loads the factor of row `r`, or returns `common` if all rows have the same factor.
    ///
    /// # Safety
    /// - The clauses of [`Factor::of`] hold.
    #[inline(always)]
    pub(super) unsafe fn of_row(isa: L::Isa, factors: &Factors, r: usize, common: Factor<L>) -> Factor<L> {
        if factors.per_dim {
            // SAFETY: the call needs only the clause of this function.
            return unsafe { Factor::of(isa, factors, r) };
        }
        common
    }

    /// Returns `s` times the factor, or zero for a product below the smallest normal number. The contributions of
    /// `high` and `low` are added before the product is rounded. The contribution of `low` is less than half a unit in
    /// the last place of the product. If it were rounded separately, it would be lost, in the same direction each time.
    #[inline(always)]
    pub(super) fn times(&self, isa: L::Isa, s: L) -> L {
        s.times_sum(isa, self.limit, [self.high, self.low], L::splat(isa, BIAS))
    }
}

/// Multiplies each of the `dim` rows of `width` values at `from` by the row's factor, and writes the products to `to`.
/// Each of `from` and `to` consists of a pointer to the first value and a row stride. A factor of [`CLEARS`] clears its
/// row by selection, even a row with NaN. A result below the smallest normal number becomes zero.
///
/// # Safety
/// - The factors are readable: one for all rows, or one per row.
/// - `width` values of each row are readable at `from` and writable at `to`; `width` is a multiple of the number of
///   lanes. `from` and `to` are the same rows, or do not overlap.
#[inline(always)]
pub unsafe fn multiply<L: Lanes>(
    isa: L::Isa,
    factors: &Factors,
    (from, from_stride): (*const f32, usize),
    (to, stride): (*mut f32, usize),
    dim: usize,
    width: usize,
) {
    for r in 0..dim {
        // SAFETY: the factor of row `r` is readable, and the vectors are within the row (clauses).
        unsafe {
            let (row, to) = (from.add(r * from_stride), to.add(r * stride));
            let n = if factors.per_dim { r } else { 0 };
            let (high, rest) = (factors.high.add(n).read(), factors.rest.add(n).read());
            if high.to_bits() == CLEARS.to_bits() {
                to.write_bytes(0, width);
                continue;
            }
            let factor = Factor::<L>::new(isa, high, rest.abs());
            for x in (0..width).step_by(L::N) {
                let mut s = factor.times(isa, L::load(isa, row.add(x)));
                if rest < 0.0 {
                    s = factor.times(isa, s);
                }
                s.store(to.add(x));
            }
        }
    }
}

/// Returns `x · factor`, or zero for a product below the smallest normal number. `limit` is the smallest normal number
/// divided by the factor's magnitude.
#[inline(always)]
pub(super) fn flushed<L: Lanes>(isa: L::Isa, x: L, factor: L, limit: L) -> L {
    limit.if_greater(x.abs(), L::splat(isa, 0.0), x).times(factor)
}
