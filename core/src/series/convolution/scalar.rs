//! Computes the direct convolution without an allocator, one channel after another.

use super::problem::{Inputs, Problem};
use crate::argument::ArgumentError;
use crate::series::bound::Precision;
use crate::series::functions::silu;
use crate::series::tensor::Outputs;
use crate::series::tensor::{token_of, writes};

/// Accuracy of the functions that this module calls.
pub const PRECISION: Precision = Precision::LIBM;

/// Computes `problem` for `inputs` and writes the results to `outputs`.
///
/// # Errors
/// Returns an error if the data do not match the problem; nothing has then been written.
pub fn run(problem: &Problem, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<(), ArgumentError> {
    problem.check_data(inputs, outputs)?;
    let shape = [problem.batch(), problem.tokens(), problem.channels()];
    let states = if outputs.present_state.is_some() { problem.states() } else { 0 };
    if !writes(shape, outputs.out.is_some(), states) {
        return Ok(());
    }
    let (s, tokens, history) = (problem.spec(), problem.tokens(), problem.history());
    for batch in 0..problem.batch() {
        for channel in 0..problem.channels() {
            let place = (batch * problem.channels() + channel) * history;
            let input = |step: usize| inputs.u.get(s.u.at(batch, token_of(step, tokens, s.reverse), channel));
            if let Some(out) = &mut outputs.out {
                let present = outputs.present_state.as_deref().filter(|_| s.in_place);
                let past = present.or(inputs.past_state);
                for step in 0..tokens {
                    let mut sum = 0.0;
                    for back in 0..problem.taps() {
                        let x = match (step.checked_sub(back), past) {
                            (Some(step), _) => input(step),
                            (None, Some(past)) => past[place + history + step - back],
                            (None, None) => break,
                        };
                        sum += inputs.filter[problem.weight(channel, back)] * x;
                    }
                    let sum = inputs.bias.map_or(sum, |bias| sum + bias[channel]);
                    let token = token_of(step, tokens, s.reverse);
                    out.set(s.out.at(batch, token, channel), if s.silu { silu(sum) } else { sum });
                }
            }
            if let Some(present) = &mut outputs.present_state {
                let present = &mut present[place..place + history];
                // Inputs that stay in the state move towards its oldest end, and new inputs follow them.
                let new = tokens.min(history);
                match inputs.past_state {
                    _ if s.in_place => present.copy_within(new.., 0),
                    Some(past) => {
                        present[..history - new].copy_from_slice(&past[place + new..place + history]);
                    }
                    None => present[..history - new].fill(0.0),
                }
                for (i, x) in present[history - new..].iter_mut().enumerate() {
                    *x = input(tokens - new + i);
                }
            }
        }
    }
    Ok(())
}
