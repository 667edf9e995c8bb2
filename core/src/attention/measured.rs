//! Norms and flags of the tensors of a run, as plain data. A run measures them on request.
//!
//! A run determines, in f32, the largest sum of squares of a query row and of a key row, and the largest magnitude of
//! every kind of element. The sums are rounded. The norms computed here are upper bounds of the exact norms.
//!
//! **The norm of a row.** A computed sum of `d` squares is at least `(1 − γ_k) Σ x² − d t`, in any order of additions,
//! with or without fused multiply-adds. `k = d + 4` counts the roundings on the longest path, `γ_k = k u / (1 − k u)`
//! with `u = 2^-24`, and `t = 2^-126` is the most that a square loses to underflow (Higham, *Accuracy and Stability of
//! Numerical Algorithms*, section 3.1). So `Σ x² ≤ (sum + d t) / (1 − γ_k)`. With the largest magnitude `M` the norm is
//! also at most `√d M`, which holds even if the sum overflows. The smaller bound is used, raised by `2^-50` for the
//! roundings of the f64 arithmetic.

use super::mask::MASK_LIMIT;
use super::problem::Problem;
use crate::state::{HEADROOM, WEIGHT_FLOOR};
use core::fmt;

/// Number of measurements at the start of a record. They are followed by one measurement for each channel of the
/// values. All measurements are nonnegative.
pub const MEASURED: usize = 8;

/// Position, in a record of measurements, of the largest sum of squares of any query row. The largest magnitude of a query
/// element is at the next position.
pub const MEASURED_QUERY: usize = 0;
/// Position, in a record of measurements, of the largest sum of squares of any key row. The largest magnitude of a key
/// element is at the next position.
pub const MEASURED_KEY: usize = 2;
/// Position, in a record of measurements, of the largest magnitude of any mask element other than `−∞`.
pub const MEASURED_MASK: usize = 4;
/// Position, in a record of measurements, of the largest magnitude of any bias element other than `−∞`.
pub const MEASURED_BIAS: usize = 5;
/// Position, in a record of measurements, of the largest sum of squares of any output row. The largest magnitude of an
/// output element is at the next position.
pub const MEASURED_OUTPUT: usize = 6;

/// Returns the larger of two nonnegative numbers. NaN counts as larger than any other number.
#[must_use]
pub fn larger(a: f32, b: f32) -> f32 {
    if b.to_bits() > a.to_bits() { b } else { a }
}

/// Flags of the tensors of a call and of its run, as a set of bits.
///
/// Flags about elements refer to the measured elements. These are the query rows of every sequence; the output rows, on
/// the CPU only; a range of keys and values; and every element of a mask or a bias. The range extends from the first to
/// the last key that some row may attend according to length, causality and window. Keys that a mask excludes, and keys
/// that only some rows attend, are measured too. So their NaN or infinity is reported although it may not reach the
/// output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u32);

impl Flags {
    /// An element of a query is NaN.
    pub const QUERY_NAN: Flags = Flags(1 << 0);
    /// An element of a query is infinite, and no element of a query is NaN.
    pub const QUERY_INFINITE: Flags = Flags(1 << 1);
    /// An element of a key is NaN.
    pub const KEY_NAN: Flags = Flags(1 << 2);
    /// An element of a key is infinite, and no element of a key is NaN.
    pub const KEY_INFINITE: Flags = Flags(1 << 3);
    /// An element of a value is NaN.
    pub const VALUE_NAN: Flags = Flags(1 << 4);
    /// An element of a value is infinite, and no element of a value is NaN.
    pub const VALUE_INFINITE: Flags = Flags(1 << 5);
    /// An element of the mask or the bias is NaN.
    pub const ADDED_NAN: Flags = Flags(1 << 6);
    /// An element of the mask or the bias is `+∞`, and neither the mask nor the bias contains a NaN.
    pub const ADDED_INFINITE: Flags = Flags(1 << 7);
    /// An element of the output is NaN.
    pub const OUTPUT_NAN: Flags = Flags(1 << 8);
    /// An element of the output is infinite, and no element of the output is NaN.
    pub const OUTPUT_INFINITE: Flags = Flags(1 << 9);
    /// The scores of a row may be so far apart that small weights became zero.
    pub const UNDERFLOW: Flags = Flags(1 << 10);
    /// The CPU computed the call instead of a GPU.
    pub const FALLBACK: Flags = Flags(1 << 11);

