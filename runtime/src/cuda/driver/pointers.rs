//! Queries the driver about addresses and memory.

use super::api::pointer;
use super::context::Entered;
use crate::error::DeviceError;

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

    /// Returns the start and the size in bytes of the device memory allocation that contains `address`; `None`
    /// if the address is not device memory of this context.
    pub fn allocation(&self, address: u64) -> Option<(u64, usize)> {
        let api = self.context.api();
        let (mut base, mut bytes) = (0, 0);
        if self.query::<u32>(pointer::MEMORY_TYPE, address)? != pointer::TYPE_DEVICE {
            return None;
        }
        // The driver reports no context for memory from a pool.
        let context = self.query::<usize>(pointer::CONTEXT, address).unwrap_or(0);
        if context != 0 && context != self.context.raw as usize {
            return None;
        }
        // SAFETY: *current*; *room*: the call writes an address and a size.
        let code = unsafe { (api.cuMemGetAddressRange_v2)(&raw mut base, &raw mut bytes, address) };
        (code == 0).then_some((base, bytes))
    }

    /// Returns the device address of the `bytes` bytes of host memory at `address`; `None` if the device cannot use
    /// them in place.
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

    /// Returns the device address of the `needed` bytes at `address`, which may be device memory of this context or
    /// host memory that the device can use in place.
    ///
    /// # Errors
    /// Returns `Some` with the number of bytes to the end of the allocation if that is less than `needed`, or `None` if
    /// the device cannot use the address.
    pub fn usable_at(&self, address: u64, needed: usize) -> Result<u64, Option<usize>> {
        let Some((base, bytes)) = self.allocation(address) else {
            return self.mapped(address, needed).ok_or(None);
        };
        let before = usize::try_from(address.saturating_sub(base)).unwrap_or(usize::MAX);
        let found = bytes.saturating_sub(before);
        if found < needed { Err(Some(found)) } else { Ok(address) }
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
