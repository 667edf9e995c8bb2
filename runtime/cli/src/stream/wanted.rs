//! The outputs of a streamed run.

use super::sink::Shape;
use crate::job::Job;
use elsa_core::attention::Operand;
use elsa_core::dtype::DType;

/// Outputs in addition to the main one.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The log-sum-exp.
    pub lse: bool,
    /// The states.
    pub states: bool,
    /// Present keys and present values.
    pub presents: [bool; 2],
    /// The certificate, for which tensors are measured.
    pub certificate: bool,
}

/// Returns the outputs in the order in which they are prepared.
#[must_use]
pub fn shapes(job: &Job, wanted: Wanted) -> Vec<Shape> {
    let dtype = job.problem.spec().dtype;
    let [present_k, present_v] = wanted.presents;
    [
        (Operand::Output, true, dtype),
        (Operand::PresentKey, present_k, dtype),
        (Operand::PresentValue, present_v, dtype),
        (Operand::LogSumExp, wanted.lse, DType::F32),
        (Operand::StateReference, wanted.states, DType::F32),
        (Operand::StateSum, wanted.states, DType::F32),
        (Operand::StateWeighted, wanted.states, DType::F32),
    ]
    .into_iter()
    .filter(|(_, wanted, _)| *wanted)
    .map(|(operand, _, dtype)| (operand, dtype, job.shapes[operand].clone()))
    .collect()
}
