//! Bounds the error of a run.
//!
//! | module | computes bounds from | used |
//! |---|---|---|
//! | [`prior`] | the plan and norms of the inputs | before a run, for its certificate |
//! | [`rounding`] | the probabilities and the result of the f64 oracle | after a run, for verification |
//!
//! Both modules cover the dot product, the exponential, the accumulation and the merge tree as executed. They use the
//! constants of [`Executed`], which is a function of the plan and of the table of kernels. `core/BOUNDS.md` derives the
//! bounds.
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
pub mod split;

pub use prior::{Norms, Prior, left_out};
pub use score::Score;

/// Largest magnitude of a score, in base-2 units, for which the reference may be zero ([`Arithmetic::stays_near_zero`]).
pub const GATE: f64 = 48.0;

/// Largest fraction of output components that may exceed a likely bound, provided that the bound's model of roundings
/// holds.
pub const UNLIKELY: f64 = 1e-9;

/// Deviation `λ` of the Azuma–Hoeffding inequality, chosen so that `2 exp(−λ²/2) ≤ UNLIKELY`.
const LAMBDA: f64 = 6.55;

/// Unit roundoff of f32, in which scores and sums are computed.
const U: f64 = DType::F32.unit_roundoff();

/// Largest error that splits add to a score, in units of [`U`]: the limit of the guard of the kernels, and its own roundings.
const SPLIT_SCORE: f64 = 12.01;
/// Largest residual of a value, in units of [`U`]: the limit of the guard, and its own roundings.
const SPLIT_VALUE: f64 = 32.01;
/// Residual of a weight, 2^-22, and the product of second parts, at most 2^-22 of the product, in units of [`U`].
const SPLIT_WEIGHT: f64 = 8.01;
/// Residual of a weight that is tiny relative to the sum: half of the smallest f16 number, relative to 2^14, because a reference
/// exceeds the largest score by less than one.
const SPLIT_FLOOR: f64 = 1.0 / (1u64 << 39) as f64;
/// Relative error of a product of two operands that are rounded to one f16 value each.
const ONE_PRODUCT: f64 = (1.0 + ROUNDED) * (1.0 + ROUNDED) - 1.0;
const ROUNDED: f64 = DType::F16.unit_roundoff();

/// Number of roundings of a score in addition to those of its dot product. These are the roundings of the conversion
/// factor to base-2 units, of the product of this factor and the query, of the soft cap, and of the addition of mask
/// and bias.
const SCALING: f64 = 5.0;

/// Number of roundings of mask and bias before they are part of a score.
const ADDED: f64 = 5.0;

/// Largest underflow error of a sum of f16 values.
const HALF_SUBNORMAL: f64 = DType::F16.subnormal_roundoff();

/// Largest distance by which a score exceeds its reference, in natural-log units, rounded up.
const ABOVE: f64 = 6.0;
const _: () = assert!((HEADROOM as f64 + 0.5) * core::f64::consts::LN_2 < ABOVE);

/// Largest distance by which a score may be below its reference without losing its weight, in natural-log units,
/// rounded up.
const LOWEST: f64 = 88.0;
const _: () = assert!(-WEIGHT_FLOOR as f64 * core::f64::consts::LN_2 < LOWEST);

/// Probability below which a weight may be lost: `2^(WEIGHT_FLOOR + HEADROOM + 1)`.
const LOST: f64 = f64::from_bits(((1024 + WEIGHT_FLOOR as i64 + HEADROOM as i64) as u64) << 52);

/// Probability below which a weight may be lost if the reference is frozen: `2^(24 + WEIGHT_FLOOR + 1)`. The sum `S` of a
/// row with a frozen reference may be as small as `2^-24`.
const LOST_FROZEN: f64 = f64::from_bits(((1024 + WEIGHT_FLOOR as i64 + FROZEN_RANGE as i64) as u64) << 52);

/// Upper bound of `|ln S|`, including the roundings of `S`, for a row that has a frozen reference and that the
/// [guard](super::traversal::guard) accepts.
pub const LN_RANGE: f64 = 17.0;
const _: () = assert!(FROZEN_RANGE as f64 * core::f64::consts::LN_2 + 0.3 < LN_RANGE);

/// Factor that compensates for the roundings of the bounds themselves. A bound takes fewer than a thousand operations
/// in f64.
const OUTWARD: f64 = 1.0 + 1e-12;

/// Returns `γ_k = k u / (1 − k u)`; infinite if `k u` is 1 or more.
#[must_use]
pub(crate) fn gamma(k: f64) -> f64 {
    let x = k * U;
    if x < 1.0 { x / (1.0 - x) } else { f64::INFINITY }
}

