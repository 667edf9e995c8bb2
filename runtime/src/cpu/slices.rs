//! The slices of a call's host tensors.

use crate::tensors::HostTensors;
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::operands::Operand;
use std::slice::{from_raw_parts, from_raw_parts_mut};

/// The first `n` elements of an input; none if the call does not have it.
///
/// # Safety
/// - The problem states for the tensor that many elements of type `T` at least, and a run only reads it.
pub unsafe fn slice<'a, O: Operand, T>(
    tensors: &HostTensors<'a, O>,
    operand: O,
    n: usize,
) -> Option<&'a [T]> {
    let data = tensors.at(operand).cast_const();
    // SAFETY: *tensors*: readable for these elements as long as `'a` (clause), and aligned, being a slice's.
    (!data.is_null()).then(|| unsafe { from_raw_parts(data.cast(), n) })
}

/// The first `n` elements of an input, of the call's type; none if the call does not have it.
///
/// # Safety
/// - As for [`slice()`], with elements of the call's type.
pub unsafe fn elements<'a, O: Operand>(
    tensors: &HostTensors<'a, O>,
    operand: O,
    n: usize,
) -> Option<Elements<'a>> {
    // SAFETY: the same clause.
    unsafe {
        match tensors.types()[operand] {
            DType::F32 => slice(tensors, operand, n).map(Elements::F32),
            DType::F16 => slice(tensors, operand, n).map(Elements::F16),
            DType::Bf16 => slice(tensors, operand, n).map(Elements::Bf16),
        }
    }
}

/// The first `n` elements of an output; none if the call does not have it.
///
/// # Safety
/// - The problem states for the tensor that many elements of type `T` at least, a run writes it, and the result is the only one
///   of the tensor in use.
pub unsafe fn slice_mut<'a, O: Operand, T>(
    tensors: &HostTensors<'a, O>,
    operand: O,
    n: usize,
) -> Option<&'a mut [T]> {
    let data = tensors.at(operand);
    // SAFETY: *tensors*: writable for these elements as long as `'a`, by nobody else (clause), and aligned, being a slice's.
    (!data.is_null()).then(|| unsafe { from_raw_parts_mut(data.cast(), n) })
}

/// The first `n` elements of an output, of the call's type; none if the call does not have it.
///
/// # Safety
/// - As for [`slice_mut`], with elements of the call's type.
pub unsafe fn elements_mut<'a, O: Operand>(
    tensors: &HostTensors<'a, O>,
    operand: O,
    n: usize,
) -> Option<ElementsMut<'a>> {
    // SAFETY: the same clauses.
    unsafe {
        match tensors.types()[operand] {
            DType::F32 => slice_mut(tensors, operand, n).map(ElementsMut::F32),
            DType::F16 => slice_mut(tensors, operand, n).map(ElementsMut::F16),
            DType::Bf16 => slice_mut(tensors, operand, n).map(ElementsMut::Bf16),
        }
    }
}
