//! Classification of I/O errors: the request's or the system's.

use rustix::io::Errno;
use std::io;

/// Returns `true` if opening failed because the name was wrong, and not because the device or the
/// system failed.
pub(crate) fn named_wrongly(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, IsADirectory, NotADirectory, NotFound, PermissionDenied};
    // A file that is not a device of this kind, or a device or a system that does not support the
    // call.
    let no_such_device = error.raw_os_error().is_some_and(|code| {
        [Errno::NOTTY, Errno::INVAL, Errno::NOSYS].contains(&Errno::from_raw_os_error(code))
    });
    no_such_device
        || matches!(error.kind(), NotFound | PermissionDenied | InvalidInput | IsADirectory | NotADirectory)
}
