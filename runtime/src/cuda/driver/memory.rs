//! Device memory, and page-locked host memory.

use super::api::{HOST_PORTABLE_MAPPED, code};
use super::context::Context;
use super::resource::{closable, resource};
use crate::error::DeviceError;
use cudarc::driver::sys::CUdeviceptr;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

/// A buffer in device memory: allocated, or lent by the caller.
#[derive(Debug)]
pub struct DeviceBuffer {
    context: Arc<Context>,
    /// The address to free; `None` if the buffer is empty or lent.
    owned: Option<CUdeviceptr>,
    address: u64,
    bytes: usize,
    lent: bool,
}

impl DeviceBuffer {
    /// Allocates `bytes` bytes. Does not call the driver if `bytes` is zero.
    ///
    /// # Errors
    /// Returns the error that the driver reports.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<DeviceBuffer, DeviceError> {
        let context = context.clone();
        if bytes == 0 {
            return Ok(DeviceBuffer { context, owned: None, address: 0, bytes, lent: false });
        }
        let entered = context.enter()?;
        let relaxed = entered.relax()?;
        let mut address = 0;
        // SAFETY: *current*; *room*: the call writes an address.
        let code = unsafe { (context.api().cuMemAlloc_v2)(&raw mut address, bytes) };
        if code == code::OUT_OF_MEMORY {
            return Err(DeviceError::Memory { call: "cuMemAlloc_v2", bytes });
        }
        entered.check("cuMemAlloc_v2", code)?;
        drop(relaxed);
        drop(entered);
        Ok(DeviceBuffer { context, owned: Some(address), address, bytes, lent: false })
    }

    /// Wraps the caller's device memory. The buffer neither initialises nor frees it.
    ///
    /// # Safety
    /// - *lent*: the context can use the `bytes` bytes at `address`. Nothing else uses these bytes until the buffer is
    ///   dropped and the work that uses the buffer is done.
    pub unsafe fn lent(context: &Arc<Context>, address: u64, bytes: usize) -> DeviceBuffer {
        DeviceBuffer { context: context.clone(), owned: None, address, bytes, lent: true }
    }

    /// Returns `true` if the memory belongs to the caller.
    pub fn is_lent(&self) -> bool {
        self.lent
    }

    /// Returns the device address of the first byte; zero if the buffer is empty and not lent.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

resource!(DeviceBuffer, cuMemFree_v2, owned);

/// A buffer in page-locked host memory that the device can use in place.
#[derive(Debug)]
pub struct PinnedBuffer {
    context: Arc<Context>,
    data: Option<*mut c_void>,
    bytes: usize,
}

impl PinnedBuffer {
    /// Allocates `bytes` bytes and sets them to zero. Does not call the driver if `bytes` is zero.
    ///
    /// # Errors
    /// Returns the error that the driver reports.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<PinnedBuffer, DeviceError> {
        let mut buffer = PinnedBuffer { context: context.clone(), data: None, bytes: 0 };
        if bytes == 0 {
            return Ok(buffer);
        }
        let entered = context.enter()?;
        let relaxed = entered.relax()?;
        let mut data = ptr::null_mut();
        // SAFETY: *current*; *room*: the call writes a pointer.
        let code = unsafe { (context.api().cuMemHostAlloc)(&raw mut data, bytes, HOST_PORTABLE_MAPPED) };
        if code == code::OUT_OF_MEMORY {
            return Err(DeviceError::Memory { call: "cuMemHostAlloc", bytes });
        }
        entered.check("cuMemHostAlloc", code)?;
        (buffer.data, buffer.bytes) = (Some(data), bytes);
        // SAFETY: *room*: the allocation has `bytes` bytes.
        unsafe { ptr::write_bytes(data.cast::<u8>(), 0, bytes) };
        drop(relaxed);
        drop(entered);
        Ok(buffer)
    }

    /// Returns the address of the first byte, aligned to at least 64 bytes; dangling if the buffer is empty.
    pub fn data(&self) -> *mut u8 {
        self.data.map_or(ptr::without_provenance_mut(64), <*mut c_void>::cast)
    }

    /// Returns the device address of the first byte; `None` if the buffer is empty, or if the driver has no device
    /// address for it.
    pub fn device_address(&self) -> Option<u64> {
        let entered = self.context.enter().ok()?;
        entered.mapped(self.data().expose_provenance() as u64, self.bytes)
    }

    /// Waits for all work in the context, so that no work uses the buffer afterwards.
    ///
    /// # Errors
    /// Returns the error that the driver reports, including errors of earlier work.
    pub fn settle(&self) -> Result<(), DeviceError> {
        if self.data.is_none() || self.context.usable().is_err() {
            return Ok(());
        }
        self.context.enter()?.synchronize()
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

resource!(PinnedBuffer, cuMemFreeHost, data);

closable!(DeviceBuffer, PinnedBuffer);
