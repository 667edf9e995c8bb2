//! The outputs of a streamed run.

use super::sink::Shape;
use crate::job::Job;
use elsa_core::attention::Operand;
use elsa_core::dtype::DType;

/// Requested outputs in addition to the main output.
#[derive(Clone, Copy, Debug)]
pub struct OutputRequest {
    /// `true` if the log-sum-exp is requested.
    pub lse: bool,
    /// `true` if the states are requested.
    pub states: bool,
    /// Two values: `true` if the present keys are requested, and `true` if the present values are requested.
    pub presents: [bool; 2],
    /// `true` if the certificate is requested. The run must then measure the tensors.
    pub certificate: bool,
}

/// Returns operand, type and shape of each output, in the order in which output files are prepared.
#[must_use]
pub fn shapes(job: &Job, wanted: OutputRequest) -> Vec<Shape> {
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
