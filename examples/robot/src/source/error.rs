//! Errors of sources.

use crate::request::named_wrongly;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Reason why there are no frames.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The folder cannot be read.
    #[error("images: {}: {source}; allowed: a readable folder", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// No picture in the folder can be decoded.
    #[error("images: {}: {files} PNG or JPEG files, none readable; allowed: a folder with at least one", path.display())]
    NoImages {
        /// The folder.
        path: PathBuf,
        /// Number of files with a matching name.
        files: usize,
    },
    /// The decoded folder does not fit the limit.
    #[error("images: {}: more than {limit} bytes of pixels; allowed: fewer or smaller pictures, or a pipe", path.display())]
    Large {
        /// The folder.
        path: PathBuf,
        /// Largest number of bytes.
        limit: usize,
    },
    /// The pipe cannot be opened.
    #[error("pipe: {}: {source}; allowed: a readable file or pipe, or - for standard input", path.display())]
    Pipe {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Reading the pipe failed.
    #[error("pipe: reading failed: {0}")]
    Read(io::Error),
    /// The camera cannot be opened or started.
    #[error("camera: {}: {source}; allowed: a V4L2 capture device that the user may open", path.display())]
    Camera {
        /// The device.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The camera has no such mode.
    #[error("camera: {}: {offered} instead of {asked}; allowed: a size and format that the camera has", path.display())]
    Mode {
        /// The device.
        path: PathBuf,
        /// The requested mode.
        asked: String,
        /// The mode that the driver chose.
        offered: String,
    },
    /// The camera is gone, or its driver fails.
    #[error("camera: lost: {0}")]
    Lost(io::Error),
    /// No frame arrived for too long.
    #[error("frames: none for {} s", patience.as_secs_f64())]
    Silent {
        /// Time that the loop has waited.
        patience: Duration,
    },
    /// The thread that reads frames cannot be started.
    #[error("frames: the system started no thread: {0}")]
    Thread(io::Error),
    /// The system has refused memory.
    #[error("frames: {bytes} bytes of memory were refused by the system")]
    Memory {
        /// Requested bytes.
        bytes: usize,
    },
}

impl SourceError {
    /// Returns `true` if the request is at fault, and not the device or the system.
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
