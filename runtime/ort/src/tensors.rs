//! Converts the pointers of a call to slices, or to addresses of a GPU.
//!
//! Clause of the unsafe functions here:
//! - *tensors*: the memory of an input or output contains the elements of its shape until the call ends. Until then
//!   nothing writes the inputs, and nothing else uses the outputs, which share no memory with another tensor.

use crate::api::TensorShape;
use crate::error::OperatorError;
use crate::geometry::{Geometry, Shapes};
use crate::operands::{INPUTS, Input, OUTPUTS};
use elsa_core::attention::{Inputs, Lengths, MaskElements, MaskKind, Operand, Outputs};
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::view::View;
use elsa_runtime::{DeviceInputs, DeviceOutputs};
use std::ffi::c_void;
use std::{ptr, slice};

/// The names of the outputs.
const OUTPUT_NAMES: [&str; OUTPUTS] = ["Y", "present_key", "present_value"];

/// The addresses of a call's tensors. Each address that has been set is aligned, and is not null unless its tensor has
/// no elements.
pub(crate) struct Addresses<'a> {
    geometry: &'a Geometry,
    shapes: &'a Shapes,
    inputs: [*mut c_void; INPUTS],
    outputs: [*mut c_void; OUTPUTS],
}

/// Returns the size of an element in bytes, which is also its alignment.
fn size(element: i32) -> usize {
    match element {
        1 => 4,
        7 => 8,
        10 => 2,
        _ => 1,
    }
}

fn checked(
    argument: &'static str,
    data: *mut c_void,
    shape: &TensorShape,
) -> Result<*mut c_void, OperatorError> {
    if data.is_null() && shape.dims().iter().all(|dim| *dim != 0) {
        return Err(OperatorError::Place { argument, found: "no memory" });
    }
    if data.addr().is_multiple_of(size(shape.element)) {
        Ok(data)
    } else {
        Err(OperatorError::Place { argument, found: "memory that is not aligned to its elements" })
    }
}

impl<'a> Addresses<'a> {
    /// Creates an instance without addresses.
    pub fn new(geometry: &'a Geometry, shapes: &'a Shapes) -> Addresses<'a> {
        Addresses { geometry, shapes, inputs: [ptr::null_mut(); INPUTS], outputs: [ptr::null_mut(); OUTPUTS] }
    }

    /// Sets the address of an input.
    ///
    /// # Errors
    /// Returns an error if the address is not aligned, or if it is null although the tensor has elements.
    pub fn set_input(&mut self, input: Input, data: *mut c_void) -> Result<(), OperatorError> {
        if let Some(shape) = self.shapes.input(input) {
            self.inputs[input as usize] = checked(input.name(), data, shape)?;
        }
        Ok(())
    }

    /// Sets the address of an output.
    ///
    /// # Errors
    /// Returns an error if the address is not aligned, or if it is null although the tensor has elements.
    pub fn set_output(&mut self, index: usize, data: *mut c_void) -> Result<(), OperatorError> {
        self.outputs[index] = checked(OUTPUT_NAMES[index], data, &self.geometry.outputs[index])?;
        Ok(())
    }

    fn dtype(&self) -> DType {
        self.geometry.problem.spec().dtype
    }

    /// Returns the address of an operand's first element; `None` if the call does not have the operand.
    fn place(&self, operand: Operand) -> Option<*mut u8> {
        let first = |input: Input| {
            let at = if self.geometry.packed { Input::Query } else { input };
            let offset = self.geometry.offsets[input as usize] * self.dtype().size();
            Some(self.inputs[at as usize].cast::<u8>().wrapping_add(offset))
        };
        let optional = |input: Input| self.shapes.input(input).map(|_| self.input(input).cast());
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

    fn input(&self, input: Input) -> *mut c_void {
        self.inputs[input as usize]
    }
}

/// Creates a slice of `len` elements. If `len` is zero, the pointer is not used.
///
/// # Safety
/// - The caller keeps this module's clause *tensors*, for `len` elements.
unsafe fn slice_of<'a, T>(data: *const u8, len: usize) -> &'a [T] {
    if len == 0 {
        return &[];
    }
    // SAFETY: the clause of this function; alignment was checked when the pointer was given.
    unsafe { slice::from_raw_parts(data.cast(), len) }
}

/// Creates a slice of `len` elements of type `dtype`.
///
/// # Safety
/// - The caller keeps this module's clause *tensors*, for `len` elements.
unsafe fn elements<'a>(dtype: DType, data: *const u8, len: usize) -> Elements<'a> {
    // SAFETY: the clause of this function. Every bit pattern is a value of these types.
    unsafe {
        match dtype {
            DType::F32 => Elements::F32(slice_of(data, len)),
            DType::F16 => Elements::F16(slice_of(data, len)),
            DType::Bf16 => Elements::Bf16(slice_of(data, len)),
        }
    }
}

