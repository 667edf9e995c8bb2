//! Errors from reading and writing files.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Reason why a file's content is not a usable tensor for an argument.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// Content that violates the file format.
    #[error("not a {format} file: {found}; allowed: {allowed}")]
    Format {
        /// `.npy`, `.npz` or `.safetensors`.
        format: &'static str,
        /// Offending content.
        found: String,
        /// Allowed content.
        allowed: &'static str,
    },
    /// An element type that the argument does not accept.
    #[error("type {found}; allowed: {allowed}")]
    Type {
        /// The type as the file spells it.
        found: String,
        /// Allowed types.
        allowed: &'static str,
    },
    /// Data with fewer or more bytes than the shape requires.
    #[error("{found} bytes of data; allowed: {needed}, for the shape {shape:?} of {dtype}")]
    Length {
        /// Number of bytes in the file.
        found: usize,
        /// Number of bytes that the shape requires.
        needed: usize,
        /// Shape that the file states.
        shape: Vec<usize>,
        /// Name of the element type.
        dtype: &'static str,
    },
    /// A shape whose size in bytes overflows.
    #[error("shape {shape:?}; allowed: a product that fits the address space")]
    Overflow {
        /// The shape in the file.
        shape: Vec<u64>,
    },
    /// A name for which the file has no tensor.
    #[error("no tensor '{name}'; allowed: {allowed}")]
    Name {
        /// The requested name.
        name: String,
        /// Names of the tensors in the file.
        allowed: String,
    },
    /// A rank that is not allowed for the argument.
    #[error("rank {}, shape {shape:?}; allowed: {allowed}", shape.len())]
    Rank {
        /// The shape of the tensor.
        shape: Vec<usize>,
        /// Allowed ranks.
        allowed: &'static str,
    },
}

/// Error of an allocation that the system refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{argument}: {bytes} bytes of memory were refused by the system")]
pub struct MemoryError {
    /// The tensor that needed the memory.
    pub argument: &'static str,
    /// Size in bytes.
    pub bytes: usize,
}

/// Error from reading or writing a file. Each message starts with the caller's argument that names the file.
#[derive(Debug)]
#[non_exhaustive]
pub enum FileError {
    /// A path whose extension is not allowed for the output.
    Extension {
        /// Argument that names the file.
        argument: &'static str,
        /// Path that was given.
        found: String,
        /// Allowed extensions.
        allowed: &'static str,
    },
    /// An output that would replace an input of the call.
    Input {
        /// Argument that names the output.
        argument: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Argument that reads the file as an input.
        reader: &'static str,
        /// `true` if the option `force` allows the file to be replaced.
        yields: bool,
    },
    /// An output that would replace another output of the call.
    Output {
        /// Argument that names the output.
        argument: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Argument that names the other output.
        other: &'static str,
    },
    /// A file that does not contain a usable tensor for the argument.
    Tensor {
        /// Argument that names the file.
        argument: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Reason why the content is not usable.
        source: TensorError,
    },
    /// A file that cannot be read.
    Read {
        /// Argument that names the file.
        argument: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Cause of the error.
        source: io::Error,
    },
    /// A file that was written, replaced or removed during the call.
    Changed {
        /// Argument that names the file.
        argument: &'static str,
        /// Path of the file.
        path: PathBuf,
    },
    /// An output that cannot be written. This error is detected before anything is computed.
    Target {
        /// Argument that names the file.
        argument: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Cause of the error.
        reason: String,
    },
    /// A write that failed although the folder is writable, for example on a full disk or a failing device.
    Write {
        /// Argument that names the file.
        argument: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Cause of the error.
        source: io::Error,
    },
    /// An allocation that the system refused.
    Memory(MemoryError),
}

impl FileError {
    /// Returns `true` if the caller's request caused the error, `false` if the device or the memory did.
    #[must_use]
    pub fn is_request(&self) -> bool {
        match self {
            FileError::Extension { .. }
            | FileError::Input { .. }
            | FileError::Output { .. }
            | FileError::Tensor { .. }
            | FileError::Target { .. } => true,
            FileError::Read { source, .. } => match source.kind() {
                ErrorKind::NotFound
                | ErrorKind::PermissionDenied
                | ErrorKind::InvalidInput
                | ErrorKind::InvalidFilename
                | ErrorKind::IsADirectory
                | ErrorKind::NotADirectory
                | ErrorKind::WouldBlock => true,
                // A loop of links, for which `ErrorKind` has no stable name.
                _ => source.raw_os_error() == Some(libc::ELOOP),
            },
            _ => false,
        }
    }

    /// Returns the message. `spelled` converts the name of each argument, and the name `force`, to the text that the
    /// message contains. For an allocation that the system refused, `spelled` receives the complete message, which
    /// starts with the argument.
    #[must_use]
    pub fn message(&self, spelled: impl Fn(&str) -> String) -> String {
        match self {
            FileError::Extension { argument, found, allowed } => {
                format!("{}: {found}; allowed: {allowed}", spelled(argument))
            }
            FileError::Input { argument, path, reader, yields } => {
                let force =
                    if *yields { format!(", or {} to replace it", spelled("force")) } else { String::new() };
                let (argument, path, reader) = (spelled(argument), path.display(), spelled(reader));
                format!("{argument}: {path}, which {reader} reads; allowed: another file{force}")
            }
            FileError::Output { argument, path, other } => {
                unwritten(&spelled(argument), path, &format!("{} writes the same", spelled(other)))
            }
            FileError::Tensor { argument, path, source } => {
                format!("{}: {}: {source}", spelled(argument), path.display())
            }
            FileError::Read { argument, path, source } => format!(
                "{}: {}: cannot be read: {source}; allowed: a readable file",
                spelled(argument),
                path.display()
            ),
            FileError::Changed { argument, path } => format!(
                "{}: {}: changed during the run; run again when its writer is done",
                spelled(argument),
                path.display()
            ),
            FileError::Target { argument, path, reason } => unwritten(&spelled(argument), path, reason),
            FileError::Write { argument, path, source } => {
                format!("{}: {}: writing failed: {source}", spelled(argument), path.display())
            }
            FileError::Memory(e) => spelled(&e.to_string()),
        }
    }
}

fn unwritten(argument: &str, path: &Path, reason: &str) -> String {
    format!(
        "{argument}: {}: cannot be written: {reason}; allowed: a file in a writable folder",
        path.display()
    )
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message(str::to_owned))
    }
}

impl std::error::Error for FileError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            FileError::Tensor { source, .. } => Some(source),
            FileError::Read { source, .. } | FileError::Write { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<MemoryError> for FileError {
    fn from(error: MemoryError) -> FileError {
        FileError::Memory(error)
    }
}
