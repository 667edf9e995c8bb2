//! The task size with the lowest cost (Stream-CQSA, appendix C).
//!
//! With `c ≈ l²`, N tokens are divided into `N² / x²` tasks of x tokens. The tasks take the time `N² g(x)` if they run
//! one after another. They take `N² f(x) / M` if concurrent tasks fill the memory M and each task runs at full speed:
//!
//! ```text
//! g(x) = (A x² + B x + C) / x²                       (equation 14)
//! f(x) = (A x² + B x + C) (D x + E) / x²             (equation 10)
//! ```
//!
//! The signs of the coefficients decide whether these functions have an optimum. If A, B and C are not negative, g
//! falls with x: the largest tasks that fit are the fastest. Only a negative C makes g rise: from x = 0, g then rises
//! to a maximum. At task sizes below this maximum, the time `A x² + B x + C` is negative or close to zero.

use super::cost::{Bytes, Seconds};
use libm::sqrt;

/// Turning points of a cost as a function of the task size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Extremum {
    /// No turning point: the cost rises with the task size everywhere.
    Rises,
    /// No turning point: the cost falls with the task size everywhere.
    Falls,
    /// The cost is lowest at this size.
    Minimum(f64),
    /// The cost is highest at this size. It has no minimum.
    Maximum(f64),
    /// The cost has a local maximum and, at a larger size, a local minimum. As the size approaches zero, the cost falls
    /// below this local minimum.
    Both {
        /// Size of the local maximum.
        maximum: f64,
        /// Size of the local minimum.
        minimum: f64,
    },
}

/// Returns the turning point of g, for tasks that run one after another. The derivative of g is `−B / x² − 2 C / x³`.
#[must_use]
pub fn serial(time: Seconds) -> Extremum {
    let Seconds { linear: b, constant: c, .. } = time;
    let x = -2.0 * c / b;
    if x.is_finite() && x > 0.0 {
        return if c > 0.0 { Extremum::Minimum(x) } else { Extremum::Maximum(x) };
    }
    if b < 0.0 || c < 0.0 { Extremum::Rises } else { Extremum::Falls }
}

/// Returns the turning points of f, for concurrent tasks that fill the memory. The derivative of f, multiplied by `x³`,
/// is `A D x³ − (B E + C D) x − 2 C E` (equation 12).
#[must_use]
pub fn parallel(time: Seconds, memory: Bytes) -> Extremum {
    let Seconds { square: a, linear: b, constant: c } = time;
    let Bytes { per_token: d, fixed: e } = memory;
    let (cube, p, q) = (a * d, b * e + c * d, 2.0 * c * e);
    if cube.is_nan() || cube <= 0.0 {
        return Extremum::Falls;
    }
    let slope = |x: f64| (cube * x * x - p) * x - q;
    // The size above which the cubic rises, and a size beyond all of its roots.
    let low = if p > 0.0 { sqrt(p / (3.0 * cube)) } else { 0.0 };
    let high = 2.0 * (sqrt(p.abs() / cube) + libm::cbrt(q.abs() / cube)) + 1.0;
    if slope(low) >= 0.0 {
        return Extremum::Rises;
    }
    let minimum = root(slope, low, high);
    if q < 0.0 {
        Extremum::Both { maximum: root(|x| -slope(x), 0.0, low), minimum }
    } else {
        Extremum::Minimum(minimum)
    }
}

/// Finds the zero of `f` between `low`, where `f` is negative, and `high`, where it is not.
fn root(f: impl Fn(f64) -> f64, mut low: f64, mut high: f64) -> f64 {
    // Enough halvings to exhaust the bits of a double.
    for _ in 0..200 {
        let middle = low + (high - low) / 2.0;
        if f(middle) < 0.0 { low = middle } else { high = middle }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::super::division::Division;
    use super::*;

    /// The fit that appendix C prints for the forward pass, in seconds and GiB. `BACKWARD` is the fit for the backward
    /// pass.
    const FORWARD: (Seconds, Bytes) = (
        Seconds { square: 9.37e-12, linear: 9.92e-7, constant: -3.51e-2 },
        Bytes { per_token: 1.45e-6, fixed: 8.42e-2 },
    );
    const BACKWARD: (Seconds, Bytes) = (
        Seconds { square: 2.38e-11, linear: 4.81e-7, constant: 8.84e-2 },
        Bytes { per_token: 2.88e-6, fixed: 1.36e-2 },
    );

    #[test]
    fn turning_points_are_those_of_the_paper() {
        let Extremum::Maximum(x) = serial(FORWARD.0) else { panic!("a maximum") };
        assert!((x - 70_766.0).abs() < 1.0, "{x}");
        let whole = Division::new(1e9, 7, 3);
        assert!((whole.level_of(x) - 11.28).abs() < 0.005);
        assert_eq!(parallel(FORWARD.0, FORWARD.1), Extremum::Rises);
        assert_eq!(serial(BACKWARD.0), Extremum::Falls);
        // The paper's 65,894 comes from coefficients with more digits than it prints.
        let Extremum::Minimum(x) = parallel(BACKWARD.0, BACKWARD.1) else { panic!("a minimum") };
        assert!((x / 65_894.0 - 1.0).abs() < 2e-3, "{x}");
        assert!((whole.level_of(x) - 11.36).abs() < 0.006);
    }

    #[test]
    fn turning_points_are_where_the_cost_turns() {
        let f = |t: Seconds, m: Bytes, x: f64| t.formula(x) * m.at(x) / (x * x);
        let least = |t: Seconds, m: Bytes, x: f64| [0.9, 1.1].iter().all(|by| f(t, m, by * x) > f(t, m, x));
        let most = |t: Seconds, m: Bytes, x: f64| [0.9, 1.1].iter().all(|by| f(t, m, by * x) < f(t, m, x));
        let (time, memory) = BACKWARD;
        let Extremum::Minimum(x) = parallel(time, memory) else { panic!("a minimum") };
        assert!(least(time, memory, x));
        let bent = Seconds { constant: -1e-3, ..time };
        let large = Bytes { fixed: 1.0, ..memory };
        let Extremum::Both { maximum, minimum } = parallel(bent, large) else { panic!("both") };
        assert!(maximum < minimum && most(bent, large, maximum) && least(bent, large, minimum));
        // The optimum is a plain square root if the cost has no constant term.
        let flat = Seconds { constant: 0.0, ..time };
        let Extremum::Minimum(x) = parallel(flat, memory) else { panic!("a minimum") };
        let expected = sqrt(flat.linear * memory.fixed / (flat.square * memory.per_token));
        assert!((x / expected - 1.0).abs() < 1e-9);
        assert_eq!(parallel(Seconds { square: 0.0, ..time }, memory), Extremum::Falls);
    }

    #[test]
    fn a_sound_fit_wants_the_largest_tasks() {
        for (a, b, c) in [(1e-11, 1e-6, 1e-2), (1e-11, 0.0, 1e-2), (1e-11, 1e-6, 0.0), (1e-11, 0.0, 0.0)] {
            assert_eq!(serial(Seconds { square: a, linear: b, constant: c }), Extremum::Falls);
        }
        assert_eq!(serial(Seconds { square: 1.0, linear: 0.0, constant: -1.0 }), Extremum::Rises);
        let Extremum::Minimum(x) = serial(Seconds { square: 1.0, linear: -2.0, constant: 3.0 }) else {
            panic!("a minimum")
        };
        assert_eq!(x, 3.0);
    }
}
