//! Errors of sources.

use crate::request::named_wrongly;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Reason why a source cannot deliver frames.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The folder could not be read.
    #[error("images: {}: {source}; allowed: a readable folder", path.display())]
    Folder {
        /// Path of the folder.
        path: PathBuf,
        /// Error that the system returned.
        source: io::Error,
    },
    /// None of the pictures in the folder could be decoded.
    #[error("images: {}: {files} PNG or JPEG files, none readable; allowed: a folder with at least one", path.display())]
    NoImages {
        /// Path of the folder.
        path: PathBuf,
        /// Number of files with the extension of a picture.
        files: usize,
    },
    /// The decoded pictures of the folder exceed the limit.
    #[error("images: {}: more than {limit} bytes of pixels; allowed: fewer or smaller pictures, or a pipe", path.display())]
    Large {
        /// Path of the folder.
        path: PathBuf,
        /// Largest allowed number of bytes.
        limit: usize,
    },
    /// The pipe could not be opened.
    #[error("pipe: {}: {source}; allowed: a readable file or pipe, or - for standard input", path.display())]
    Pipe {
        /// Path of the pipe.
        path: PathBuf,
        /// Error that the system returned.
        source: io::Error,
    },
    /// Reading the pipe failed.
    #[error("pipe: reading failed: {0}")]
    Read(io::Error),
    /// The camera could not be opened or started.
    #[error("camera: {}: {source}; allowed: a V4L2 capture device that the user may open", path.display())]
    Camera {
        /// Path of the device.
        path: PathBuf,
        /// Error that the system returned.
        source: io::Error,
    },
    /// The camera does not support the requested mode.
    #[error("camera: {}: {offered} instead of {asked}; allowed: a size and format that the camera has", path.display())]
    Mode {
        /// Path of the device.
        path: PathBuf,
        /// The requested mode.
        asked: String,
        /// The mode that the driver chose.
        offered: String,
    },
    /// The camera was removed, or its driver failed.
    #[error("camera: lost: {0}")]
    Lost(io::Error),
    /// No frame arrived within the allowed time.
    #[error("frames: none for {} s", patience.as_secs_f64())]
    Silent {
        /// Time that the loop has waited.
        patience: Duration,
    },
    /// The thread that reads frames could not be started.
    #[error("frames: the system started no thread: {0}")]
    Thread(io::Error),
    /// The system refused memory.
    #[error("frames: {bytes} bytes of memory were refused by the system")]
    Memory {
        /// Number of requested bytes.
        bytes: usize,
    },
}

impl SourceError {
    /// Returns `true` if the request caused the error, `false` if the device or the system did.
    #[must_use]
    pub fn is_request(&self) -> bool {
        match self {
            SourceError::Folder { source, .. }
            | SourceError::Pipe { source, .. }
            | SourceError::Camera { source, .. } => named_wrongly(source),
            SourceError::NoImages { .. } | SourceError::Large { .. } | SourceError::Mode { .. } => true,
            _ => false,
        }
    }
}
