//! Double-double arithmetic: a number is an unevaluated sum of two f64 numbers, with about 30 decimal digits.
//!
//! This arithmetic checks the f64 oracle, which checks everything else. Sums and products are those of Dekker and
//! Knuth (Muller et al., *Handbook of Floating-Point Arithmetic*, sections 4.3, 4.4 and 14.1). The rounding error of a
//! sum or of a product of two f64 numbers is itself an f64 number, and these formulas compute it exactly unless
//! something overflows or underflows:
//!
//! ```text
//! sum      s = a + b    t = s − a    e = (a − (s − t)) + (b − t)      s + e = a + b
//! product  p = a b      e = fma(a, b, −p)                              p + e = a b
//! ```
//!
//! Every arithmetic operation has a relative error of a few `2^-104`, and every function has a relative error of about
//! `2^-96`. Results are meaningful only for finite numbers: a NaN or an infinity makes a result NaN or infinite, in an
//! unspecified way.

use core::f64::consts::LN_2;
use core::ops::{Add, Div, Mul, Neg, Sub};

/// A number with twice the digits of f64.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Double {
    /// The number rounded to f64.
    high: f64,
    /// Difference between the number and `high`.
    low: f64,
}

/// Returns `a + b` and its rounding error.
fn sum(a: f64, b: f64) -> Double {
    let high = a + b;
    let part = high - a;
    Double { high, low: (a - (high - part)) + (b - part) }
}

/// Returns the same result as [`sum`], for `|a| ≥ |b|`.
fn sum_ordered(a: f64, b: f64) -> Double {
    let high = a + b;
    Double { high, low: b - (high - a) }
}

/// Difference between log 2 and its f64 value.
const LN_2_LOW: f64 = 2.319_046_813_846_299_6e-17;

/// Number of times that the argument of an exponential is halved before the series is evaluated.
const HALVINGS: i32 = 8;

impl Double {
    /// Returns the product of two f64 numbers, exact unless it overflows or underflows.
    #[must_use]
    pub fn product(a: f64, b: f64) -> Double {
        let high = a * b;
        Double { high, low: libm::fma(a, b, -high) }
    }

    /// Rounds to the nearest f64 number.
    #[must_use]
    pub const fn to_f64(self) -> f64 {
        self.high
    }

    /// Returns `exp(x) − 1` for `|x|` below one half. Evaluates the series at a small fraction of `x`, and then doubles
    /// the argument repeatedly by `(1 + e)² − 1 = 2 e + e²`.
    fn exp_less_one(self) -> Double {
        let x = Double { high: libm::ldexp(self.high, -HALVINGS), low: libm::ldexp(self.low, -HALVINGS) };
        // The first omitted term is below 2^-120 relative to the first term.
        let mut series = Double::from(1.0);
        for n in (2..=11).rev() {
            series = Double::from(1.0) + x * series / Double::from(f64::from(n));
        }
        let mut e = x * series;
        for _ in 0..HALVINGS {
            e = e + e + e * e;
        }
        e
    }

    /// Returns `exp(x)`. Returns zero if the result is below the range of f64, and infinity if it is above.
    #[must_use]
    pub fn exp(self) -> Double {
        if self.high < -745.0 {
            return Double::default();
        }
        if self.high > 709.0 {
            return Double::from(libm::exp(self.high));
        }
        let turns = libm::rint(self.high / LN_2);
        let rest = self - Double::product(turns, LN_2) - Double::product(turns, LN_2_LOW);
        let e = Double::from(1.0) + rest.exp_less_one();
        // Two steps keep each power of two in range unless the product is out of range.
        let (first, second) = (turns as i32 / 2, turns as i32 - turns as i32 / 2);
        let scaled = |x: f64| libm::ldexp(libm::ldexp(x, first), second);
        Double { high: scaled(e.high), low: scaled(e.low) }
    }

    /// Returns the hyperbolic tangent.
    #[must_use]
    pub fn tanh(self) -> Double {
        if self.high.abs() > 40.0 {
            return Double::from(1f64.copysign(self.high));
        }
        let twice = self + self;
        if twice.high.abs() < 0.25 {
            let e = twice.exp_less_one();
            return e / (e + Double::from(2.0));
        }
        let e = twice.exp();
        (e - Double::from(1.0)) / (e + Double::from(1.0))
    }
}

