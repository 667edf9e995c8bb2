//! How resources of a context are freed: by `close`, which returns the driver's error, or by dropping, which logs it.

/// A resource of a context and how it is given back.
macro_rules! resource {
    ($name:ident, $free:ident, $field:ident) => {
        impl $name {
            fn free(&mut self) -> Result<(), DeviceError> {
                let Some(handle) = self.$field.take() else { return Ok(()) };
                if self.context.is_lost() {
                    return Ok(());
                }
                let entered = self.context.enter()?;
                // SAFETY: *handle*: taken out, so that it is given back once; *current*.
                entered.check(stringify!($free), unsafe { (self.context.api().$free)(handle) })
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                $crate::cuda::driver::context::tell(self.free());
            }
        }

        // SAFETY: handles may be used by every thread that makes the context current.
        unsafe impl Send for $name {}
        // SAFETY: as above; shared use only hands the handle to the driver.
        unsafe impl Sync for $name {}
    };
}

macro_rules! closable {
    ($($name:ident),*) => {$(
        impl $name {
            /// Gives it back.
            ///
            /// # Errors
            /// What the driver reports.
            pub fn close(mut self) -> Result<(), DeviceError> {
                self.free()
            }
        }
    )*};
}

pub(super) use {closable, resource};
