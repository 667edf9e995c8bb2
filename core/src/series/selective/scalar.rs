//! Computes the selective scan without an allocator, one channel after another.

use super::problem::{Inputs, MAX_STATES, Problem};
use crate::argument::ArgumentError;
use crate::series::bound::Precision;
use crate::series::functions::{exponent, grown, silu, softplus};
use crate::series::tensor::Outputs;
use crate::series::tensor::{kept, token_of, writes};

/// Accuracy of the functions that this module calls.
pub const PRECISION: Precision = Precision::LIBM;

/// Computes `problem` for `inputs` and writes the results to `outputs`. Uses a kilobyte of stack for the state of a
/// channel.
///
/// # Errors
/// Returns an error if the data do not match the problem; nothing has then been written.
pub fn run(problem: &Problem, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<(), ArgumentError> {
    problem.check_data(inputs, outputs)?;
    let shape = [problem.batch(), problem.tokens(), problem.channels()];
    let states = if outputs.present_state.is_some() { problem.state_values() } else { 0 };
    if !writes(shape, outputs.out.is_some(), states) {
        return Ok(());
    }
    let (s, n, channels) = (problem.spec(), problem.states(), problem.channels());
    let mut room = [0.0; MAX_STATES];
    let x = &mut room[..n];
    for batch in 0..problem.batch() {
        for channel in 0..channels {
            let place = (batch * channels + channel) * n;
            match (&outputs.present_state, inputs.past_state) {
                (Some(present), _) if s.in_place => x.copy_from_slice(&present[place..place + n]),
                (_, Some(past)) => x.copy_from_slice(&past[place..place + n]),
                _ => x.fill(0.0),
            }
            let bias = inputs.delta_bias.map_or(0.0, |bias| bias[channel]);
            let skip = inputs.d.map_or(0.0, |d| d[channel]);
            for step in 0..problem.tokens() {
                let token = token_of(step, problem.tokens(), s.reverse);
                let at = [batch, token, channel];
                let u = inputs.u.get(s.u.at(batch, token, channel));
                let raw = inputs.delta.get(s.delta.at(batch, token, channel)) + bias;
                let delta = if s.softplus { softplus(raw) } else { raw };
                let mut y = 0.0;
                for (n, x) in x.iter_mut().enumerate() {
                    let rate = inputs.a[channel * problem.states() + n];
                    let (a, grows) = grown(exponent(delta, raw, s.softplus, rate), *x);
                    let b = inputs.b.get(problem.coefficient(&s.b, at, n));
                    let c = inputs.c.get(problem.coefficient(&s.c, at, n));
                    let next = a * kept(a, grows) + delta * u * b;
                    *x = kept(next, next);
                    y += c * *x;
                }
                if inputs.d.is_some() {
                    y += skip * u;
                }
                if let (Some(view), Some(z)) = (&s.z, &inputs.z) {
                    y *= silu(z.get(view.at(batch, token, channel)));
                }
                if let Some(out) = &mut outputs.out {
                    out.set(s.out.at(batch, token, channel), y);
                }
            }
            if let Some(present) = &mut outputs.present_state {
                present[place..place + n].copy_from_slice(x);
            }
        }
    }
    Ok(())
}
