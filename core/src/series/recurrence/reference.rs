//! Computes the recurrence in f64 as the oracle, and bounds the error of a run relative to it.
//!
//! Let `u = 2^-24`, let `ε` be the relative error of the exponential if gates are logarithms, and let
//! `H_t = |a_t| H_{t−1} + |b_t|` be the recurrence of absolute values. To first order the error of `h_t` is at most
//!
//! ```text
//! E_t = |a_t| E_{t−1} + (ε + 4 u) |a_t| H_{t−1} + u H_t + 2^-124 (1 + max H)
//! ```
//!
//! A step rounds a product and a sum. In two levels, the factor of a part is the product of the factors of its tokens,
//! with one rounding per token. Computing the state before a part requires one product and one sum. No path therefore
//! has more than four roundings per token. If a scan combines the maps of the tokens in a tree of depth `D`, it adds
//! `D u H_t` to the error. The last term is the total effect of states and factors that are treated as zero.

use super::problem::{Gate, Inputs, Problem};
use crate::dtype::DType;
use crate::series::bound::{Judged, Precision, in_range, rounded, tiny};
use crate::series::functions::{MOST_LOG, gate_f64};
use crate::series::tensor::{TINY, token_of};

/// Computes the exact states of a channel after each token, in the order of the pass, and calls `visit` with the token and
/// the state. The inputs must have passed [`Problem::check_data`]. `past` is the state before the first token of the pass.
/// `dtype` is the type to which a run rounds its outputs.
///
/// # Panics
/// Panics if `batch` or `channel` is out of bounds.
pub fn states(
    problem: &Problem,
    inputs: &Inputs<'_>,
    past: f32,
    precision: &Precision,
    dtype: DType,
    [batch, channel]: [usize; 2],
    mut visit: impl FnMut(usize, Judged),
) {
    let s = problem.spec();
    let u = DType::F32.unit_roundoff();
    let (mut h, mut error) = (f64::from(past), 0.0);
    let mut absolute = h.abs();
    let mut largest = absolute;
    for step in 0..problem.tokens() {
        let token = token_of(step, problem.tokens(), s.reverse);
        let gate = f64::from(inputs.a.get(s.a.at(batch, token, channel)));
        let b = f64::from(inputs.b.get(s.b.at(batch, token, channel)));
        let (a, exp) = match s.gate {
            Gate::Factor => (gate, 0.0),
            // A factor beyond the range of f32 is applied as two factors `e^(x/2)`, which adds an exponential and a
            // rounding.
            Gate::Log if gate > f64::from(MOST_LOG) => (gate_f64(gate), 2.0 * precision.exp + 2.0 * u),
            Gate::Log => (gate_f64(gate), precision.exp),
        };
        if a.abs() < f64::from(TINY) {
            // A factor of exactly zero clears the state without an error.
            let exact = a == 0.0 && (s.gate == Gate::Factor || gate == f64::NEG_INFINITY);
            let lost = if exact || !largest.is_finite() { 0.0 } else { tiny(largest) };
            (h, absolute, error, largest) = (b, b.abs(), lost, b.abs());
        } else {
            h = a * h + b;
            let product = a.abs() * absolute;
            absolute = product + b.abs();
            error = a.abs() * error + (exp + 4.0 * u) * product;
            largest = largest.max(absolute);
        }
        error = in_range(error + u * absolute + tiny(largest), absolute);
        visit(token, rounded(Judged { value: h, bound: error }, dtype));
    }
}
