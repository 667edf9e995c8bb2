//! The host tensors of a call, by operand.

use crate::tensors::HostTensors;
use elsa_core::attention::{Inputs, Operand, Outputs};

/// Collects the addresses, by number of operand. The inputs are only read through them.
pub fn host<'a>(inputs: &Inputs<'a>, mut outputs: Outputs<'a>) -> HostTensors<'a> {
    let mut tensors = HostTensors::default();
    let mut set = |operand: Operand, data: Option<*mut u8>| {
        if let Some(data) = data {
            tensors.set(operand as usize, data);
        }
    };
    for (operand, elements) in [
        (Operand::Query, Some(inputs.query)),
        (Operand::Key, Some(inputs.key)),
        (Operand::Value, Some(inputs.value)),
        (Operand::PastKey, inputs.past_key),
        (Operand::PastValue, inputs.past_value),
        (Operand::Bias, inputs.bias),
    ] {
        set(operand, elements.map(|elements| elements.as_ptr().cast_mut()));
    }
    set(Operand::BiasIndex, inputs.bias_index.map(|index| index.as_ptr().cast_mut().cast()));
    set(Operand::Mask, inputs.mask.map(|mask| mask.as_ptr().cast_mut()));
    for (operand, elements) in [
        (Operand::Output, outputs.output.as_mut()),
        (Operand::PresentKey, outputs.present_key.as_mut()),
        (Operand::PresentValue, outputs.present_value.as_mut()),
    ] {
        set(operand, elements.map(|elements| elements.as_mut_ptr()));
    }
    let mut rows = |operand, values: Option<&mut [f32]>| {
        set(operand, values.map(|values| values.as_mut_ptr().cast()));
    };
    rows(Operand::LogSumExp, outputs.lse);
    if let Some(state) = outputs.state {
        rows(Operand::StateReference, Some(state.m));
        rows(Operand::StateSum, Some(state.s));
        rows(Operand::StateWeighted, Some(state.w));
    }
    tensors
}
