//! The addresses of a call's tensors, and slices of their elements.
//!
//! Clause of the unsafe functions here:
//! - *tensors*: the memory of an input or output contains the elements of its shape until the call ends. Until then
//!   nothing writes the inputs, and nothing else uses the outputs, which share no memory with another tensor.

use crate::api::TensorShape;
use crate::error::OperatorError;
use crate::shapes::{FLOAT, INPUTS, INT64, OUTPUTS, Shapes, count, float};
use crate::signature::Signature;
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_runtime::DeviceElements;
use std::ffi::c_void;
use std::{ptr, slice};

/// The addresses of a call's tensors. Each address that has been set is aligned, and is not null unless its tensor has
/// no elements.
pub(crate) struct Addresses<'a> {
    signature: &'static Signature,
    shapes: &'a Shapes,
    made: &'a [TensorShape; OUTPUTS],
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
    /// Creates an instance without addresses. `made` contains the shapes of the outputs.
    pub fn new(
        signature: &'static Signature,
        shapes: &'a Shapes,
        made: &'a [TensorShape; OUTPUTS],
    ) -> Addresses<'a> {
        let (inputs, outputs) = ([ptr::null_mut(); INPUTS], [ptr::null_mut(); OUTPUTS]);
        Addresses { signature, shapes, made, inputs, outputs }
    }

    /// Sets the address of input `i`.
    ///
    /// # Errors
    /// Returns an error if the address is not aligned, or if it is null although the tensor has elements.
    pub fn set_input(&mut self, i: usize, data: *mut c_void) -> Result<(), OperatorError> {
        if let (Some(shape), Some(parameter)) = (self.shapes.input(i), self.signature.inputs.get(i)) {
            self.inputs[i] = checked(parameter.name, data, shape)?;
        }
        Ok(())
    }

    /// Sets the address of output `i`.
    ///
    /// # Errors
    /// Returns an error if the address is not aligned, or if it is null although the tensor has elements.
    pub fn set_output(&mut self, i: usize, data: *mut c_void) -> Result<(), OperatorError> {
        if let Some(parameter) = self.signature.outputs.get(i) {
            self.outputs[i] = checked(parameter.name, data, &self.made[i])?;
        }
        Ok(())
    }

    /// Returns the address of input `i`; `None` if the call does not have the input.
    pub fn input(&self, i: usize) -> Option<*mut c_void> {
        self.shapes.input(i).map(|_| self.inputs[i])
    }

    /// Returns the address of output `i`; `None` if the call does not have the output.
    pub fn output(&self, i: usize) -> Option<*mut c_void> {
        self.shapes.outputs[i].then_some(self.outputs[i])
    }

    /// Returns the elements of input `i`; `None` if the call does not have the input, or if its elements are neither f32
    /// nor f16.
    ///
    /// # Safety
    /// - The caller keeps this module's clause *tensors*.
    pub unsafe fn elements(&self, i: usize) -> Option<Elements<'a>> {
        let shape = self.shapes.input(i)?;
        // SAFETY: the clause of this function.
        Some(unsafe { elements(float(shape.element)?, self.inputs[i].cast_const().cast(), count(shape)) })
    }

    /// Returns the elements of input `i`; `None` if the call does not have the input, or if its elements are not f32.
    ///
    /// # Safety
    /// - The caller keeps this module's clause *tensors*.
    pub unsafe fn numbers(&self, i: usize) -> Option<&'a [f32]> {
        let shape = self.shapes.input(i).filter(|shape| shape.element == FLOAT)?;
        // SAFETY: the clause of this function.
        Some(unsafe { slice_of(self.inputs[i].cast_const().cast(), count(shape)) })
    }

    /// Returns the elements of input `i`; `None` if the call does not have the input, or if its elements are not i64.
    ///
    /// # Safety
    /// - The caller keeps this module's clause *tensors*, for an input in host memory.
    pub unsafe fn integers(&self, i: usize) -> Option<&'a [i64]> {
        let shape = self.shapes.input(i).filter(|shape| shape.element == INT64)?;
        // SAFETY: the clause of this function.
        Some(unsafe { slice_of(self.inputs[i].cast_const().cast(), count(shape)) })
    }

    /// Returns the elements of output `i`; `None` if the call does not have the output.
    ///
    /// # Safety
    /// - The caller keeps this module's clause *tensors*, and calls this function once for an output.
    pub unsafe fn elements_mut(&self, i: usize) -> Option<ElementsMut<'a>> {
        let (data, shape) = (self.output(i)?, &self.made[i]);
        // SAFETY: the clauses of this function.
        Some(unsafe { elements_mut(float(shape.element)?, data, count(shape)) })
    }

    /// Returns the elements of output `i`; `None` if the call does not have the output, or if its elements are not f32.
    ///
    /// # Safety
    /// - The caller keeps the clauses of [`Addresses::elements_mut`].
    pub unsafe fn numbers_mut(&self, i: usize) -> Option<&'a mut [f32]> {
        // SAFETY: the clause of this function.
        match unsafe { self.elements_mut(i)? } {
            ElementsMut::F32(numbers) => Some(numbers),
            _ => None,
        }
    }

    /// Returns the device address of input `i`; `None` if the call does not have the input.
    pub fn device(&self, i: usize) -> Option<u64> {
        self.input(i).map(|data| data.addr() as u64)
    }

    /// Returns the device address of output `i`; `None` if the call does not have the output.
    pub fn device_output(&self, i: usize) -> Option<u64> {
        self.output(i).map(|data| data.addr() as u64)
    }

    /// Returns the device address and the element type of input `i`; `None` if the call does not have the input.
    pub fn device_elements(&self, i: usize) -> Option<DeviceElements> {
        let dtype = float(self.shapes.input(i)?.element)?;
        self.device(i).map(|address| DeviceElements { address, dtype })
    }

    /// Returns the device address and the element type of output `i`; `None` if the call does not have the output.
    pub fn device_output_elements(&self, i: usize) -> Option<DeviceElements> {
        let dtype = float(self.made[i].element)?;
        self.device_output(i).map(|address| DeviceElements { address, dtype })
    }
}

/// Creates a slice of `len` elements. If `len` is zero, the pointer is not used.
///
/// # Safety
/// - The caller keeps this module's clause *tensors*, for `len` elements.
pub(crate) unsafe fn slice_of<'a, T>(data: *const u8, len: usize) -> &'a [T] {
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
pub(crate) unsafe fn elements<'a>(dtype: DType, data: *const u8, len: usize) -> Elements<'a> {
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
pub(crate) unsafe fn elements_mut<'a>(dtype: DType, data: *mut c_void, len: usize) -> ElementsMut<'a> {
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