    /// All flags with their names.
    pub const ALL: [(Flags, &'static str); 12] = [
        (Flags::QUERY_NAN, "q_nan"),
        (Flags::QUERY_INFINITE, "q_infinite"),
        (Flags::KEY_NAN, "k_nan"),
        (Flags::KEY_INFINITE, "k_infinite"),
        (Flags::VALUE_NAN, "v_nan"),
        (Flags::VALUE_INFINITE, "v_infinite"),
        (Flags::ADDED_NAN, "mask_nan"),
        (Flags::ADDED_INFINITE, "mask_infinite"),
        (Flags::OUTPUT_NAN, "out_nan"),
        (Flags::OUTPUT_INFINITE, "out_infinite"),
        (Flags::UNDERFLOW, "underflow"),
        (Flags::FALLBACK, "fallback"),
    ];

    /// Returns the flags as bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Returns `true` if all flags of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the union with `other` if `set` is `true`, otherwise these flags unchanged.
    #[must_use]
    pub const fn with(self, other: Flags, set: bool) -> Flags {
        Flags(if set { self.0 | other.0 } else { self.0 })
    }

    /// Returns the first flag, with its name, that reports a NaN or an infinity in a tensor of the call.
    #[must_use]
    pub fn not_finite(self) -> Option<(Flags, &'static str)> {
        Flags::ALL[..10].iter().copied().find(|(flag, _)| self.contains(*flag))
    }
}

/// Writes the names of the flags that are set, separated by commas.
impl fmt::Display for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = Flags::ALL.iter().filter(|(flag, _)| self.contains(*flag)).map(|(_, name)| name);
        if let Some(first) = names.next() {
            f.write_str(first)?;
        }
        names.try_for_each(|name| write!(f, ", {name}"))
    }
}

/// Measurements of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Upper bound of the Euclidean norm of a query row; infinite or NaN if an element of a row is.
    pub query: f64,
    /// Upper bound of the Euclidean norm of a key row, including past keys.
    pub key: f64,
    /// Upper bound of `|mask| + |bias|` over the elements that are not `−∞`; zero without mask and bias.
    pub added: f64,
    /// Largest magnitude of an element of the attended values.
    pub value: f64,
    /// Flags of the call.
    pub flags: Flags,
}

/// Returns an upper bound of the largest norm of rows of `dim` elements, from `[squares, largest]`: the largest
/// computed sum of squares of a row and the largest magnitude of an element.
#[must_use]
pub fn norm([squares, largest]: [f32; 2], dim: usize) -> f64 {
    let (squares, largest, dim) = (f64::from(squares), f64::from(largest), dim as f64);
    let by_largest = libm::sqrt(dim) * largest;
    let x = (dim + 4.0) / 16_777_216.0;
    let shrunk = 1.0 - x / (1.0 - x);
    if !by_largest.is_finite() || !squares.is_finite() || x >= 0.5 || shrunk <= 0.0 {
        return by_largest * WIDER;
    }
    let by_sum = libm::sqrt((squares + dim * f64::from(f32::MIN_POSITIVE)) / shrunk);
    by_sum.min(by_largest) * WIDER
}

/// `1 + 2^-50`, a factor that outweighs a few roundings in f64.
const WIDER: f64 = 1.0 + 8.881_784_197_001_252e-16;

