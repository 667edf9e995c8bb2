//! Classifies I/O errors: caused by the request, or by the system.

use rustix::io::Errno;
use std::io;

/// Returns `true` if a file or device could not be opened because its name was wrong, `false` if the device or the
/// system failed.
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