/// Returns the largest relative error of the hyperbolic tangent of a soft cap. `exp2_relative` is the relative error of
/// the exponential.
///
/// For `|x| > 0.6`, kernels compute `(1 − e) / (1 + e)` or `1 − 2 / (1 + 1/e)` with `e = exp(−2 |x|)`. The relative
/// error of the result is at most 0.7 times that of `e`. For smaller arguments kernels use a polynomial.
#[must_use]
pub fn tangent(exp2_relative: f64) -> f64 {
    0.7 * exp2_relative + 6.0 * U
}

/// Properties of the arithmetic of a run that determine the error of the run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arithmetic {
    /// Head size `d`, the number of terms of a score.
    pub head_dim: usize,
    /// Soft cap of the scores; zero if absent.
    pub softcap: f64,
    /// Factor that converts dot products of queries and keys to scores.
    pub scale: f64,
    /// Factor applied to queries so that dot products are scores in base-2 units, or arguments of the soft cap's tangent.
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

    /// Returns the largest number of roundings of a product on its way into a score, including the rounding of the
    /// product.
    fn product_roundings(&self) -> usize {
        let Executed { chain, chain_depth, split, .. } = self.executed;
        let longest = chain.saturating_add(chain_depth);
        // A Tensor Core truncates each of the numbers that it adds.
        if split { longest } else { longest.min(self.head_dim) }
    }

    /// Returns the relative error of a product of two operands, if they are rounded to one f16 value each; zero otherwise.
    fn one_product(&self) -> f64 {
        if self.executed.one_product { ONE_PRODUCT } else { 0.0 }
    }

    /// Returns the error that splits add to a score, relative to `Σ_c |scale q_c| K_c`, where `K_c` is the largest magnitude of
    /// channel `c` of the keys. Zero if operands are not split.
    fn split_score(&self) -> f64 {
        if self.executed.split { SPLIT_SCORE * U } else { 0.0 }
    }

    /// Returns two errors that splits add to a weighted average of values. The first is relative to `Σ p |v|`, and the second to
    /// the largest magnitude of the channel of the values. Both are zero if operands are not split.
    fn split_values(&self, keys: f64) -> (f64, f64) {
        let of_values = SPLIT_VALUE * U + keys * SPLIT_FLOOR;
        match self.executed {
            Executed { one_product: true, .. } => (ONE_PRODUCT, of_values * (1.0 + ROUNDED)),
            Executed { split: true, .. } => (SPLIT_WEIGHT * U, of_values),
            _ => (0.0, 0.0),
        }
    }

    /// Returns the unit in which scores are computed, in natural-log units: the soft cap, or `ln 2` if there is no soft
    /// cap.
    fn unit(&self) -> f64 {
        if self.softcap > 0.0 { self.softcap } else { core::f64::consts::LN_2 }
    }

    /// Returns the number of roundings of a weighted value, excluding the roundings of additions.
    fn value_roundings(&self) -> usize {
        1 + usize::from(self.executed.order.normalizes)
    }

    /// Returns the largest relative error of the hyperbolic tangent of the soft cap; zero if there is no soft cap.
    fn tangent(&self) -> f64 {
        if self.softcap > 0.0 { tangent(self.executed.exp2_relative) } else { 0.0 }
    }

    /// Returns two errors that sums in f16 add to a score. The first is relative to `Σ |q_c k_c|`, and the second is
    /// absolute, in natural-log units.
    fn in_halves(&self) -> (f64, f64) {
        if self.executed.half_chain == 0 {
            return (0.0, 0.0);
        }
        let x = self.executed.half_chain as f64 * DType::F16.unit_roundoff();
        let relative = if x < 1.0 { x / (1.0 - x) } else { f64::INFINITY };
        (relative, libm::fabs(self.scale) * self.head_dim as f64 * HALF_SUBNORMAL)
    }

    /// Returns the unit roundoff of a 16-bit output type; zero for f32.
    fn rounded(&self) -> f64 {
        match self.dtype {
            DType::F32 => 0.0,
            DType::F16 | DType::Bf16 => self.dtype.unit_roundoff(),
        }
    }

    /// Returns the relative and the absolute rounding error of the division and of the conversion to the output type.
    fn output(&self) -> (f64, f64) {
        let rounded = self.rounded();
        let lost = if rounded > 0.0 { self.dtype.subnormal_roundoff() } else { 0.0 };
        (gamma(3.0) + rounded * (1.0 + gamma(3.0)), lost)
    }
}