impl Measured {
    /// Evaluates the record of a call. `record` is the first [`MEASURED`] numbers of the record, and `channels` is the
    /// largest magnitude of each value channel.
    #[must_use]
    pub fn of(problem: &Problem, record: &[f32; MEASURED], channels: &[f32]) -> Measured {
        let at = |i: usize| record[i];
        let value = channels.iter().fold(0.0, |a, b| larger(a, *b));
        // A run clamps finite elements of mask and bias to the limit.
        let limit = |x: f32| if x.is_finite() { x.min(MASK_LIMIT) } else { x };
        let added = larger(at(MEASURED_MASK), at(MEASURED_BIAS));
        let flags = [
            (at(MEASURED_QUERY + 1), Flags::QUERY_NAN, Flags::QUERY_INFINITE),
            (at(MEASURED_KEY + 1), Flags::KEY_NAN, Flags::KEY_INFINITE),
            (value, Flags::VALUE_NAN, Flags::VALUE_INFINITE),
            (added, Flags::ADDED_NAN, Flags::ADDED_INFINITE),
            (at(MEASURED_OUTPUT + 1), Flags::OUTPUT_NAN, Flags::OUTPUT_INFINITE),
        ]
        .iter()
        .fold(Flags::default(), |flags, (x, nan, infinite)| {
            flags.with(*nan, x.is_nan()).with(*infinite, x.is_infinite())
        });
        let dim = problem.head_dim();
        let mut measured = Measured {
            query: norm([at(MEASURED_QUERY), at(MEASURED_QUERY + 1)], dim),
            key: norm([at(MEASURED_KEY), at(MEASURED_KEY + 1)], dim),
            added: f64::from(limit(at(MEASURED_MASK))) + f64::from(limit(at(MEASURED_BIAS))),
            value: f64::from(value),
            flags,
        };
        // A weight is 2^(s − m), where m is within HEADROOM + 1 of the row's largest score.
        let floor = f64::from(-WEIGHT_FLOOR - HEADROOM - 1.0) * core::f64::consts::LN_2;
        let near = 2.0 * measured.largest_score(problem) < floor;
        measured.flags = measured.flags.with(Flags::UNDERFLOW, !near);
        measured
    }

