//! Host memory that a GPU can use in place.

use super::driver::{Context, PinnedBuffer};
use crate::error::DeviceError;
use half::{bf16, f16};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// An element type of tensors, masks or lengths: `f32`, `f16`, `bf16`, `u8` or `i64`. Zero bytes represent zero in
/// each.
pub trait Element: sealed::Sealed + Copy {}

mod sealed {
    /// # Safety
    /// Every bit pattern is a value, and the alignment is at most 16.
    pub unsafe trait Sealed {}
}

macro_rules! element {
    ($($t:ty),*) => {
        // SAFETY: numbers of at most eight bytes.
        $(unsafe impl sealed::Sealed for $t {}
        impl Element for $t {})*
    };
}
element!(f32, f16, bf16, u8, i64);

/// A slice in host memory, initially zero. If there is a GPU, the memory is page-locked: an integrated GPU uses
/// tensors in such memory in place, and other GPUs copy them faster than ordinary memory. Without a GPU the memory
/// is ordinary, so that the same program runs on both.
#[derive(Debug)]
pub struct HostBuffer<T: Element> {
    memory: Memory,
    len: usize,
    element: PhantomData<T>,
}

#[derive(Debug)]
enum Memory {
    Pinned(PinnedBuffer),
    Ordinary(Vec<u128>),
}

impl<T: Element> HostBuffer<T> {
    pub(crate) fn new(context: Option<&Arc<Context>>, len: usize) -> Result<HostBuffer<T>, DeviceError> {
        let refused = || DeviceError::HostMemory { bytes: len.saturating_mul(size_of::<T>()) };
        let bytes =
            len.checked_mul(size_of::<T>()).filter(|n| *n <= isize::MAX as usize).ok_or_else(refused)?;
        let memory = match context {
            Some(context) => Memory::Pinned(PinnedBuffer::new(context, bytes)?),
            None => {
                let mut words: Vec<u128> = Vec::new();
                let count = bytes.div_ceil(size_of::<u128>());
                words.try_reserve_exact(count).map_err(|_| refused())?;
                words.resize(count, 0);
                Memory::Ordinary(words)
            }
        };
        Ok(HostBuffer { memory, len, element: PhantomData })
    }

    /// Whether the memory is page-locked, so that a GPU can use it.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        matches!(self.memory, Memory::Pinned(_))
    }

    fn data(&self) -> *const T {
        match &self.memory {
            Memory::Pinned(buffer) => buffer.data().cast_const().cast(),
            Memory::Ordinary(words) => words.as_ptr().cast(),
        }
    }
}

impl<T: Element> Deref for HostBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `new` allocated zeros for `len` elements, aligned to 16 bytes. Every bit pattern is an element
        // (`Sealed`), and the memory lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.data(), self.len) }
    }
}

impl<T: Element> DerefMut for HostBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let data = match &mut self.memory {
            Memory::Pinned(buffer) => buffer.data().cast(),
            Memory::Ordinary(words) => words.as_mut_ptr().cast(),
        };
        // SAFETY: as in `deref`; `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(data, self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_gpu_it_is_ordinary_memory() {
        let mut buffer = HostBuffer::<f32>::new(None, 5).unwrap();
        assert!(!buffer.is_pinned());
        assert_eq!(&*buffer, &[0.0; 5]);
        buffer[4] = 2.0;
        assert_eq!(buffer[4], 2.0);
        assert!(HostBuffer::<u8>::new(None, 0).unwrap().is_empty());
        let refused = HostBuffer::<i64>::new(None, usize::MAX / 4);
        assert!(matches!(refused, Err(DeviceError::HostMemory { .. })));
    }
}
