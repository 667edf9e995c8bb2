//! Functions about the library: its version, the last error of a thread, and the back ends that are present.

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

/// Returns the ABI version of the loaded library: ELSA_ABI_MAJOR in the upper 16 bits, ELSA_ABI_MINOR in the lower. A
/// program can use the library if the major version equals that of the header with which the program was compiled, and
/// the minor version is not lower than that of the header.
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

/// Returns the message of the last call on this thread that returned a status other than ELSA_STATUS_OK; empty if no
/// call has. Never null. The text is valid until the next failing call on this thread or until the thread ends.
#[unsafe(no_mangle)]
pub extern "C" fn elsa_last_error() -> *const c_char {
    fault::last()
}

/// Checks whether this build has a back end and this machine can execute it: writes 1 or 0 to present.
///
/// # Safety
/// Each pointer is null or valid for writes, and nothing else uses that memory during the call (*write*).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_backend_present(backend: elsa_backend, present: *mut u32) -> elsa_status {
    call(|| {
        aligned("present", present)?;
        let yes = convert::backend(backend)?.is_none_or(Backend::is_present);
        // SAFETY: the caller keeps the clause *write*.
        unsafe { put(present, u32::from(yes)) };
        Ok(())
    })
}

/// Makes the next call on this thread panic inside the library. For tests.
#[cfg(feature = "inject")]
#[unsafe(no_mangle)]
pub extern "C" fn elsa_test_panic_next() {
    let _ = fault::PANIC_NEXT.try_with(|next| next.set(true));
}
