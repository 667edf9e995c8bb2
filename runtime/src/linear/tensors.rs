//! The host tensors of a call, as pointers that both the CPU and a GPU may hold.

use elsa_core::linear::{Inputs, Operand, Operands, Outputs};
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
    pub fn new(inputs: &Inputs<'a>, outputs: Outputs<'a>) -> HostTensors<'a> {
        let Outputs { mut output, present_state } = outputs;
        let mut at = Operands::from_fn(|operand| {
            inputs.elements(operand).map_or(ptr::null_mut(), |elements| elements.as_ptr().cast_mut())
        });
        at[Operand::Output] = output.as_mut().map_or(ptr::null_mut(), |elements| elements.as_mut_ptr());
        at[Operand::PresentState] =
            present_state.map_or(ptr::null_mut(), |values| values.as_mut_ptr().cast());
        HostTensors { at, borrowed: PhantomData }
    }
}

impl Index<Operand> for HostTensors<'_> {
    type Output = *mut u8;

    fn index(&self, operand: Operand) -> &*mut u8 {
        &self.at[operand]
    }
}
