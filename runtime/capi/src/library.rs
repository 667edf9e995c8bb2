//! The library as a whole: its version, its last error, the back ends that it has.

use crate::convert;
use crate::fault::{self, call};
use crate::pointer::{aligned, put};
use crate::types::*;
use elsa_runtime::Backend;
use std::ffi::c_char;

/// The version of the library, "major.minor.patch", in memory that is never freed.
#[unsafe(no_mangle)]
pub extern "C" fn elsa_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// The message of the last call of this thread that did not return ELSA_STATUS_OK; empty if there was none. It is
/// valid until the next such call of this thread, or the end of the thread. Never null.
#[unsafe(no_mangle)]
pub extern "C" fn elsa_last_error() -> *const c_char {
    fault::last()
}

/// Whether this build has a back end and this machine can execute it: writes 1 or 0 to present.
///
/// # Safety
/// *write*.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_backend_present(backend: elsa_backend, present: *mut u32) -> elsa_status {
    call(|| {
        aligned("present", present)?;
        let yes = convert::backend(backend)?.is_none_or(Backend::is_present);
        // SAFETY: *write*.
        unsafe { put(present, u32::from(yes)) };
        Ok(())
    })
}

/// Makes the next call of this thread panic inside. For tests.
#[cfg(feature = "inject")]
#[unsafe(no_mangle)]
pub extern "C" fn elsa_test_panic_next() {
    let _ = fault::PANIC_NEXT.try_with(|next| next.set(true));
}
