//! Measures distances between computed numbers and an f64 reference in units in the last place.
//!
//! At a reference `r`, the unit is the spacing of the numbers of the type:
//!
//! ```text
//! ulp(r) = 2^(max(e, e_min) − p + 1)    with 2^e ≤ |r| < 2^(e+1)
//! ```
//!
//! with `p` bits of precision and `e_min` the exponent of the smallest normal number. The naive quotient
//! `|x − r| / ulp(r)` is wrong or undefined in four cases:
//!
//! 1. **Zero** has no exponent. Its unit is the smallest subnormal number, as it is for every subnormal number.
//! 2. **Powers of two** have neighbours at two distances. The unit is the spacing on the side where the computed number
//!    is, so neighbours are always one unit apart.
//! 3. **Infinity** is correct if the reference rounds to it, that is, from half a unit above the largest number on. If
//!    not, its distance is infinite.
//! 4. **NaN** is correct if the reference is NaN. If not, its distance is infinite.
//!
//! Zeros of both signs are equal.

use crate::dtype::DType;

/// Returns three figures of a type: its bits of precision, the exponent of its smallest normal number and that of its
/// largest number.
const fn format(dtype: DType) -> (i32, i32, i32) {
    match dtype {
        DType::F32 => (24, -126, 127),
        DType::F16 => (11, -14, 15),
        DType::Bf16 => (8, -126, 127),
    }
}

/// Returns `2^e`. The exponent must be that of a normal f64 number.
const fn power_of_two(e: i32) -> f64 {
    f64::from_bits(((e + 1023) as u64) << 52)
}

/// Returns the exponent of `|x|`, clamped to the range of the type's normal numbers, and `true` if `|x|` is a power of
/// two in this range other than the smallest.
fn exponent(dtype: DType, x: f64) -> (i32, bool) {
    let (_, min, max) = format(dtype);
    // Subnormal f64 numbers have the smallest biased exponent, which is far below `min` for every type.
    let bits = x.to_bits();
    let e = ((bits >> 52) & 0x7ff) as i32 - 1023;
    (e.clamp(min, max), e > min && e <= max && bits << 12 == 0)
}

/// Returns the unit in the last place of `dtype` at `reference`: the distance to the next number away from zero.
/// At the largest number and beyond, it is the spacing below the largest number.
#[must_use]
pub fn ulp(dtype: DType, reference: f64) -> f64 {
    power_of_two(exponent(dtype, reference).0 - format(dtype).0 + 1)
}

/// Returns the distance of `computed`, a number of type `dtype`, from `reference` in units in the last place of `dtype`
/// at `reference`. The distance is never negative and never NaN. Cases 3 and 4 of the module state when it is infinite.
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

/// Allowed distance of a computed number from its reference: the largest distance that one of three terms allows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Allowed distance in units in the last place of the reference.
    pub ulps: f64,
    /// Allowed absolute distance.
    pub absolute: f64,
    /// Allowed distance relative to the magnitude of the reference.
    pub relative: f64,
}

impl Tolerance {
    /// Allows only equal numbers.
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

    /// Returns the fraction of the tolerance that `computed` uses. It is at most one if `computed` is allowed, infinite
    /// if no tolerance could allow it, and never NaN.
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

    /// Checks that computed numbers of type `dtype` are within the tolerance of their references.
    ///
    /// # Errors
    /// Returns the pair that uses the largest fraction of the tolerance, if the fraction exceeds one.
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

/// The result of a successful check.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Checked {
    /// Number of pairs checked. A check of no pairs proves nothing.
    pub count: usize,
    /// The pair that uses the largest fraction of the tolerance; `None` if there were no pairs.
    pub worst: Option<Offender>,
}

/// A computed number, its reference, and their distance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Offender {
    /// Index of the pair.
    pub index: usize,
    /// The computed number.
    pub computed: f32,
    /// Reference of the computed number.
    pub reference: f64,
    /// Distance from the reference in units in the last place.
    pub ulps: f64,
    /// Fraction of the tolerance that the computed number uses.
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
