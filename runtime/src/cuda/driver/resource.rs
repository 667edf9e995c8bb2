//! Releases the resources of a context. The function `close` releases a resource and returns the driver's error.
//! Dropping a resource also releases it, but logs the driver's error.

/// Implements the release of a resource by the driver function `$free`, which takes the handle in the field `$field`.
macro_rules! resource {
    ($name:ident, $free:ident, $field:ident) => {
        impl $name {
            fn free(&mut self) -> Result<(), DeviceError> {
                let Some(handle) = self.$field.take() else { return Ok(()) };
                if self.context.usable().is_err() {
                    return Ok(());
                }
                let entered = self.context.enter()?;
                let _relaxed = entered.relax()?;
                // SAFETY: *handle*: it has been taken out of its field, so it is released once; *current*.
                entered.check(stringify!($free), unsafe { (self.context.api().$free)(handle) })
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                $crate::cuda::driver::context::log_error(self.free());
            }
        }

        // SAFETY: every thread that makes the context current may use its handles.
        unsafe impl Send for $name {}
        // SAFETY: as above. Shared references only pass the handle to the driver.
        unsafe impl Sync for $name {}
    };
}

macro_rules! closable {
    ($($name:ident),*) => {$(
        impl $name {
            /// Frees the resource.
            ///
            /// # Errors
            /// Returns the error that the driver reports.
            pub fn close(mut self) -> Result<(), DeviceError> {
                self.free()
            }
        }
    )*};
}

pub(super) use {closable, resource};
