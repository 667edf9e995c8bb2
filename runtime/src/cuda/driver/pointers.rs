//! Queries the driver about addresses and memory.

use super::api::pointer;
use super::context::Entered;
use crate::error::DeviceError;
use std::ffi::{c_uint, c_void};

/// A piece of device memory from a single allocation, or a range of addresses from a single reservation.
struct Allocation {
    start: u64,
    bytes: usize,
    /// `true` if the memory belongs to no context. This is memory of a pool or of a reserved range, such as Torch's
    /// expandable segments. Parts of a reserved range may have no memory.
    pooled: bool,
}

impl Entered<'_> {
    /// Returns the free memory of the device in bytes. On an integrated device this is the system's free memory.
    ///
    /// # Errors
    /// Returns the error that the driver reports.
    pub fn free_memory(&self) -> Result<usize, DeviceError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: *current*; *room*: the call writes two sizes.
        let code = unsafe { (self.context.api().cuMemGetInfo_v2)(&raw mut free, &raw mut total) };
        self.check("cuMemGetInfo_v2", code)?;
        Ok(free)
    }

    /// Returns the device memory of this context that contains `address`; `None` if no such memory contains it. If the
    /// driver reports ranges as attributes, one call to the driver is enough. The number of calls matters, because this
    /// function is called for every tensor of every run on device tensors.
    fn allocation(&self, address: u64) -> Option<Allocation> {
        let (mut kind, mut context, mut start, mut bytes) = (0_u32, 0_usize, 0_u64, 0_usize);
        let mut attributes =
            [pointer::MEMORY_TYPE, pointer::CONTEXT, pointer::RANGE_START, pointer::RANGE_SIZE];
        let mut values: [*mut c_void; 4] = [
            (&raw mut kind).cast(),
            (&raw mut context).cast(),
            (&raw mut start).cast(),
            (&raw mut bytes).cast(),
        ];
        // SAFETY: *current*, *room*: the call reads four attributes, and writes each as a type of its size.
        let code = unsafe {
            (self.context.api().cuPointerGetAttributes)(
                attributes.len() as c_uint,
                attributes.as_mut_ptr(),
                values.as_mut_ptr(),
                address,
            )
        };
        let own = context == 0 || context == self.context.raw as usize;
        if code != 0 || kind != pointer::TYPE_DEVICE || !own {
            return None;
        }
        if bytes == 0 {
            // The driver does not report ranges as attributes.
            // SAFETY: *current*; *room*: the call writes an address and a size.
            let code = unsafe {
                (self.context.api().cuMemGetAddressRange_v2)(&raw mut start, &raw mut bytes, address)
            };
            if code != 0 {
                return None;
            }
        }
        Some(Allocation { start, bytes, pooled: context == 0 })
    }

    /// Returns the device address of `bytes` bytes of host memory that begin at `address`; `None` if the device cannot
    /// use them in place.
    pub fn mapped(&self, address: u64, bytes: usize) -> Option<u64> {
        let last = address.checked_add(bytes.checked_sub(1)? as u64)?;
        if self.query::<u32>(pointer::MEMORY_TYPE, address)? != pointer::TYPE_HOST {
            return None;
        }
        // The bytes may extend over two adjacent allocations, whose identifiers differ.
        let id = |address| self.query::<u64>(pointer::BUFFER_ID, address);
        if id(address) != id(last) {
            return None;
        }
        let first = self.query::<u64>(pointer::DEVICE_POINTER, address)?;
        let end = self.query::<u64>(pointer::DEVICE_POINTER, last)?;
        (first != 0 && end.checked_sub(first)? == last - address).then_some(first)
    }

    /// Returns the device address of the `needed` bytes at `address`. They may be device memory of this context, or
    /// host memory that the device can use in place.
    ///
    /// # Errors
    /// Returns `Some(n)` if the allocation ends `n` bytes after `address` and `n` is less than `needed`. Returns `None`
    /// if the device cannot use the address.
    pub fn usable_at(&self, address: u64, needed: usize) -> Result<u64, Option<usize>> {
        let Some(Allocation { start, bytes, pooled }) = self.allocation(address) else {
            return self.mapped(address, needed).ok_or(None);
        };
        let before = usize::try_from(address.saturating_sub(start)).unwrap_or(usize::MAX);
        let found = bytes.saturating_sub(before);
        if found < needed {
            return Err(Some(found));
        }
        let last = address.saturating_add(needed.saturating_sub(1) as u64);
        if pooled && self.query::<u32>(pointer::MEMORY_TYPE, last) != Some(pointer::TYPE_DEVICE) {
            return Err(None);
        }
        Ok(address)
    }

    /// Returns an attribute of a pointer; `None` if the driver does not know the pointer.
    fn query<T: Default>(&self, attribute: i32, address: u64) -> Option<T> {
        let mut value = T::default();
        // SAFETY: *current*, *room*: each attribute is queried as a type of its size.
        let code = unsafe {
            (self.context.api().cuPointerGetAttribute)((&raw mut value).cast(), attribute, address)
        };
        (code == 0).then_some(value)
    }
}