/// Creates a mutable slice of `len` elements of type `dtype`.
///
/// # Safety
/// - The caller keeps this module's clause *tensors*, for `len` elements of an output.
unsafe fn elements_mut<'a>(dtype: DType, data: *mut c_void, len: usize) -> ElementsMut<'a> {
    // An empty slice also needs an aligned, nonnull address.
    let data = if len == 0 { ptr::without_provenance_mut(64) } else { data };
    // SAFETY: the clause of this function; alignment was checked when the pointer was given.
    unsafe {
        match dtype {
            DType::F32 => ElementsMut::F32(slice::from_raw_parts_mut(data.cast(), len)),
            DType::F16 => ElementsMut::F16(slice::from_raw_parts_mut(data.cast(), len)),
            DType::Bf16 => ElementsMut::Bf16(slice::from_raw_parts_mut(data.cast(), len)),
        }
    }
}

fn extent(view: Option<&View>) -> usize {
    view.map_or(0, View::extent)
}

/// Returns the key lengths of a call.
///
/// # Safety
/// - The caller keeps this module's clause *tensors*.
unsafe fn lengths<'a>(given: &Addresses<'a>) -> Lengths<'a> {
    let spec = given.geometry.problem.spec();
    let data = given.input(Input::KeyLengths).cast_const().cast();
    // SAFETY: the clause of this function: `Geometry` has checked that the lengths are i64, one for each batch index.
    let keys = spec.key_lengths.then(|| unsafe { slice_of(data, spec.query.batch()) });
    Lengths { keys, ..Lengths::default() }
}

/// Returns the inputs of a call in host memory.
///
/// # Safety
/// - The caller keeps this module's clause *tensors*.
pub(crate) unsafe fn host_inputs<'a>(given: &Addresses<'a>) -> Inputs<'a> {
    let spec = given.geometry.problem.spec();
    let dtype = given.dtype();
    // SAFETY: the clause of this function. The views cover the shapes of the tensors, and begin at the element to which
    // the pointer points.
    unsafe {
        let mut inputs = Inputs::of(|operand| {
            let dtype = match (operand, spec.bias) {
                (Operand::Bias, Some(bias)) => bias.dtype(),
                _ => dtype,
            };
            let len = given.geometry.problem.memory(operand)?.elements;
            given.place(operand).map(|data| elements(dtype, data, len))
        });
        inputs.mask = spec.mask.map(|mask| {
            let data = given.input(Input::Mask).cast();
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
/// - The caller keeps this module's clause *tensors*.
pub(crate) unsafe fn host_outputs<'a>(given: &Addresses<'a>) -> Outputs<'a> {
    let spec = given.geometry.problem.spec();
    let dtype = given.dtype();
    // SAFETY: the clause of this function. The views are those of the shapes with which the outputs were allocated.
    unsafe {
        let mut outputs = Outputs::new(elements_mut(dtype, given.outputs[0], spec.output.extent()));
        if spec.present_key.is_some() {
            let len = extent(spec.present_key.as_ref());
            outputs.present_key = Some(elements_mut(dtype, given.outputs[1], len));
        }
        if spec.present_value.is_some() {
            let len = extent(spec.present_value.as_ref());
            outputs.present_value = Some(elements_mut(dtype, given.outputs[2], len));
        }
        outputs
    }
}

/// Returns the inputs of a call in device memory, with the lengths in host memory.
///
/// # Safety
/// - The caller keeps this module's clause *tensors*, for the lengths.
pub(crate) unsafe fn device_inputs<'a>(given: &Addresses<'a>) -> DeviceInputs<'a> {
    let place = |operand| given.place(operand).map(|data| data.addr() as u64);
    DeviceInputs {
        mask: place(Operand::Mask),
        // SAFETY: the clause of this function.
        lengths: unsafe { lengths(given) },
        ..DeviceInputs::of(place)
    }
}

/// Returns the outputs of a call in device memory.
pub(crate) fn device_outputs(given: &Addresses<'_>) -> DeviceOutputs {
    let spec = given.geometry.problem.spec();
    let [output, present_key, present_value] = given.outputs.map(|data| data.addr() as u64);
    DeviceOutputs {
        output: Some(output),
        present_key: spec.present_key.map(|_| present_key),
        present_value: spec.present_value.map(|_| present_value),
        ..DeviceOutputs::default()
    }
}
