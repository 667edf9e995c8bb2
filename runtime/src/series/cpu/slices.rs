//! The slices of a call's host tensors.

use crate::tensors::HostTensors;
use elsa_core::dtype::{DType, Elements, ElementsMut};

/// The `n` elements of type `dtype` of tensor number `at`; none if the call does not have it.
///
/// # Safety
/// - The problem states for the tensor that many elements of that type at least, and a run only reads it.
pub unsafe fn elements<'a>(
    tensors: &HostTensors<'a>,
    at: usize,
    n: usize,
    dtype: DType,
) -> Option<Elements<'a>> {
    let data = tensors.at(at).cast_const();
    if data.is_null() {
        return None;
    }
    // SAFETY: *tensors*: readable for these elements as long as `'a` (clause), and aligned, being a slice's.
    Some(unsafe {
        match dtype {
            DType::F32 => Elements::F32(std::slice::from_raw_parts(data.cast(), n)),
            DType::F16 => Elements::F16(std::slice::from_raw_parts(data.cast(), n)),
            DType::Bf16 => Elements::Bf16(std::slice::from_raw_parts(data.cast(), n)),
        }
    })
}

/// The `n` f32 values of tensor number `at`; none if the call does not have it.
///
/// # Safety
/// - As for [`elements`].
pub unsafe fn values<'a>(tensors: &HostTensors<'a>, at: usize, n: usize) -> Option<&'a [f32]> {
    // SAFETY: the same clause.
    match unsafe { elements(tensors, at, n, DType::F32) } {
        Some(Elements::F32(x)) => Some(x),
        _ => None,
    }
}

/// The `n` elements of type `dtype` of output number `at`; none if the call does not have it.
///
/// # Safety
/// - The problem states for the tensor that many elements of that type at least, a run writes it, and the result is the only
///   one of the tensor in use.
pub unsafe fn elements_mut<'a>(
    tensors: &HostTensors<'a>,
    at: usize,
    n: usize,
    dtype: DType,
) -> Option<ElementsMut<'a>> {
    let data = tensors.at(at);
    if data.is_null() {
        return None;
    }
    // SAFETY: *tensors*: writable for these elements as long as `'a`, by nobody else (clause), and aligned, being a slice's.
    Some(unsafe {
        match dtype {
            DType::F32 => ElementsMut::F32(std::slice::from_raw_parts_mut(data.cast(), n)),
            DType::F16 => ElementsMut::F16(std::slice::from_raw_parts_mut(data.cast(), n)),
            DType::Bf16 => ElementsMut::Bf16(std::slice::from_raw_parts_mut(data.cast(), n)),
        }
    })
}

/// The `n` f32 values of output number `at`; none if the call does not have it.
///
/// # Safety
/// - As for [`elements_mut`].
pub unsafe fn values_mut<'a>(tensors: &HostTensors<'a>, at: usize, n: usize) -> Option<&'a mut [f32]> {
    // SAFETY: the same clauses.
    match unsafe { elements_mut(tensors, at, n, DType::F32) } {
        Some(ElementsMut::F32(x)) => Some(x),
        _ => None,
    }
}
