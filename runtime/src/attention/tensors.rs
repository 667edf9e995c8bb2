//! The host tensors of a call, as pointers that both the CPU and a GPU may hold.

use elsa_core::attention::{Inputs, Operand, Operands, Outputs};
use std::marker::PhantomData;
use std::ops::Index;
use std::ptr;

/// Address of the first byte of every operand; null if the call does not have it.
///
/// Invariant *tensors*: once [`Inputs::check`] and [`Outputs::check`] have accepted the data for a problem, every
/// non-null pointer is readable for the bytes that `Problem::memory` states, for the lifetime `'a`. Outputs are
/// also writable, and nobody else uses their memory during that time.
#[derive(Clone, Copy, Debug)]
pub struct HostTensors<'a> {
    at: Operands<*mut u8>,
    borrowed: PhantomData<&'a ()>,
}

impl<'a> HostTensors<'a> {
    /// Collects the addresses. The inputs are only read through them.
    pub fn new(inputs: &Inputs<'a>, mut outputs: Outputs<'a>) -> HostTensors<'a> {
        let mut at = Operands::from_fn(|_| ptr::null_mut());
        for (operand, elements) in [
            (Operand::Query, Some(inputs.query)),
            (Operand::Key, Some(inputs.key)),
            (Operand::Value, Some(inputs.value)),
            (Operand::PastKey, inputs.past_key),
            (Operand::PastValue, inputs.past_value),
        ] {
            at[operand] = elements.map_or(ptr::null_mut(), |elements| elements.as_ptr().cast_mut());
        }
        at[Operand::Bias] = inputs.bias.map_or(ptr::null_mut(), |bias| bias.as_ptr().cast_mut());
        at[Operand::BiasIndex] =
            inputs.bias_index.map_or(ptr::null_mut(), |index| index.as_ptr().cast_mut().cast());
        at[Operand::Mask] = inputs.mask.map_or(ptr::null_mut(), |mask| mask.as_ptr().cast_mut());
        for (operand, elements) in [
            (Operand::Output, outputs.output.as_mut()),
            (Operand::PresentKey, outputs.present_key.as_mut()),
            (Operand::PresentValue, outputs.present_value.as_mut()),
        ] {
            at[operand] = elements.map_or(ptr::null_mut(), |elements| elements.as_mut_ptr());
        }
        let mut rows = |operand, values: Option<&mut [f32]>| {
            at[operand] = values.map_or(ptr::null_mut(), |values| values.as_mut_ptr().cast());
        };
        rows(Operand::LogSumExp, outputs.lse);
        if let Some(state) = outputs.state {
            rows(Operand::StateReference, Some(state.m));
            rows(Operand::StateSum, Some(state.s));
            rows(Operand::StateWeighted, Some(state.w));
        }
        HostTensors { at, borrowed: PhantomData }
    }

    /// Whether the call outputs states.
    pub fn has_states(&self) -> bool {
        !self.at[Operand::StateReference].is_null()
    }

    /// Whether the call writes the output.
    pub fn has_output(&self) -> bool {
        !self.at[Operand::Output].is_null()
    }
}

impl Index<Operand> for HostTensors<'_> {
    type Output = *mut u8;

    fn index(&self, operand: Operand) -> &*mut u8 {
        &self.at[operand]
    }
}
