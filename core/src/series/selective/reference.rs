//! Computes the selective scan in f64 as the oracle, and bounds the error of a run relative to it.
//!
//! The bound is propagated from token to token. Let `u = 2^-24`, and let `ε`, `σ` and `ζ` be the largest relative
//! errors of the exponential, of softplus and of silu, and `p u` that of the product `δ A`. Then
//!
//! ```text
//! δ      e_δ = s u |delta + bias| + σ δ                          s: slope of softplus; without it u |delta + bias|
//! a      e_a = a (exp(|A| e_δ + p u |δ A| + ε) − 1)
//! x      e_x = a e_x + e_a (|x| + e_x) + |B u| e_δ + 2 u |δ B u| + 2 u X + 2^-124 (1 + max X)
//! y      e_y = Σ |C| e_x + (N + 2) u (Σ |C| X + |d u|)
//! out    silu(z) e_y + (ζ + u) |silu(z)| (|y| + e_y) + 2^-126 |z| (|y| + e_y)
//! ```
//!
//! where `X_t = a X_{t−1} + |δ B u|` is the recurrence of absolute values. The bound of `e_a` is also valid for large
//! `|δ A|`, where rounding the product `δ A` alone changes the exponential by many units in the last place.
//!
//! In two levels, the factor of a part is a product with one rounding per token. In addition to the products and sums
//! of its tokens, the state after a part requires one product and one sum. No path therefore has more than two
//! roundings per token, which `2 u X` counts.

use super::problem::{Inputs, MAX_STATES, Problem};
use crate::dtype::DType;
use crate::series::bound::{Judged, Precision, in_range, rounded, tiny};
use crate::series::functions::{MOST_LOG, gate_f64, sigmoid_f64, softplus_f64};
use crate::series::tensor::{TINY, token_of};

/// One value of a state: the value, its error, the recurrence of absolute values, and the largest value of that
/// recurrence.
#[derive(Clone, Copy, Default)]
struct SelectiveEntry {
    x: f64,
    error: f64,
    absolute: f64,
    largest: f64,
}

/// The time step of a token, the error of the time step, and the token's input.
struct Step {
    delta: f64,
    error: f64,
    u: f64,
}

impl SelectiveEntry {
    /// Updates the value by a token with rate `a` and input coefficient `b`.
    fn step(&mut self, step: &Step, a: f64, b: f64, precision: &Precision) {
        let (u, delta) = (DType::F32.unit_roundoff(), step.delta);
        let factor = gate_f64(delta * a);
        let added = delta * b * step.u;
        let mut error = libm::fabs(b * step.u) * step.error + 2.0 * u * libm::fabs(added);
        if factor < f64::from(TINY) {
            if delta * a != f64::NEG_INFINITY && self.largest.is_finite() {
                error += tiny(self.largest);
            }
            *self =
                SelectiveEntry { x: added, error, absolute: libm::fabs(added), largest: libm::fabs(added) };
        } else {
            let mut exponent =
                libm::fabs(a) * step.error + precision.exponent * u * libm::fabs(delta * a) + precision.exp;
            if delta * a > f64::from(MOST_LOG) {
                // A factor beyond the range of f32 is applied as two factors `e^(x/2)`, which adds an exponential and a
                // rounding.
                exponent += precision.exp + 2.0 * u;
            }
            let off = factor * libm::expm1(exponent);
            error += factor * self.error + off * (self.absolute + self.error);
            self.x = factor * self.x + added;
            self.absolute = factor * self.absolute + libm::fabs(added);
            self.largest = self.largest.max(self.absolute);
            self.error = error;
        }
        self.error = in_range(self.error + 2.0 * u * self.absolute + tiny(self.largest), self.absolute);
    }
}

/// Computes the exact output of a channel at each token, in the order of the pass, and calls `visit` with the token and the
/// output. Writes the channel's states after the last token to `last`. The inputs must have passed [`Problem::check_data`].
/// `past` contains the states of the channel before the first token of the pass; if `past` is empty, these states are
/// zeros. `dtype` is the type to which a run rounds its outputs.
///
/// # Panics
/// Panics if `batch` or `channel` is out of bounds.
pub fn outputs(
    problem: &Problem,
    inputs: &Inputs<'_>,
    past: &[f32],
    precision: &Precision,
    dtype: DType,
    [batch, channel]: [usize; 2],
    last: &mut [Judged],
    mut visit: impl FnMut(usize, Judged),
) {
    let s = problem.spec();
    let u = DType::F32.unit_roundoff();
    let mut room = [SelectiveEntry::default(); MAX_STATES];
    let states = &mut room[..problem.states()];
    for (state, past) in states.iter_mut().zip(past) {
        let x = f64::from(*past);
        *state = SelectiveEntry { x, error: 0.0, absolute: libm::fabs(x), largest: libm::fabs(x) };
    }
    let bias = inputs.delta_bias.map_or(0.0, |bias| f64::from(bias[channel]));
    for number in 0..problem.tokens() {
        let token = token_of(number, problem.tokens(), s.reverse);
        let at = [batch, token, channel];
        let raw = f64::from(inputs.delta.get(s.delta.at(batch, token, channel))) + bias;
        let input = f64::from(inputs.u.get(s.u.at(batch, token, channel)));
        let step = if s.softplus {
            let delta = softplus_f64(raw);
            let error = sigmoid_f64(raw) * u * libm::fabs(raw) + precision.softplus * delta;
            Step { delta, error: error + f64::from(TINY), u: input }
        } else {
            Step { delta: raw, error: u * libm::fabs(raw), u: input }
        };
        let [mut y, mut error, mut absolute] = [0.0; 3];
        for (n, state) in states.iter_mut().enumerate() {
            let a = f64::from(inputs.a[channel * problem.states() + n]);
            let b = f64::from(inputs.b.get(problem.coefficient(&s.b, at, n)));
            let c = f64::from(inputs.c.get(problem.coefficient(&s.c, at, n)));
            state.step(&step, a, b, precision);
            y += c * state.x;
            error += libm::fabs(c) * state.error;
            absolute += libm::fabs(c) * state.absolute;
        }
        if let Some(d) = inputs.d {
            let skip = f64::from(d[channel]) * input;
            y += skip;
            absolute += libm::fabs(skip);
        }
        error += (problem.states() as f64 + 2.0) * u * absolute;
        error = in_range(error, absolute);
        if let (Some(view), Some(z)) = (&s.z, &inputs.z) {
            let z = f64::from(z.get(view.at(batch, token, channel)));
            let gate = z * sigmoid_f64(z);
            let most = libm::fabs(y) + error;
            let lost = f64::from(TINY) * libm::fabs(z) * most;
            error = libm::fabs(gate) * (error + (precision.silu + u) * most) + lost;
            y *= gate;
        }
        visit(token, rounded(Judged { value: y, bound: error + f64::from(TINY) }, dtype));
    }
    for (last, state) in last.iter_mut().zip(states) {
        *last = rounded(Judged { value: state.x, bound: state.error }, DType::F32);
    }
}
