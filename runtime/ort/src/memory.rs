//! Device memory from the allocator of the CUDA provider. It counts towards the provider's limit, and the session's other
//! nodes use it again.
//!
//! Clauses cited by unsafe blocks:
//! - *own*: the runtime has returned the handle or the address, and it is released once. The session keeps its provider,
//!   and so the allocator, as long as its nodes.

use crate::api::Api;
use crate::error::OperatorError;
use ort_sys::OrtAllocator;
use std::sync::Arc;

/// The allocator of a node's provider.
pub(crate) struct Allocator {
    api: Api,
    raw: *mut OrtAllocator,
}

// SAFETY: *own*: the runtime's allocators may be used from any thread.
unsafe impl Send for Allocator {}
// SAFETY: as above.
unsafe impl Sync for Allocator {}

impl Allocator {
    /// Takes the handle of an allocator.
    ///
    /// # Safety
    /// - `raw` keeps the clause *own*, for an allocator of the runtime of `api`.
    pub unsafe fn new(api: Api, raw: *mut OrtAllocator) -> Allocator {
        Allocator { api, raw }
    }

    /// Allocates `bytes` bytes of device memory; no memory for 0 bytes.
    ///
    /// # Errors
    /// Returns the error of the runtime.
    pub fn allocate(self: &Arc<Allocator>, bytes: usize) -> Result<DeviceMemory, OperatorError> {
        // SAFETY: *own*.
        let address = if bytes == 0 { 0 } else { unsafe { self.api.allocate(self.raw, bytes)? } };
        Ok(DeviceMemory { allocator: self.clone(), address, bytes })
    }
}

impl Drop for Allocator {
    fn drop(&mut self) {
        // SAFETY: *own*.
        unsafe { self.api.release_allocator(self.raw) };
    }
}

/// Memory of an allocator.
pub(crate) struct DeviceMemory {
    allocator: Arc<Allocator>,
    pub address: u64,
    pub bytes: usize,
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.address != 0 {
            // SAFETY: *own*.
            unsafe { self.allocator.api.free(self.allocator.raw, self.address) };
        }
    }
}
