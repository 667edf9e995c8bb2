//! The tensors of a call in device memory, which are used in place.

use crate::cuda::device::Addresses;
use crate::tensors::per_tensor;
use elsa_core::linear::Operand;

/// The input tensors of a call of linear attention as device addresses of the first element of each view, and the bounds of
/// packed sequences in host memory. Shapes and strides are those of the problem.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinearDeviceInputs<'a> {
    /// Address of the queries.
    pub query: u64,
    /// Address of the keys.
    pub key: u64,
    /// Address of the values.
    pub value: u64,
    /// Address of the logarithms of gates.
    pub decay: Option<u64>,
    /// Address of the rates.
    pub beta: Option<u64>,
    /// Address of the past states; `None` if they lie in the present.
    pub past_state: Option<u64>,
    /// Bounds of packed sequences, in host memory: `sequences + 1` token numbers.
    pub cu_seqlens: Option<&'a [i64]>,
}

/// The output tensors of a call of linear attention as device addresses of the first element. Shapes and strides are those of
/// the problem. A call writes the output, the present states, or both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinearDeviceOutputs {
    /// Address of the output.
    pub output: Option<u64>,
    /// Address of the present states. Where the problem is in place, they hold the past states when a run begins.
    pub present_state: Option<u64>,
}

/// The addresses of a call's operands, by number; `None` if the call does not have the operand.
pub fn addresses(inputs: &LinearDeviceInputs<'_>, outputs: &LinearDeviceOutputs) -> Addresses {
    let address = |operand| match operand {
        Operand::Query => Some(inputs.query),
        Operand::Key => Some(inputs.key),
        Operand::Value => Some(inputs.value),
        Operand::Decay => inputs.decay,
        Operand::Beta => inputs.beta,
        Operand::PastState => inputs.past_state,
        Operand::Output => outputs.output,
        Operand::PresentState => outputs.present_state,
    };
    per_tensor(|at| Operand::ALL.get(at).copied().and_then(address))
}
