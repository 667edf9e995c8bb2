//! Tracks the score of a query and a key through its partial sums.

use super::partials::Roundings;
use super::{Arithmetic, U, gamma};
use crate::dtype::DType;
use crate::scan::ceil_log2;

/// Upper bound of the f64 rounding errors made while tracking one product, relative to the product.
const F64_DUST: f64 = 1e-15;

/// Largest number of lanes whose chains are tracked.
const MOST_LANES: usize = 16;

/// Error of the score of a query and a key, in natural-log units. It excludes the errors of mask and bias, and the
/// error of subtracting the reference.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Score {
    /// Sum of the absolute terms of the score: `Σ_c |scale q_c k_c|`.
    pub magnitude: f64,
    /// Largest error of the score.
    pub worst: f64,
    /// Sum of the squared coefficients of the score's roundings, in units of `u²`.
    pub squares: f64,
    /// Change of the score caused by rounding the conversion factor and its products with the query. It is known
    /// exactly and included in `worst`.
    pub shift: f64,
    /// Other errors whose sign is not random.
    pub systematic: f64,
}

impl Score {
    /// Adds the error of a score whose operands are split. `reach` is `Σ_c |scale q_c| K_c`, where `K_c` is the largest magnitude of
    /// channel `c` of all keys of the sequence. Has no effect if operands are not split.
    #[must_use]
    pub fn split(self, arithmetic: &Arithmetic, reach: f64) -> Score {
        let missed = arithmetic.split_score() * reach + arithmetic.one_product() * self.magnitude;
        Score { worst: self.worst + missed, systematic: self.systematic + missed, ..self }
    }
}

impl Arithmetic {
    /// Tracks the score of a query and a key, both `[d]`. Each rounding is at most `u` times the largest power of two
    /// that does not exceed the rounded number. If operands are split, [`Score::split`] must follow.
    #[must_use]
    pub fn score(&self, query: &[f32], key: impl Fn(usize) -> f32) -> Score {
        let e = &self.executed;
        let unit = self.unit();
        let lanes = e.order.lanes;
        let followed = lanes > 0 && lanes <= MOST_LANES;
        let (lanes, chain) = (lanes.clamp(1, MOST_LANES), e.chain.max(1));
        let whole = query.len() / lanes * lanes;
        let steps = self.product_roundings();
        let k = steps as f64 + 2.0;
        let drift = gamma(k);
        let (mut products, mut sums) = (Roundings::default(), Roundings::default());
        // These sums are in the units in which scores are computed.
        let (mut magnitude, mut shift, mut keys) = (0.0, 0.0, 0.0);
        let (mut chains, mut total) = ([0.0; MOST_LANES], None);
        for (c, q) in query.iter().enumerate() {
            let (q, y) = (*q, f64::from(key(c)));
            let exact = f64::from(q) * y * self.scale / unit;
            let x = f64::from(q * self.factor) * y;
            keys += y.abs();
            magnitude += x.abs().max(exact.abs());
            shift += x - exact;
            products.count(binade(x, 0.0));
            if !followed {
                continue;
            }
            // Earlier roundings change the partial sums by at most this amount.
            let off = drift * magnitude;
            if c >= whole {
                // Dims after the last whole vector are multiplied and added one by one.
                sums.count(binade(x, 0.0));
                join(&mut total, x, off, &mut sums);
                continue;
            }
            let (lane, step) = (c % lanes, c / lanes % chain);
            chains[lane] += x;
            if e.fused || step > 0 {
                sums.count(binade(chains[lane], off));
            }
            if lane + 1 == lanes && (step + 1 == chain || c + 1 == whole) {
                let chains = &mut chains[..lanes];
                let all: f64 = chains.iter().map(|x| x.abs()).sum();
                sums.count_any(ceil_log2(lanes), all + off);
                join(&mut total, chains.iter().sum(), off, &mut sums);
                chains.fill(0.0);
            }
        }
        if !followed {
            sums = Roundings::default();
            sums.count_any(steps, magnitude);
        }
        if !e.fused {
            sums.worst += products.worst;
            sums.squares += products.squares;
        }
        let magnitude = unit * magnitude;
        let second = k * U * drift * magnitude;
        let (relative, subnormal) = self.in_halves();
        let halves = relative * (1.0 + drift) * magnitude + subnormal;
        // Products of 16-bit numbers may be scaled only after they are summed, so the shift is not known.
        let known = e.half_chain == 0 && !(e.split && self.dtype != DType::F32);
        let shift = if known { unit * shift } else { 0.0 };
        let factor = if known { query.len() as f64 * F64_DUST } else { gamma(2.0) } * magnitude;
        let underflow = f64::from(f32::MIN_POSITIVE) * unit * (keys + 2.0 * query.len() as f64);
        let worst = U * unit * sums.worst + shift.abs() + factor + second + halves + underflow;
        let ratio = DType::F16.unit_roundoff() / U;
        let of_halves = e.half_chain as f64 * (ratio * magnitude) * (ratio * magnitude)
            + (subnormal / U) * (subnormal / U);
        Score {
            magnitude,
            worst: if worst.is_nan() { f64::INFINITY } else { worst },
            squares: unit * unit * sums.squares + of_halves,
            shift,
            systematic: factor + underflow,
        }
    }
}

/// Returns the largest power of two that is at most `|x| + off`; zero for zero. Rounding a number whose magnitude is at
/// most `|x| + off` changes it by at most `u` times the returned power.
#[inline]
fn binade(x: f64, off: f64) -> f64 {
    let most = x.abs() + off;
    if most.is_finite() { f64::from_bits(most.to_bits() & f64::INFINITY.to_bits()) } else { most }
}

/// Adds the sum `x` of a chain, which is off by at most `off`, to the total, and counts the rounding. The first chain
/// becomes the total without an addition.
fn join(total: &mut Option<f64>, x: f64, off: f64, sums: &mut Roundings) {
    *total = Some(match *total {
        Some(total) => {
            sums.count(binade(total + x, off));
            total + x
        }
        None => x,
    });
}
