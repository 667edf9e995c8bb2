//! Converts the addresses of a call to slices, or to addresses of a GPU.

use super::geometry::Geometry;
use super::operands::{Input, Output};
use crate::tensors::{Addresses, elements, elements_mut, slice_of};
use elsa_core::attention::{Inputs, Lengths, MaskElements, MaskKind, Operand, Outputs, StateTensors};
use elsa_core::view::View;
use elsa_runtime::{DeviceInputs, DeviceOutputs};
use std::ffi::c_void;
use std::ptr;

/// Returns the address of an operand's first element; `None` if the call does not have the operand.
fn place(geometry: &Geometry, given: &Addresses<'_>, operand: Operand) -> Option<*mut u8> {
    let first = |input: Input| {
        let at = if geometry.placement.packed { Input::Query } else { input };
        let offset = geometry.placement.offsets[input as usize] * geometry.problem.spec().dtype.size();
        Some(data(given, at).cast::<u8>().wrapping_add(offset))
    };
    let optional = |input: Input| given.input(input as usize).map(<*mut c_void>::cast);
    match operand {
        Operand::Query => first(Input::Query),
        Operand::Key => first(Input::Key),
        Operand::Value => first(Input::Value),
        Operand::PastKey => optional(Input::PastKey),
        Operand::PastValue => optional(Input::PastValue),
        Operand::Mask => optional(Input::Mask),
        Operand::Bias => optional(Input::BiasTable),
        _ => None,
    }
}

/// Returns the address of an input; null if the call does not have the input.
fn data(given: &Addresses<'_>, input: Input) -> *mut c_void {
    given.input(input as usize).unwrap_or(ptr::null_mut())
}

/// Returns the address of an output; null if the call does not have the output.
fn made(given: &Addresses<'_>, output: Output) -> *mut c_void {
    given.output(output as usize).unwrap_or(ptr::null_mut())
}

/// Returns the states of a call, whose tensors `of` returns; `None` if the call does not have all of them.
fn states<T>(mut of: impl FnMut(usize) -> Option<T>) -> Option<StateTensors<T>> {
    let [m, s, w] = Output::STATES.map(|output| of(output as usize));
    Some(StateTensors { m: m?, s: s?, w: w? })
}

fn extent(view: Option<&View>) -> usize {
    view.map_or(0, View::extent)
}

/// Returns the key lengths of a call, or the bounds of its packed sequences.
///
/// # Safety
/// - The caller keeps the clause *tensors* of [`crate::tensors`].
unsafe fn lengths<'a>(given: &Addresses<'a>) -> Lengths<'a> {
    // SAFETY: the clause of this function. The geometry has checked the types.
    let [keys, cu_seqlens_q, bounds] = [Input::KeyLengths, Input::QueryBounds, Input::KeyBounds]
        .map(|input| unsafe { given.integers(input as usize) });
    Lengths { keys, cu_seqlens_q, cu_seqlens_k: bounds.or(cu_seqlens_q), ..Lengths::default() }
}

/// Returns the inputs of a call in host memory.
///
/// # Safety
/// - The caller keeps the clause *tensors* of [`crate::tensors`].
pub(crate) unsafe fn host_inputs<'a>(geometry: &Geometry, given: &Addresses<'a>) -> Inputs<'a> {
    let spec = geometry.problem.spec();
    let dtype = spec.dtype;
    // SAFETY: the clause of this function. The views cover the shapes of the tensors, and begin at the element to which
    // the pointer points.
    unsafe {
        let mut inputs = Inputs::of(|operand| {
            let dtype = match (operand, spec.bias) {
                (Operand::Bias, Some(bias)) => bias.dtype(),
                _ => dtype,
            };
            let len = geometry.problem.memory(operand)?.elements;
            place(geometry, given, operand).map(|data| elements(dtype, data, len))
        });
        inputs.mask = spec.mask.map(|mask| {
            let data = data(given, Input::Mask).cast_const().cast();
            match mask.kind() {
                MaskKind::Bool => MaskElements::Bool(slice_of(data, mask.extent())),
                MaskKind::Additive(dtype) => MaskElements::Additive(elements(dtype, data, mask.extent())),
            }
        });
        inputs.lengths = lengths(given);
        inputs
    }
}

/// Returns the outputs of a call in host memory.
///
/// # Safety
/// - The caller keeps the clause *tensors* of [`crate::tensors`].
pub(crate) unsafe fn host_outputs<'a>(geometry: &Geometry, given: &Addresses<'a>) -> Outputs<'a> {
    let spec = geometry.problem.spec();
    let dtype = spec.dtype;
    // SAFETY: the clause of this function. The views are those of the shapes with which the outputs were allocated.
    unsafe {
        let mut outputs = Outputs::new(elements_mut(dtype, made(given, Output::Y), spec.output.extent()));
        if spec.present_key.is_some() {
            let len = extent(spec.present_key.as_ref());
            outputs.present_key = Some(elements_mut(dtype, made(given, Output::PresentKey), len));
        }
        if spec.present_value.is_some() {
            let len = extent(spec.present_value.as_ref());
            outputs.present_value = Some(elements_mut(dtype, made(given, Output::PresentValue), len));
        }
        outputs.lse = given.numbers_mut(Output::LogSumExp as usize);
        outputs.state = states(|i| given.numbers_mut(i));
        outputs
    }
}

/// Returns the inputs of a call in device memory, with the lengths in host memory.
///
/// # Safety
/// - The caller keeps the clause *tensors* of [`crate::tensors`], for the lengths.
pub(crate) unsafe fn device_inputs<'a>(geometry: &Geometry, given: &Addresses<'a>) -> DeviceInputs<'a> {
    let place = |operand| place(geometry, given, operand).map(|data| data.addr() as u64);
    DeviceInputs {
        mask: place(Operand::Mask),
        // SAFETY: the clause of this function.
        lengths: unsafe { lengths(given) },
        ..DeviceInputs::of(place)
    }
}

/// Returns the outputs of a call in device memory.
pub(crate) fn device_outputs(geometry: &Geometry, given: &Addresses<'_>) -> DeviceOutputs {
    let spec = geometry.problem.spec();
    DeviceOutputs {
        output: given.device_output(Output::Y as usize),
        present_key: spec.present_key.and_then(|_| given.device_output(Output::PresentKey as usize)),
        present_value: spec.present_value.and_then(|_| given.device_output(Output::PresentValue as usize)),
        lse: given.device_output(Output::LogSumExp as usize),
        state: states(|i| given.device_output(i)),
    }
}
