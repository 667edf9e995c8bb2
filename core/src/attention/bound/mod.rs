//! Bounds the error of a run.
//!
//! | module | from | when |
//! |---|---|---|
//! | [`prior`] | the plan and norms of the inputs | before a run, for its certificate |
//! | [`rounding`] | the probabilities and the answer of the f64 oracle | after a run, for verification |
//!
//! Both cover the dot product, the exponential, the accumulation and the merge tree as executed, and both take every constant
//! from [`Executed`], which is a function of the plan and of the table of kernels. `core/BOUNDS.md` derives them.
//!
//! [`Arithmetic::prior_frozen`], [`rounding::Row::frozen`] and [`rounding::Row::bounds_left_out`] cover runs with frozen
//! references and skipped blocks ([`super::traversal`]).

use super::certificate::Executed;
use super::problem::Problem;
use crate::dtype::DType;
use crate::state::{FROZEN_RANGE, HEADROOM, WEIGHT_FLOOR};

mod gate;
mod partials;
pub mod prior;
pub mod rounding;
mod score;

pub use prior::{Norms, Prior, left_out};
pub use score::Score;

/// Largest score, in base-2 units, for which the reference may be zero ([`Arithmetic::stays_near_zero`]).
pub const GATE: f64 = 48.0;

/// Fraction of components that may exceed a likely bound if its model holds.
pub const UNLIKELY: f64 = 1e-9;

/// `2 exp(−λ²/2) ≤ UNLIKELY`.
const LAMBDA: f64 = 6.55;

/// Unit roundoff of f32, in which scores and sums are computed.
const U: f64 = DType::F32.unit_roundoff();

/// Roundings of a score in addition to those of its dot product: the factor to base-2 units, its product with the query,
/// those of the cap, and the addition of mask and bias.
const SCALING: f64 = 5.0;

/// Roundings of mask and bias on their way into a score.
const ADDED: f64 = 5.0;

/// Largest loss of a subnormal sum of f16 values.
const HALF_SUBNORMAL: f64 = DType::F16.subnormal_roundoff();

/// Upper bound of the distance of a score above its reference, in natural-log units.
const ABOVE: f64 = 6.0;
const _: () = assert!((HEADROOM as f64 + 0.5) * core::f64::consts::LN_2 < ABOVE);

/// Upper bound of the distance of a score below its reference at which its weight is not lost, in natural-log units.
const LOWEST: f64 = 88.0;
const _: () = assert!(-WEIGHT_FLOOR as f64 * core::f64::consts::LN_2 < LOWEST);

/// A probability below this may be lost, `2^(WEIGHT_FLOOR + HEADROOM + 1)`.
const LOST: f64 = f64::from_bits(((1024 + WEIGHT_FLOOR as i64 + HEADROOM as i64) as u64) << 52);

/// A probability below this may be lost with a frozen reference, whose sum may be `2^-24`: `2^(24 + WEIGHT_FLOOR + 1)`.
const LOST_FROZEN: f64 = f64::from_bits(((1024 + WEIGHT_FLOOR as i64 + FROZEN_RANGE as i64) as u64) << 52);

/// Upper bound of `|ln S|` for a row with a frozen reference that the guard accepts, including the roundings of `S`.
pub const LN_RANGE: f64 = 17.0;
const _: () = assert!(FROZEN_RANGE as f64 * core::f64::consts::LN_2 + 0.3 < LN_RANGE);

/// Compensates for the roundings of the bounds themselves: fewer than a thousand operations in f64.
const OUTWARD: f64 = 1.0 + 1e-12;

/// Returns `γ_k = k u / (1 − k u)`; infinite if `k u` is 1 or more.
#[must_use]
pub(crate) fn gamma(k: f64) -> f64 {
    let x = k * U;
    if x < 1.0 { x / (1.0 - x) } else { f64::INFINITY }
}

/// Returns the largest relative error of the hyperbolic tangent of a soft cap, for an exponential that is off by
/// `exp2_relative`.
///
/// Beyond 0.6 kernels compute `(1 − e) / (1 + e)` or `1 − 2 / (1 + 1/e)` with `e = exp(−2 |x|)`. The error of `e` affects the
/// result by a factor of at most 0.7. Below 0.6 they use a polynomial.
#[must_use]
pub fn tangent(exp2_relative: f64) -> f64 {
    0.7 * exp2_relative + 6.0 * U
}

/// The arithmetic of a run, as far as its error depends on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arithmetic {
    /// Head size `d`, the number of terms of a score.
    pub head_dim: usize,
    /// Soft cap of the scores; zero if absent.
    pub softcap: f64,
    /// Factor from sums of products to scores.
    pub scale: f64,
    /// Factor of queries that yields scores in base-2 units, or arguments of the soft cap's tangent.
    pub factor: f32,
    /// Element type of inputs and output.
    pub dtype: DType,
    /// Structure of the plan and constants of its kernel.
    pub executed: Executed,
}

impl Arithmetic {
    /// Returns the arithmetic of a run of `problem` that executes `executed`.
    #[must_use]
    pub fn of(problem: &Problem, executed: Executed) -> Arithmetic {
        let spec = problem.spec();
        Arithmetic {
            head_dim: problem.head_dim(),
            softcap: spec.softcap.map_or(0.0, f64::from),
            scale: f64::from(problem.scale()),
            factor: problem.score_factors().0,
            dtype: spec.dtype,
            executed,
        }
    }

    /// Returns the largest number of roundings of a product, including its own, on its way into the sum of a score.
    fn product_roundings(&self) -> usize {
        let Executed { chain, chain_depth, .. } = self.executed;
        chain.saturating_add(chain_depth).min(self.head_dim)
    }

    /// Returns the size, in natural-log units, of the unit in which scores are computed.
    fn unit(&self) -> f64 {
        if self.softcap > 0.0 { self.softcap } else { core::f64::consts::LN_2 }
    }

    /// Returns the number of roundings of a weighted value in addition to those of the additions.
    fn value_roundings(&self) -> usize {
        1 + usize::from(self.executed.order.normalizes)
    }

    /// Returns the largest relative error of the hyperbolic tangent of a soft cap; zero without one.
    fn tangent(&self) -> f64 {
        if self.softcap > 0.0 { tangent(self.executed.exp2_relative) } else { 0.0 }
    }

    /// Returns the error that sums in f16 add to a score: relative to `Σ |q_c k_c|`, and absolute in natural-log units.
    fn in_halves(&self) -> (f64, f64) {
        if self.executed.half_chain == 0 {
            return (0.0, 0.0);
        }
        let x = self.executed.half_chain as f64 * DType::F16.unit_roundoff();
        let relative = if x < 1.0 { x / (1.0 - x) } else { f64::INFINITY };
        (relative, libm::fabs(self.scale) * self.head_dim as f64 * HALF_SUBNORMAL)
    }

    /// Returns the rounding to a 16-bit output type: relative, and half of the smallest positive number.
    fn rounded(&self) -> f64 {
        match self.dtype {
            DType::F32 => 0.0,
            DType::F16 | DType::Bf16 => self.dtype.unit_roundoff(),
        }
    }

    /// Returns the relative and the absolute roundings of division and output.
    fn output(&self) -> (f64, f64) {
        let rounded = self.rounded();
        let lost = if rounded > 0.0 { self.dtype.subnormal_roundoff() } else { 0.0 };
        (gamma(3.0) + rounded * (1.0 + gamma(3.0)), lost)
    }
}
