//! Bounds the error of a gradient.
//!
//! Let `u = 2^-24`, and let `A` be the exact sum of the absolute values of the terms of an element. For the element
//! `dq_i[x]`:
//!
//! ```text
//! A = |scale| Σ_j p_ij c_ij (Σ_y |do_iy| |v_jy| + Σ_y |do_iy| Σ_l p_il |v_ly|) |k_jx|
//! ```
//!
//! The parts of a term have these errors, to first order; `score`, `upstream`, `forward` and `additions` are fields of
//! [`Structure`]:
//!
//! ```text
//! score       δ  = (score + 8) u E + 4 u (E + |rest|)               E ≥ |scale| Σ_y |q_iy| |k_jy| + |mask| + |m|
//! probability    = 2 δ + 2 exp2 + (forward + 6) u                   its own score, those of S, the exponentials, S, 1/S
//! dp, D          = upstream u  and  2 δ + 2 exp2 + (forward + 6) u  for the output in D
//! ds c           = 4 u, and with a soft cap X 12 u + 4 δ max(1, 1/X) for c         products and difference
//! sum            = (additions + 4) u                                 with the last products, scale included
//! ```
//!
//! The error of `p` and the error of `o` affect the same term, and the error of that term is at most their sum. A
//! probability below the smallest normal number may be computed as zero. Such a zero changes an element by at most the
//! smallest normal number times the largest products that multiply a probability.

use crate::dtype::DType;

/// Properties on which the error of a backward run depends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Structure {
    /// Longest chain of multiply-adds in a score, plus the number of additions that join its chains.
    pub score: usize,
    /// Longest chain of multiply-adds in `⟨do_i, v_j⟩`, plus the number of additions that join its chains.
    pub upstream: usize,
    /// Largest number of additions that a term passes through on its way into a gradient.
    pub additions: usize,
    /// Largest number of additions that the weight of a key passes through on its way into a sum of the forward pass.
    pub forward: usize,
    /// Largest relative error of a weight.
    pub exp2_relative: f64,
    /// The soft cap of the scores, if they have one.
    pub softcap: Option<f32>,
}

impl Structure {
    /// Returns the largest error of an element of a gradient, relative to the sum of the absolute values of the element's
    /// terms. The result holds to first order in the unit roundoff. `largest` is the largest `|scale| Σ |q_x k_x|` plus the
    /// magnitudes of the mask and of the reference `m`, in natural-log units.
    #[must_use]
    pub fn bound(&self, largest: f64) -> f64 {
        let u = DType::F32.unit_roundoff();
        let score = (self.score as f64 + 8.0) * u * largest + 4.0 * u * (largest + 1.0);
        let probability = 2.0 * score + 2.0 * self.exp2_relative + (self.forward as f64 + 6.0) * u;
        // The error of the slope `c` depends on the error of the score, divided by the cap.
        let cap = self.softcap.map_or(0.0, |cap| 12.0 * u + 4.0 * score * f64::from(cap).recip().max(1.0));
        let products = (self.upstream as f64 + 4.0) * u + cap;
        2.0 * probability + products + (self.additions as f64 + 4.0) * u
    }
}
