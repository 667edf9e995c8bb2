//! Allocates memory for tensors. If the system refuses memory, the error names the tensor.

use super::error::MemoryError;
use bytemuck::Zeroable;
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_runtime::available_memory;
use half::{bf16, f16};

/// Bytes that must remain available after a large allocation. They are reserved for the growth of stacks, for threads,
/// and for libraries whose allocations cannot return an error.
pub const SPARE: usize = 1 << 20;

/// Smallest size in bytes of an allocation that counts as large.
const SIZE: usize = 16 << 10;

/// Returns `true` if enough memory is available after an allocation of `taken` bytes.
fn is_left(taken: usize) -> bool {
    taken < SIZE || available_memory().is_none_or(|available| available.bytes >= SPARE as u64)
}

/// Allocates an empty vector with room for `count` elements. The error is the number of bytes that were requested.
///
/// # Errors
/// Returns an error if the system refuses the memory, or if less than [`SPARE`] remains available.
pub fn reserved<T>(count: usize) -> Result<Vec<T>, usize> {
    let mut data = Vec::new();
    let bytes = count.saturating_mul(size_of::<T>());
    data.try_reserve_exact(count).map_err(|_| bytes)?;
    if is_left(bytes) { Ok(data) } else { Err(bytes) }
}

/// Checks that enough memory is available after `bytes` bytes of working memory were allocated for `argument`.
///
/// # Errors
/// Returns an error if less than [`SPARE`] remains available.
pub fn leaves_enough(argument: &'static str, bytes: usize) -> Result<(), MemoryError> {
    if is_left(bytes) { Ok(()) } else { Err(MemoryError { argument, bytes }) }
}

/// Allocates `count` zeros for the tensor `argument`.
///
/// # Errors
/// Returns an error if the system refuses the memory.
pub fn zeros<T: Zeroable + Clone>(argument: &'static str, count: usize) -> Result<Vec<T>, MemoryError> {
    let mut data = reserved(count).map_err(|bytes| MemoryError { argument, bytes })?;
    data.resize(count, T::zeroed());
    Ok(data)
}

/// Elements of a tensor in owned memory.
#[derive(Clone, Debug)]
pub enum Buffer {
    /// f32 values.
    F32(Vec<f32>),
    /// f16 values.
    F16(Vec<f16>),
    /// bf16 values.
    Bf16(Vec<bf16>),
}

impl Buffer {
    /// Allocates `count` zeros of type `dtype` for the tensor `argument`.
    ///
    /// # Errors
    /// Returns an error if the system refuses the memory.
    pub fn zeros(argument: &'static str, dtype: DType, count: usize) -> Result<Buffer, MemoryError> {
        Ok(match dtype {
            DType::F32 => Buffer::F32(zeros(argument, count)?),
            DType::F16 => Buffer::F16(zeros(argument, count)?),
            DType::Bf16 => Buffer::Bf16(zeros(argument, count)?),
        })
    }

    /// Borrows the elements mutably, as the output of a run.
    pub fn elements_mut(&mut self) -> ElementsMut<'_> {
        match self {
            Buffer::F32(x) => ElementsMut::F32(x),
            Buffer::F16(x) => ElementsMut::F16(x),
            Buffer::Bf16(x) => ElementsMut::Bf16(x),
        }
    }

    /// Borrows the elements.
    #[must_use]
    pub fn elements(&self) -> Elements<'_> {
        match self {
            Buffer::F32(x) => Elements::F32(x),
            Buffer::F16(x) => Elements::F16(x),
            Buffer::Bf16(x) => Elements::Bf16(x),
        }
    }

    /// Returns the bytes of the elements in memory order.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Buffer::F32(x) => bytemuck::cast_slice(x),
            Buffer::F16(x) => bytemuck::cast_slice(x),
            Buffer::Bf16(x) => bytemuck::cast_slice(x),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_not_there_is_an_error() {
        assert!(matches!(zeros::<f32>("out", usize::MAX / 8), Err(MemoryError { argument: "out", .. })));
    }
}