impl From<f64> for Double {
    fn from(x: f64) -> Double {
        Double { high: x, low: 0.0 }
    }
}

impl Neg for Double {
    type Output = Double;
    fn neg(self) -> Double {
        Double { high: -self.high, low: -self.low }
    }
}

impl Add for Double {
    type Output = Double;
    fn add(self, other: Double) -> Double {
        let (high, low) = (sum(self.high, other.high), sum(self.low, other.low));
        let first = sum_ordered(high.high, high.low + low.high);
        sum_ordered(first.high, low.low + first.low)
    }
}

impl Sub for Double {
    type Output = Double;
    fn sub(self, other: Double) -> Double {
        self + -other
    }
}

impl Mul for Double {
    type Output = Double;
    fn mul(self, other: Double) -> Double {
        let product = Double::product(self.high, other.high);
        sum_ordered(product.high, product.low + (self.high * other.low + self.low * other.high))
    }
}

impl Div for Double {
    type Output = Double;
    fn div(self, other: Double) -> Double {
        let first = self.high / other.high;
        let rest = self - other * Double::from(first);
        let second = rest.high / other.high;
        let rest = rest - other * Double::from(second);
        sum_ordered(first, second) + Double::from(rest.high / other.high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns `|a / b − 1|`; NaN if undefined.
    fn off(a: Double, b: Double) -> f64 {
        ((a - b) / b).to_f64().abs()
    }

    #[test]
    fn sums_products_and_quotients_keep_what_f64_drops() {
        let (one, tiny) = (Double::from(1.0), Double::from(1e-25));
        assert_eq!((one + tiny - one).to_f64(), 1e-25);
        // (1 + 2^-30)² = 1 + 2^-29 + 2^-60.
        let x = 1.0 + libm::exp2(-30.0);
        let square = Double::product(x, x) - Double::from(1.0) - Double::from(libm::exp2(-29.0));
        assert_eq!(square.to_f64(), libm::exp2(-60.0));
        for n in 1..50 {
            let n = Double::from(f64::from(n) + 0.1);
            assert!(off(one / n * n, one) < 1e-30, "{n:?}");
        }
    }

    #[test]
    fn the_exponential_has_thirty_digits() {
        // e = 2.718281828459045 090… + 1.4456…e-16
        let e = Double { high: core::f64::consts::E, low: 1.445_646_891_729_250_2e-16 };
        assert!(off(Double::from(1.0).exp(), e) < 1e-29);
        assert!(off(Double { high: LN_2, low: LN_2_LOW }.exp(), Double::from(2.0)) < 1e-30);
        assert!(off(Double::from(-600.0).exp() * Double::from(600.0).exp(), Double::from(1.0)) < 1e-28);
        for i in -40..40 {
            let (a, b) = (Double::from(f64::from(i) * 1.7), Double::from(0.3));
            assert!(off((a + b).exp(), a.exp() * b.exp()) < 1e-28, "{i}");
            let near = libm::exp(a.to_f64());
            assert!((a.exp().to_f64() / near - 1.0).abs() <= 1e-15, "{i}");
        }
        assert_eq!(Double::from(-1e9).exp().to_f64(), 0.0);
        assert_eq!(Double::from(1e9).exp().to_f64(), f64::INFINITY);
        assert!(Double::from(f64::NAN).exp().to_f64().is_nan());
    }

    #[test]
    fn the_tangent_doubles() {
        // The identity tanh 2x = 2 t / (1 + t²) holds for arguments that use the series and for those that use the
        // quotient.
        for i in 1..60 {
            let x = Double::from(f64::from(i) * 0.037);
            let t = x.tanh();
            let twice = (t + t) / (Double::from(1.0) + t * t);
            assert!(off((x + x).tanh(), twice) < 1e-28, "{i}");
            assert!((t.to_f64() / libm::tanh(x.to_f64()) - 1.0).abs() <= 1e-15, "{i}");
        }
        assert_eq!(Double::from(-50.0).tanh().to_f64(), -1.0);
        assert_eq!(Double::from(0.0).tanh().to_f64(), 0.0);
    }
}
