//! Distinguishes I/O errors that the request caused from I/O errors that the device or the system caused.

use rustix::io::Errno;
use std::io;

/// Returns `true` if `error` means that the request named a wrong file or device. Returns `false` if it means that the
/// device or the system failed.
pub(crate) fn named_wrongly(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, IsADirectory, NotADirectory, NotFound, PermissionDenied};
    // These codes mean that the file is not a device of the requested kind, or that the device or the
    // system does not support the call.
    let no_such_device = error.raw_os_error().is_some_and(|code| {
        [Errno::NOTTY, Errno::INVAL, Errno::NOSYS].contains(&Errno::from_raw_os_error(code))
    });
    no_such_device
        || matches!(error.kind(), NotFound | PermissionDenied | InvalidInput | IsADirectory | NotADirectory)
}
