//! The norm gate: tests whether all scores are so close to zero that zero may be the reference of every row.
//!
//! By the Cauchy–Schwarz inequality, no score and no partial sum of a score exceeds `R = |scale| ‖q‖ ‖k‖` in magnitude. A
//! soft cap `X` limits the magnitude of scores to `X`. Mask and bias change a score by at most `b`. The gate requires
//! `r = (min(R, X) + b) log2 e ≤ 48`, in base-2 units. The magnitude of a computed score is at most `r (1 + γ) < 49`. If the
//! reference is zero, this implies
//!
//! ```text
//! 2^-49 ≤ w_j ≤ 2^49      2^-49 ≤ S ≤ n 2^49      |W| ≤ n 2^49 max |v|
//! ```
//!
//! No weight of an attended key vanishes, no exponent is clamped, every exponential is defined, and no sum overflows as
//! long as `n 2^50 max(1, |v|)` is finite. So the maximum, the clamp and the subtraction can be omitted: the exponent
//! is the score itself, and subtracting zero would not round anyway. A product `w v` that underflows is off by
//! `2^-150`, which is `2^-101` relative to `S`; [`Row::frozen`](super::rounding::Row::frozen) includes this error. A
//! masked key has weight zero by selection, as in all kernels.

use super::{ADDED, Arithmetic, GATE, Norms, SCALING, gamma};
use core::f64::consts::LOG2_E;

impl Arithmetic {
    /// Returns `true` if zero may be the reference of every row. This is the case if two conditions follow from `norms`:
    /// the magnitude of every score is at most [`GATE`], and weighted sums do not overflow for at most `keys` keys per row
    /// and values of at most the magnitude `value`. Returns `false` for NaN, and for kernels that sum scores in f16.
    #[must_use]
    pub fn stays_near_zero(&self, keys: usize, norms: &Norms, value: f64) -> bool {
        let Norms { query, key, bias } = *norms;
        let products = libm::fabs(self.scale) * query * key;
        // `f64::min` would replace a NaN by the cap.
        let capped = if self.softcap > 0.0 && products > self.softcap { self.softcap } else { products };
        let reach = (capped + bias) * LOG2_E * (1.0 + 1e-12);
        // A soft cap limits only the final score, so the partial sums before it must stay finite as well.
        let sums = 2.0 * query * key * libm::fabs(f64::from(self.factor)).max(1.0);
        let roundings = self.product_roundings() as f64 + SCALING + ADDED;
        let largest = keys as f64 * libm::exp2(GATE + 2.0) * if value > 1.0 { value } else { 1.0 };
        let known = query >= 0.0 && key >= 0.0 && bias >= 0.0 && value >= 0.0;
        known
            && reach <= GATE
            && sums < f64::from(f32::MAX)
            && GATE * gamma(roundings) < 0.5
            && largest < f64::from(f32::MAX)
            && self.executed.half_chain == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::certificate::{Executed, Order};
    use crate::dtype::DType;

    const PLAIN: Arithmetic = Arithmetic {
        head_dim: 64,
        softcap: 0.0,
        scale: core::f64::consts::LN_2,
        factor: 1.0,
        dtype: DType::F32,
        executed: Executed {
            kernel: "some",
            block: 64,
            segment_blocks: 8,
            merge_depth: 1,
            additions: 72,
            into_s: 71,
            into_w: 72,
            chain: 64,
            chain_depth: 0,
            fused: true,
            exp2_relative: 1.5e-7,
            half_chain: 0,
            split: false,
            one_product: false,
            order: Order::ANY,
        },
    };
    const NORMS: Norms = Norms { query: 6.0, key: 7.9, bias: 0.0 };

    fn open(arithmetic: &Arithmetic, norms: &Norms) -> bool {
        arithmetic.stays_near_zero(1024, norms, 1.0)
    }

    #[test]
    fn the_gate_is_open_up_to_its_limit() {
        assert!(open(&PLAIN, &NORMS));
        assert!(!open(&PLAIN, &Norms { key: 8.01, ..NORMS }));
        assert!(open(&PLAIN, &Norms { bias: 0.4, ..NORMS }) && !open(&PLAIN, &Norms { bias: 0.5, ..NORMS }));
        assert!(!open(&Arithmetic { scale: -0.75, ..PLAIN }, &NORMS));
        // A soft cap of 30 opens the gate as long as sums of products stay finite in f32.
        let far = Norms { query: 1e9, key: 1e9, bias: 0.0 };
        assert!(open(&Arithmetic { softcap: 30.0, ..PLAIN }, &far) && !open(&PLAIN, &far));
        assert!(!open(&Arithmetic { softcap: 34.0, ..PLAIN }, &far));
        assert!(!open(&Arithmetic { softcap: 30.0, ..PLAIN }, &Norms { query: 1e30, ..far }));
    }

    #[test]
    fn values_need_room() {
        for (keys, value, held) in
            [(1024, 1e20, true), (1024, 1e21, false), (1 << 40, 1e11, true), (1 << 40, 1e12, false)]
        {
            assert_eq!(PLAIN.stays_near_zero(keys, &NORMS, value), held, "{keys} {value}");
        }
    }

    #[test]
    fn what_is_not_known_keeps_it_shut() {
        for bad in [f64::NAN, f64::INFINITY, -1.0] {
            for norms in
                [Norms { query: bad, ..NORMS }, Norms { key: bad, ..NORMS }, Norms { bias: bad, ..NORMS }]
            {
                for softcap in [0.0, 30.0] {
                    assert!(!open(&Arithmetic { softcap, ..PLAIN }, &norms), "{norms:?} {softcap}");
                }
            }
            assert!(!PLAIN.stays_near_zero(1024, &NORMS, bad));
        }
        // Zero times infinity is NaN.
        assert!(!open(&PLAIN, &Norms { query: 0.0, key: f64::INFINITY, bias: 0.0 }));
        let mut halves = PLAIN;
        halves.executed.half_chain = 16;
        assert!(!open(&halves, &NORMS));
        let long = Arithmetic {
            head_dim: 1 << 20,
            executed: Executed { chain: 1 << 20, ..PLAIN.executed },
            ..PLAIN
        };
        assert!(!open(&long, &NORMS));
    }
}
