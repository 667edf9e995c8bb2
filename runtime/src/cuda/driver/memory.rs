//! Device memory, and page-locked host memory.

use super::api::{HOST_PORTABLE_MAPPED, code};
use super::context::Context;
use super::resource::{closable, resource};
use crate::error::DeviceError;
use cudarc::driver::sys::CUdeviceptr;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

/// A buffer in device memory.
#[derive(Debug)]
pub struct DeviceBuffer {
    context: Arc<Context>,
    address: Option<CUdeviceptr>,
    bytes: usize,
}

impl DeviceBuffer {
    /// Allocates `bytes` bytes. Zero bytes need no allocation.
    ///
    /// # Errors
    /// Returns the error that the driver reports.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<DeviceBuffer, DeviceError> {
        if bytes == 0 {
            return Ok(DeviceBuffer { context: context.clone(), address: None, bytes });
        }
        let entered = context.enter()?;
        let mut address = 0;
        // SAFETY: *current*, *room*: an address.
        let code = unsafe { (context.api().cuMemAlloc_v2)(&raw mut address, bytes) };
        if code == code::OUT_OF_MEMORY {
            return Err(DeviceError::Memory { call: "cuMemAlloc_v2", bytes });
        }
        entered.check("cuMemAlloc_v2", code)?;
        Ok(DeviceBuffer { context: context.clone(), address: Some(address), bytes })
    }

    /// Device address of the first byte; zero if the buffer is empty.
    pub fn address(&self) -> u64 {
        self.address.unwrap_or(0)
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

resource!(DeviceBuffer, cuMemFree_v2, address);

/// A buffer in page-locked host memory that the device can use in place.
#[derive(Debug)]
pub struct PinnedBuffer {
    context: Arc<Context>,
    data: Option<*mut c_void>,
    bytes: usize,
}

impl PinnedBuffer {
    /// Allocates `bytes` zero bytes. Zero bytes need no allocation.
    ///
    /// # Errors
    /// Returns the error that the driver reports.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<PinnedBuffer, DeviceError> {
        let mut buffer = PinnedBuffer { context: context.clone(), data: None, bytes: 0 };
        if bytes == 0 {
            return Ok(buffer);
        }
        let entered = context.enter()?;
        let mut data = ptr::null_mut();
        // SAFETY: *current*, *room*: a pointer.
        let code = unsafe { (context.api().cuMemHostAlloc)(&raw mut data, bytes, HOST_PORTABLE_MAPPED) };
        if code == code::OUT_OF_MEMORY {
            return Err(DeviceError::Memory { call: "cuMemHostAlloc", bytes });
        }
        entered.check("cuMemHostAlloc", code)?;
        (buffer.data, buffer.bytes) = (Some(data), bytes);
        // SAFETY: *room*: the allocation has that many bytes.
        unsafe { ptr::write_bytes(data.cast::<u8>(), 0, bytes) };
        drop(entered);
        Ok(buffer)
    }

    /// Address of the first byte, aligned to at least 16 bytes; dangling if the buffer is empty.
    pub fn data(&self) -> *mut u8 {
        self.data.map_or(ptr::without_provenance_mut(16), <*mut c_void>::cast)
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

resource!(PinnedBuffer, cuMemFreeHost, data);

closable!(DeviceBuffer, PinnedBuffer);
