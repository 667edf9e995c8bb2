//! Returns the host tensors of a call as slices. The problem of the call determines the lengths of the slices.

use crate::problem::Problem;
use crate::tensors::HostTensors;
use elsa_core::dtype::{DType, Elements, ElementsMut};
use std::slice::{from_raw_parts, from_raw_parts_mut};

/// Returns the number of elements of a tensor.
fn count<P: Problem>(problem: &P, tensors: &HostTensors<'_, P::Operand>, operand: P::Operand) -> usize {
    problem.tensor(operand, tensors.types()[operand]).memory.map_or(0, |memory| memory.elements)
}

/// Returns the elements of an input; `None` if the call omits it.
///
/// # Safety
/// - The tensors have been checked against the problem. The elements of `operand` are of type `T`, and a run only reads
///   them.
pub unsafe fn slice<'a, P: Problem, T>(
    problem: &P,
    tensors: &HostTensors<'a, P::Operand>,
    operand: P::Operand,
) -> Option<&'a [T]> {
    let (data, n) = (tensors.at(operand).cast_const(), count(problem, tensors, operand));
    // SAFETY: *tensors*: the elements are readable for `'a` (clause). They are aligned, because the caller passed a
    // slice.
    (!data.is_null()).then(|| unsafe { from_raw_parts(data.cast(), n) })
}

/// Returns the elements of an input, with the element type of the call; `None` if the call omits the input.
///
/// # Safety
/// - The clauses of [`slice()`] hold, where `T` is the element type of the call.
pub unsafe fn elements<'a, P: Problem>(
    problem: &P,
    tensors: &HostTensors<'a, P::Operand>,
    operand: P::Operand,
) -> Option<Elements<'a>> {
    let (data, n) = (tensors.at(operand).cast_const(), count(problem, tensors, operand));
    // SAFETY: the clauses of [`slice()`], with the element type of the call.
    (!data.is_null()).then(|| unsafe { elements_at(data, tensors.types()[operand], n) })
}

/// Returns the `n` elements of type `dtype` at `data`.
///
/// # Safety
/// - For `'a`, the elements are readable and nothing writes them. `data` is aligned for `dtype`.
pub unsafe fn elements_at<'a>(data: *const u8, dtype: DType, n: usize) -> Elements<'a> {
    // SAFETY: the elements are readable and aligned (clause).
    unsafe {
        match dtype {
            DType::F32 => Elements::F32(from_raw_parts(data.cast(), n)),
            DType::F16 => Elements::F16(from_raw_parts(data.cast(), n)),
            DType::Bf16 => Elements::Bf16(from_raw_parts(data.cast(), n)),
        }
    }
}

/// Returns the elements of an output; `None` if the call omits it.
///
/// # Safety
/// - The tensors have been checked against the problem. The elements of `operand` are of type `T`, a run writes them,
///   and no other slice of this tensor is in use.
pub unsafe fn slice_mut<'a, P: Problem, T>(
    problem: &P,
    tensors: &HostTensors<'a, P::Operand>,
    operand: P::Operand,
) -> Option<&'a mut [T]> {
    let (data, n) = (tensors.at(operand), count(problem, tensors, operand));
    // SAFETY: *tensors*: for `'a`, the elements are writable and nothing else uses them (clause). They are aligned,
    // because the caller passed a slice.
    (!data.is_null()).then(|| unsafe { from_raw_parts_mut(data.cast(), n) })
}

/// Returns the elements of an output, with the element type of the call; `None` if the call omits the output.
///
/// # Safety
/// - The clauses of [`slice_mut`] hold, where `T` is the element type of the call.
pub unsafe fn elements_mut<'a, P: Problem>(
    problem: &P,
    tensors: &HostTensors<'a, P::Operand>,
    operand: P::Operand,
) -> Option<ElementsMut<'a>> {
    // SAFETY: the callees' clauses are those of this function.
    unsafe {
        match tensors.types()[operand] {
            DType::F32 => slice_mut(problem, tensors, operand).map(ElementsMut::F32),
            DType::F16 => slice_mut(problem, tensors, operand).map(ElementsMut::F16),
            DType::Bf16 => slice_mut(problem, tensors, operand).map(ElementsMut::Bf16),
        }
    }
}
