//! The tensors of a call in device memory, which are used in place.

use crate::cuda::device::Addresses;
use crate::tensors::per_tensor;
use elsa_core::attention::{Lengths, Operand};

/// The input tensors of a call as device addresses of the first element of each view, and the lengths in host
/// memory. Shapes and strides are those of the problem.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceInputs<'a> {
    /// Address of the queries.
    pub query: u64,
    /// Address of the keys.
    pub key: u64,
    /// Address of the values.
    pub value: u64,
    /// Address of the past keys; `None` if they are in the present.
    pub past_key: Option<u64>,
    /// Address of the past values; `None` if they are in the present.
    pub past_value: Option<u64>,
    /// Address of the mask.
    pub mask: Option<u64>,
    /// Address of the bias, or of its table.
    pub bias: Option<u64>,
    /// Address of the entries of the table, i64 `[queries, keys]`. They are not checked: one outside the table
    /// counts as its first or last.
    pub bias_index: Option<u64>,
    /// Lengths of the sequences, in host memory.
    pub lengths: Lengths<'a>,
}

/// The output tensors of a call as device addresses of the first element. Shapes and strides are those of the
/// problem. A call writes the output, log-sum-exp, states, or several of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceOutputs {
    /// Address of the output.
    pub output: Option<u64>,
    /// Address of the log-sum-exp of each row, f32 `[batch, heads, queries]`.
    pub lse: Option<u64>,
    /// Addresses of the state of each row: `m` and `S`, f32 `[batch, heads, queries]`, and `W`, f32
    /// `[batch, heads, queries, d_v]`.
    pub state: Option<[u64; 3]>,
    /// Address of the present keys.
    pub present_key: Option<u64>,
    /// Address of the present values.
    pub present_value: Option<u64>,
}

/// Returns the addresses of a call's operands, by number; `None` for absent operands.
pub fn addresses(inputs: &DeviceInputs<'_>, outputs: &DeviceOutputs) -> Addresses {
    let state = |i: usize| outputs.state.map(|state| state[i]);
    let address = |operand| match operand {
        Operand::Query => Some(inputs.query),
        Operand::Key => Some(inputs.key),
        Operand::Value => Some(inputs.value),
        Operand::PastKey => inputs.past_key,
        Operand::PastValue => inputs.past_value,
        Operand::Mask => inputs.mask,
        Operand::Bias => inputs.bias,
        Operand::BiasIndex => inputs.bias_index,
        Operand::Output => outputs.output,
        Operand::PresentKey => outputs.present_key,
        Operand::PresentValue => outputs.present_value,
        Operand::LogSumExp => outputs.lse,
        Operand::StateReference => state(0),
        Operand::StateSum => state(1),
        Operand::StateWeighted => state(2),
    };
    per_tensor(|at| Operand::ALL.get(at).copied().and_then(address))
}
