//! Computes the convolution in f64 as the oracle, and bounds the error of a run relative to it.
//!
//! With `u = 2^-24`, and `n` the number of products,
//!
//! ```text
//! direct   e = (n + 1) u Σ |α_k| |u_{t−k}|
//! FFT      e = 40 log2(N) 2^-53 ‖α‖₁ ‖u‖₂ + 2 u |o_t|         norms of the filter, and of all inputs and the past;
//!                                                            with a bias, also 2 u times the sum without it
//! silu     1.1 e + (ζ + u) |silu(o_t)| + 2^-126 |o_t|         where 1.1 bounds the slope of silu, and ζ its error
//! ```
//!
//! An FFT of length `N` in f64 has an error of at most `η log2(N)` times the 2-norm of its result, with
//! `η < 10 · 2^-53` for accurate weights (Higham, *Accuracy and Stability of Numerical Algorithms*, theorem 24.2). The
//! errors of the two spectra contribute `2 η log2(N) ‖α‖₂ ‖u‖₂` to an output, by the Cauchy-Schwarz inequality. The
//! error of the inverse FFT contributes `η log2(N)` times the 2-norm of all outputs, which is at most `‖α‖₁ ‖u‖₂`
//! (Young). The products of the spectra add a small multiple of `2^-53`.

use super::problem::{Inputs, Method, Problem, fft_length};
use crate::dtype::DType;
use crate::series::bound::{Judged, Precision, in_range, rounded};
use crate::series::functions::sigmoid_f64;
use crate::series::tensor::{TINY, token_of};

/// Computes the exact output of a channel at each token, in the order of the pass, and calls `visit` with the token and the
/// output. The inputs must have passed [`Problem::check_data`]. `past` contains the `K − 1` inputs of the channel before
/// the first token of the pass; if `past` is empty, these inputs are zeros. `dtype` is the type to which a run rounds its
/// outputs.
///
/// # Panics
/// Panics if `batch` or `channel` is out of bounds.
pub fn outputs(
    problem: &Problem,
    inputs: &Inputs<'_>,
    past: &[f32],
    method: Method,
    precision: &Precision,
    dtype: DType,
    [batch, channel]: [usize; 2],
    mut visit: impl FnMut(usize, Judged),
) {
    let (s, tokens) = (problem.spec(), problem.tokens());
    let u = DType::F32.unit_roundoff();
    let input =
        |step: usize| f64::from(inputs.u.get(s.u.at(batch, token_of(step, tokens, s.reverse), channel)));
    let weight = |back: usize| f64::from(inputs.filter[problem.weight(channel, back)]);
    let filter: f64 = (0..problem.taps()).map(|back| libm::fabs(weight(back))).sum();
    let signal: f64 = (0..tokens).map(input).chain(past.iter().map(|x| f64::from(*x))).map(|x| x * x).sum();
    let length = fft_length(tokens, problem.taps()) as f64;
    let spectra = 40.0 * libm::log2(length) * (f64::EPSILON / 2.0) * filter * libm::sqrt(signal);
    for step in 0..tokens {
        let [mut sum, mut absolute] = [0.0; 2];
        let mut products = 0;
        for back in 0..problem.taps() {
            let x = match step.checked_sub(back) {
                Some(step) => input(step),
                None => match past.get((past.len() + step).wrapping_sub(back)) {
                    Some(x) => f64::from(*x),
                    None => break,
                },
            };
            let term = weight(back) * x;
            (sum, absolute, products) = (sum + term, absolute + libm::fabs(term), products + 1);
        }
        let products_alone = libm::fabs(sum);
        if let Some(bias) = inputs.bias {
            let bias = f64::from(bias[channel]);
            (sum, absolute, products) = (sum + bias, absolute + libm::fabs(bias), products + 1);
        }
        let mut error = match method {
            Method::Direct => f64::from(products + 1) * u * absolute,
            Method::Fft => spectra + 2.0 * u * (products_alone + libm::fabs(sum)),
        };
        error = in_range(error, absolute);
        if s.silu {
            let value = sum * sigmoid_f64(sum);
            error =
                1.1 * error + (precision.silu + u) * libm::fabs(value) + f64::from(TINY) * libm::fabs(sum);
            sum = value;
        }
        visit(token_of(step, tokens, s.reverse), rounded(Judged { value: sum, bound: error }, dtype));
    }
}
