//! What the driver knows of an address.

use super::api::pointer;
use super::context::Entered;

impl Entered<'_> {
    /// Where device memory that holds `address` starts, and its bytes; none if it is no device memory of this
    /// context.
    pub fn allocation(&self, address: u64) -> Option<(u64, usize)> {
        let api = self.context.api();
        let (mut base, mut bytes) = (0, 0);
        if self.query::<u32>(pointer::MEMORY_TYPE, address)? != pointer::TYPE_DEVICE {
            return None;
        }
        // Memory of a pool has no context.
        let context = self.query::<usize>(pointer::CONTEXT, address).unwrap_or(0);
        if context != 0 && context != self.context.raw as usize {
            return None;
        }
        // SAFETY: *current*, *room*: an address and a size.
        let code = unsafe { (api.cuMemGetAddressRange_v2)(&raw mut base, &raw mut bytes, address) };
        (code == 0).then_some((base, bytes))
    }

    /// The device's address of `bytes` at `address`, where that is host memory which the device can use in
    /// place.
    pub fn mapped(&self, address: u64, bytes: usize) -> Option<u64> {
        let last = address.checked_add(bytes.checked_sub(1)? as u64)?;
        if self.query::<u32>(pointer::MEMORY_TYPE, address)? != pointer::TYPE_HOST {
            return None;
        }
        // Allocations may lie side by side, and each has a number of its own.
        let id = |address| self.query::<u64>(pointer::BUFFER_ID, address);
        if id(address) != id(last) {
            return None;
        }
        let first = self.query::<u64>(pointer::DEVICE_POINTER, address)?;
        let end = self.query::<u64>(pointer::DEVICE_POINTER, last)?;
        (first != 0 && end.checked_sub(first)? == last - address).then_some(first)
    }

    /// An attribute of a pointer; none where the driver does not know the pointer.
    fn query<T: Default>(&self, attribute: i32, address: u64) -> Option<T> {
        let mut value = T::default();
        // SAFETY: *current*, *room*: the attributes that are asked for have the sizes of the types they are
        // asked as.
        let code = unsafe {
            (self.context.api().cuPointerGetAttribute)((&raw mut value).cast(), attribute, address)
        };
        (code == 0).then_some(value)
    }
}
