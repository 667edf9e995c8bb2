//! Measures distances between computed numbers and an f64 reference in units in the last place.
//!
//! The unit is the spacing of the numbers of the type at the reference `r`:
//!
//! ```text
//! ulp(r) = 2^(max(e, e_min) − p + 1)    with 2^e ≤ |r| < 2^(e+1)
//! ```
//!
//! with `p` bits of precision and `e_min` the exponent of the smallest normal number. The naive quotient
//! `|x − r| / ulp(r)` is wrong or undefined in four cases:
//!
//! 1. **Zero** has no exponent. Its unit is the smallest subnormal number, as for every subnormal.
//! 2. **Powers of two** have neighbours at two distances. The unit is that of the side of the computed number, so
//!    neighbours are always one unit apart.
//! 3. **Infinity** is right if the reference rounds to it, from half a unit above the largest number on. Otherwise
//!    its distance is infinite.
//! 4. **NaN** is right if the reference is NaN. Otherwise its distance is infinite.
//!
//! Zeros of either sign are equal.

use crate::dtype::DType;

/// Returns the bits of precision of a type, the exponent of its smallest normal number and that of its largest
/// number.
const fn format(dtype: DType) -> (i32, i32, i32) {
    match dtype {
        DType::F32 => (24, -126, 127),
        DType::F16 => (11, -14, 15),
        DType::Bf16 => (8, -126, 127),
    }
}

/// Returns `2^e` for the exponents of normal f64 numbers.
const fn power_of_two(e: i32) -> f64 {
    f64::from_bits(((e + 1023) as u64) << 52)
}

/// Returns the exponent of `|x|`, clamped to the normal numbers of a type, and whether `|x|` is a power of two
/// above the smallest of them.
fn exponent(dtype: DType, x: f64) -> (i32, bool) {
    let (_, min, max) = format(dtype);
    // Subnormal f64 have the smallest biased exponent, which is far below every type's own.
    let bits = x.to_bits();
    let e = ((bits >> 52) & 0x7ff) as i32 - 1023;
    (e.clamp(min, max), e > min && e <= max && bits << 12 == 0)
}

/// Returns the unit in the last place of `dtype` at `reference`: the distance to the next number away from zero.
/// For the largest number and beyond, it is the unit of the largest number's binade.
#[must_use]
pub fn ulp(dtype: DType, reference: f64) -> f64 {
    power_of_two(exponent(dtype, reference).0 - format(dtype).0 + 1)
}

/// Returns the distance of `computed`, a number of type `dtype`, from `reference` in units in the last place of
/// `dtype` at `reference`. Never negative, never NaN, and infinite under the module's rules 3 and 4.
#[must_use]
pub fn distance(dtype: DType, computed: f32, reference: f64) -> f64 {
    let x = f64::from(computed);
    if x.is_nan() || reference.is_nan() {
        return if x.is_nan() && reference.is_nan() { 0.0 } else { f64::INFINITY };
    }
    if x == reference {
        return 0.0;
    }
    if x.is_infinite() {
        let (p, _, max) = format(dtype);
        // Half a unit above the largest number: 2^max (2 − 2^-p), exactly.
        let rounds_to_infinity = power_of_two(max) * (2.0 - power_of_two(-p));
        let right = reference.abs() >= rounds_to_infinity && x.signum() == reference.signum();
        return if right { 0.0 } else { f64::INFINITY };
    }
    if reference.is_infinite() {
        return f64::INFINITY;
    }
    let unit = ulp(dtype, reference);
    let below = exponent(dtype, reference).1 && x * reference.signum() < reference.abs();
    (x - reference).abs() / if below { unit / 2.0 } else { unit }
}

/// Allowed distance of a computed number from its reference: the largest of three terms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Units in the last place of the reference.
    pub ulps: f64,
    /// Absolute distance.
    pub absolute: f64,
    /// Distance relative to the magnitude of the reference.
    pub relative: f64,
}

impl Tolerance {
    /// Allows equality only.
    pub const NONE: Tolerance = Tolerance { ulps: 0.0, absolute: 0.0, relative: 0.0 };

    /// Allows `ulps` units in the last place.
    #[must_use]
    pub const fn ulps(ulps: f64) -> Tolerance {
        Tolerance { ulps, ..Tolerance::NONE }
    }

    /// Allows an absolute distance.
    #[must_use]
    pub const fn absolute(absolute: f64) -> Tolerance {
        Tolerance { absolute, ..Tolerance::NONE }
    }

    /// Allows a distance relative to the magnitude of the reference.
    #[must_use]
    pub const fn relative(relative: f64) -> Tolerance {
        Tolerance { relative, ..Tolerance::NONE }
    }

    /// Returns the share of the tolerance that `computed` uses: at most one if it is allowed, infinite if no
    /// tolerance could allow it. Never NaN.
    #[must_use]
    pub fn share(&self, dtype: DType, computed: f32, reference: f64) -> f64 {
        let units = distance(dtype, computed, reference);
        if units == 0.0 || units == f64::INFINITY {
            return units;
        }
        let error = (f64::from(computed) - reference).abs();
        // A term that is zero, negative or NaN allows nothing.
        let share = |error: f64, allowed: f64| if allowed > 0.0 { error / allowed } else { f64::INFINITY };
        let by_units = share(units, self.ulps);
        let by_distance = share(error, self.absolute);
        let by_size = share(error, self.relative * reference.abs());
        by_units.min(by_distance).min(by_size)
    }

    /// Checks pairs of computed numbers of type `dtype` and their references.
    ///
    /// # Errors
    /// Returns the pair that uses the largest share of the tolerance, if that exceeds one.
    pub fn check(
        &self,
        dtype: DType,
        pairs: impl IntoIterator<Item = (f32, f64)>,
    ) -> Result<Checked, Offender> {
        let mut checked = Checked { count: 0, worst: None };
        for (index, (computed, reference)) in pairs.into_iter().enumerate() {
            let share = self.share(dtype, computed, reference);
            if checked.worst.is_none_or(|w| share > w.share) {
                let ulps = distance(dtype, computed, reference);
                checked.worst = Some(Offender { index, computed, reference, ulps, share });
            }
            checked.count += 1;
        }
        match checked.worst {
            Some(worst) if worst.share > 1.0 => Err(worst),
            _ => Ok(checked),
        }
    }
}

/// The outcome of a check that passed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Checked {
    /// Number of pairs checked. A check of no pairs proves nothing.
    pub count: usize,
    /// The pair that uses the largest share of the tolerance.
    pub worst: Option<Offender>,
}

/// A pair of numbers and their distance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Offender {
    /// Index of the pair.
    pub index: usize,
    /// The computed number.
    pub computed: f32,
    /// Reference of the computed number.
    pub reference: f64,
    /// Their distance in units in the last place.
    pub ulps: f64,
    /// Share of the tolerance.
    pub share: f64,
}

impl core::fmt::Display for Offender {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "element {}: computed {:e}, reference {:e}, {} ulp apart, {} of the tolerance",
            self.index, self.computed, self.reference, self.ulps, self.share
        )
    }
}

impl core::error::Error for Offender {}
