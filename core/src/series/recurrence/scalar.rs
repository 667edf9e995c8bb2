//! Computes the recurrence without an allocator, one channel after another.

use super::map::Map;
use super::problem::{Gate, Inputs, Problem};
use crate::argument::ArgumentError;
use crate::series::bound::Precision;
use crate::series::functions::grown;
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
    let s = problem.spec();
    for batch in 0..problem.batch() {
        for channel in 0..problem.channels() {
            let state = batch * problem.channels() + channel;
            let past = match (&outputs.present_state, inputs.past_state) {
                (Some(present), _) if s.in_place => present[state],
                (_, Some(past)) => past[state],
                _ => 0.0,
            };
            let mut h = past;
            for step in 0..problem.tokens() {
                let token = token_of(step, problem.tokens(), s.reverse);
                let a = inputs.a.get(s.a.at(batch, token, channel));
                let (a, grows) = match s.gate {
                    Gate::Factor => (a, h),
                    Gate::Log => grown(a, h),
                };
                h = Map { a, b: inputs.b.get(s.b.at(batch, token, channel)) }.of(grows);
                if let Some(out) = &mut outputs.out {
                    out.set(s.out.at(batch, token, channel), h);
                }
            }
            if let Some(present) = &mut outputs.present_state {
                present[state] = h;
            }
        }
    }
    Ok(())
}
