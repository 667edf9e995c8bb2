//! Host memory that a GPU can use in place.

use super::driver::{Context, PinnedBuffer};
use crate::cpu::memory::Bytes;
use crate::error::DeviceError;
use half::{bf16, f16};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// An element type of tensors, masks or lengths: `f32`, `f16`, `bf16`, `u8` or `i64`. For each of these types, bytes
/// that are all zero represent the number zero.
pub trait Element: sealed::Sealed + Copy {}

mod sealed {
    /// # Safety
    /// Every bit pattern is a valid value, and the alignment is at most 64 bytes.
    pub unsafe trait Sealed {}
}

macro_rules! element {
    ($($t:ty),*) => {
        // SAFETY: every bit pattern of these types is a number, and their alignment is at most eight bytes.
        $(unsafe impl sealed::Sealed for $t {}
        impl Element for $t {})*
    };
}
element!(f32, f16, bf16, u8, i64);

/// A slice in host memory, initially zero, on a 64-byte boundary. If there is a GPU, the memory is page-locked. An
/// integrated GPU then uses tensors in this slice in place, at any position. Other GPUs copy tensors from page-locked
/// memory faster than from ordinary memory. Without a GPU the memory is ordinary, so that the same program runs with
/// and without a GPU.
///
/// Dropping page-locked memory waits for all work in the GPU's context, because enqueued work may use it.
#[derive(Debug)]
pub struct HostBuffer<T: Element> {
    memory: Memory,
    len: usize,
    device: Option<u64>,
    element: PhantomData<T>,
}

#[derive(Debug)]
enum Memory {
    Pinned(PinnedBuffer),
    Ordinary(Bytes),
}

impl<T: Element> HostBuffer<T> {
    /// Allocates `len` zeros: in page-locked memory if there is a context, otherwise in ordinary memory. Makes the
    /// system provide every page.
    pub(crate) fn new(context: Option<&Arc<Context>>, len: usize) -> Result<HostBuffer<T>, DeviceError> {
        let Some(context) = context else {
            let mut buffer = HostBuffer::ordinary(len)?;
            if let Memory::Ordinary(bytes) = &mut buffer.memory {
                bytes.touch();
            }
            return Ok(buffer);
        };
        let pinned = PinnedBuffer::new(context, Self::bytes(len)?)?;
        let device = pinned.device_address();
        Ok(HostBuffer { memory: Memory::Pinned(pinned), len, device, element: PhantomData })
    }

    /// Allocates `len` zeros in ordinary memory. The system may provide its pages only when they are first used.
    pub(crate) fn ordinary(len: usize) -> Result<HostBuffer<T>, DeviceError> {
        let bytes = Self::bytes(len)?;
        let memory = Bytes::zeroed(bytes).ok_or(DeviceError::HostMemory { bytes })?;
        Ok(HostBuffer { memory: Memory::Ordinary(memory), len, device: None, element: PhantomData })
    }

    fn bytes(len: usize) -> Result<usize, DeviceError> {
        let bytes = len.checked_mul(size_of::<T>()).filter(|n| *n <= isize::MAX as usize);
        bytes.ok_or(DeviceError::HostMemory { bytes: len.saturating_mul(size_of::<T>()) })
    }

    /// Returns `true` if the memory is page-locked, so that a GPU can use it.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        matches!(self.memory, Memory::Pinned(_))
    }

    /// Returns the device address of the first element, for [`Plan::bind_device`](crate::Plan::bind_device). The other
    /// elements follow without gaps, as on the host. `None` if the memory is ordinary, or if the buffer is empty.
    #[must_use]
    pub fn device_address(&self) -> Option<u64> {
        self.device
    }

    /// Returns the host address of the first element, aligned to 64 bytes; dangling if the buffer is empty.
    #[must_use]
    pub fn data(&self) -> *mut T {
        match &self.memory {
            Memory::Pinned(buffer) => buffer.data().cast(),
            Memory::Ordinary(bytes) => bytes.data().cast(),
        }
    }
}

impl<T: Element> Drop for HostBuffer<T> {
    fn drop(&mut self) {
        if let Memory::Pinned(buffer) = &self.memory
            && let Err(e) = buffer.settle()
        {
            log::debug!("while waiting for a GPU: {e}");
        }
    }
}

impl<T: Element> Deref for HostBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `new` and `ordinary` allocated zeros for `len` elements, aligned to 64 bytes. Every bit pattern is an
        // element (`Sealed`), and the memory lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.data(), self.len) }
    }
}

impl<T: Element> DerefMut for HostBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.data(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_gpu_it_is_ordinary_memory() {
        let mut buffer = HostBuffer::<f32>::new(None, 5).unwrap();
        assert!(!buffer.is_pinned() && buffer.device_address().is_none());
        assert_eq!(&*buffer, &[0.0; 5]);
        buffer[4] = 2.0;
        assert_eq!(buffer[4], 2.0);
        for len in [0, 1, 3, 1000] {
            let bytes = HostBuffer::<u8>::new(None, len).unwrap();
            assert!(bytes.data().addr().is_multiple_of(64) && *bytes == *vec![0; len]);
        }
        let refused = HostBuffer::<i64>::new(None, usize::MAX / 4);
        assert!(matches!(refused, Err(DeviceError::HostMemory { .. })));
        let refused = HostBuffer::<u8>::new(None, usize::MAX - 64);
        assert!(matches!(refused, Err(DeviceError::HostMemory { bytes }) if bytes == usize::MAX - 64));
    }
}