    /// Returns an upper bound of the magnitude of all scores, in natural-log units.
    #[must_use]
    pub(crate) fn largest_score(&self, problem: &Problem) -> f64 {
        let product = f64::from(problem.scale()).abs() * self.query * self.key * WIDER;
        let capped = match problem.spec().softcap {
            Some(cap) if product.is_finite() => product.min(f64::from(cap)),
            _ => product,
        };
        (capped + self.added) * WIDER
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::problem::Spec;
    use crate::dtype::DType;
    use crate::view::{Layout, View};

    fn problem(dim: usize, softcap: Option<f32>) -> Problem {
        let view = View::dense("x", Layout::Bhnd, &[3, dim], None).unwrap();
        Spec { scale: Some(0.5), softcap, ..Spec::new(DType::F32, view, view, view, view) }.check().unwrap()
    }

    fn measured(record: [f32; MEASURED], channels: &[f32]) -> Measured {
        Measured::of(&problem(4, None), &record, channels)
    }

    #[test]
    fn norms_are_upper_bounds() {
        for dim in [1, 4, 64, 256, 100_000] {
            for x in [1.0f32, 3e-3, 1e10] {
                // `computed` is the smallest sum that roundings of squares, products and additions can produce.
                let exact = f64::from(x) * libm::sqrt(dim as f64);
                let gamma = (dim as f64 + 4.0) / 16_777_216.0;
                let computed = exact * exact * (1.0 - gamma / (1.0 - gamma));
                let down = f32::from_bits((computed as f32).to_bits() - 1);
                assert!(f64::from(down) <= computed);
                let found = norm([down, x], dim);
                assert!(
                    found >= exact * (1.0 - 1e-7) && found <= exact * (1.0 + 1e-15),
                    "{dim} {x}: {found:e}"
                );
                let found = norm([(computed * (1.0 + 1e-7)) as f32, 2.0 * x], dim);
                assert!(
                    found >= exact && found <= exact * (1.0 + 2.0 * gamma + 1e-6),
                    "{dim} {x}: {found:e}"
                );
            }
        }
        // The squares of the first row overflow, those of the second underflow.
        assert!(norm([f32::INFINITY, 1e30], 4) >= 2e30 && norm([f32::INFINITY, 1e30], 4) < 2.1e30);
        assert!(norm([0.0, 1e-30], 4) >= 2e-30 && norm([0.0, 1e-30], 4) < 2.1e-30);
        let (fallen, exact) = (norm([0.0, 1e-20], 64), 8.0 * f64::from(1e-20f32));
        assert!(fallen >= exact && fallen < 1.1 * exact, "{fallen:e}");
        assert_eq!(norm([0.0, 0.0], 64), 0.0);
        assert!(norm([f32::NAN, f32::NAN], 4).is_nan() && norm([f32::NAN, f32::INFINITY], 4).is_infinite());
        assert!(norm([1.0, 1.0], usize::MAX).is_finite());
    }

    #[test]
    fn flags_name_what_is_not_finite() {
        let clean = measured([1.0, 1.0, 1.0, 1.0, 2.0, 3.0, 0.0, 1.0], &[1.0, 2.5, 0.0, 0.0]);
        assert_eq!((clean.flags, clean.value, clean.added), (Flags::default(), 2.5, 5.0));
        assert_eq!(clean.flags.not_finite(), None);
        for (place, x, flag) in [
            (1, f32::NAN, "q_nan"),
            (1, f32::INFINITY, "q_infinite"),
            (3, f32::NAN, "k_nan"),
            (3, f32::INFINITY, "k_infinite"),
            (4, f32::NAN, "mask_nan"),
            (5, f32::INFINITY, "mask_infinite"),
            (7, f32::NAN, "out_nan"),
            (7, f32::INFINITY, "out_infinite"),
        ] {
            let mut record = [1.0; MEASURED];
            record[place] = x;
            let found = measured(record, &[1.0; 4]);
            assert_eq!(found.flags.not_finite().map(|(_, name)| name), Some(flag));
        }
        assert_eq!(
            measured([1.0; MEASURED], &[1.0, f32::NAN]).flags.not_finite().map(|f| f.1),
            Some("v_nan")
        );
        let flags = Flags::QUERY_NAN.with(Flags::UNDERFLOW, true).with(Flags::FALLBACK, false);
        let mut text: heapless::String<64> = heapless::String::new();
        fmt::Write::write_fmt(&mut text, format_args!("{flags}")).unwrap();
        assert_eq!((&*text, flags.bits()), ("q_nan, underflow", 1 + 1024));
        assert!(flags.contains(Flags::UNDERFLOW) && !flags.contains(Flags::FALLBACK));
    }

    #[test]
    fn scores_that_may_lie_far_apart_are_flagged() {
        // Scores are at most |scale| · 8 · k in magnitude. Twice this number is compared with 117 ln 2.
        let flagged = |key: f32, softcap, added| {
            let record = [64.0, 8.0, key * key, key, added, 0.0, 0.0, 0.0];
            Measured::of(&problem(1, softcap), &record, &[1.0]).flags.contains(Flags::UNDERFLOW)
        };
        assert_eq!([10.0, 10.2].map(|key| flagged(key, None, 0.0)), [false, true]);
        assert_eq!([30.0, 41.0].map(|cap| flagged(1e4, Some(cap), 0.0)), [false, true]);
        assert_eq!([0.5, 2.0].map(|added| flagged(10.0, None, added)), [false, true]);
        assert!(flagged(f32::INFINITY, None, 0.0) && flagged(f32::NAN, None, 0.0));
        // Finite elements of a mask are clamped to its limit.
        let most = measured([1.0, 1.0, 1.0, 1.0, f32::MAX, f32::MAX, 0.0, 0.0], &[1.0]);
        assert_eq!(most.added, 2.0 * f64::from(MASK_LIMIT));
    }
}
