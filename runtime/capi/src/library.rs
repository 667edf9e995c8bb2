//! The library as a whole: its version, its last error, its back ends.

use crate::convert;
use crate::fault::{self, call};
use crate::pointer::{aligned, put};
use crate::types::*;
use elsa_runtime::Backend;
use std::ffi::c_char;

/// Returns the version of the library, "major.minor.patch"; static, never freed.
#[unsafe(no_mangle)]
pub extern "C" fn elsa_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// Returns ELSA_ABI_MAJOR and ELSA_ABI_MINOR of the loaded library: major in the upper 16 bits, minor in the lower. A
/// program, whose numbers are those of its header, runs if the majors are equal and the library's minor is not lower.
#[unsafe(no_mangle)]
pub extern "C" fn elsa_abi_version() -> u32 {
    ELSA_ABI_MAJOR << 16 | ELSA_ABI_MINOR
}

/// Returns the name and the meaning of a status as one line of text; static, never freed, never null.
#[unsafe(no_mangle)]
pub extern "C" fn elsa_status_text(status: elsa_status) -> *const c_char {
    let text = match status {
        ELSA_STATUS_OK => c"ELSA_STATUS_OK: done",
        ELSA_STATUS_ARGUMENT => c"ELSA_STATUS_ARGUMENT: an argument is not allowed",
        ELSA_STATUS_HANDLE => c"ELSA_STATUS_HANDLE: a handle names nothing",
        ELSA_STATUS_BUSY => {
            c"ELSA_STATUS_BUSY: another call is using the workspace, or it was a call from a log callback"
        }
        ELSA_STATUS_UNSUPPORTED => c"ELSA_STATUS_UNSUPPORTED: this machine or this build does not support it",
        ELSA_STATUS_MEMORY => c"ELSA_STATUS_MEMORY: memory is not available, or exceeds the budget",
        ELSA_STATUS_DEVICE => c"ELSA_STATUS_DEVICE: the GPU or the system failed",
        ELSA_STATUS_PANIC => c"ELSA_STATUS_PANIC: a defect of the library was caught",
        ELSA_STATUS_CALLBACK => c"ELSA_STATUS_CALLBACK: a callback of a stream has ended the run",
        ELSA_STATUS_CANCELLED => c"ELSA_STATUS_CANCELLED: elsa_engine_cancel has ended the call",
        _ => c"not a status of elsa",
    };
    text.as_ptr()
}

/// Returns the message of this thread's last call that did not return ELSA_STATUS_OK; empty if there was none.
/// The text is valid until the next such call of this thread, or the end of the thread. Never null.
#[unsafe(no_mangle)]
pub extern "C" fn elsa_last_error() -> *const c_char {
    fault::last()
}

/// Checks whether this build has a back end and this machine can execute it: writes 1 or 0 to present.
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
