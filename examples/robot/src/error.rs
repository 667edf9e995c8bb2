//! Errors of the program, and its exit statuses.

use crate::model::ModelError;
use crate::sink::SinkError;
use crate::source::SourceError;
use std::io;

/// Exit status for a wrong request.
pub const REQUEST: u8 = 2;
/// Exit status for a failing device or system.
pub const SYSTEM: u8 = 3;

/// Reason why the loop does not start or continue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model cannot be used, or attention failed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The source of frames failed.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// Results cannot be delivered.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// A core that the process may not use.
    #[error("cpu: {found}; allowed here: {allowed}")]
    Cpu {
        /// The requested core.
        found: usize,
        /// The cores of the process.
        allowed: String,
    },
    /// A system call that failed.
    #[error("{what}: {source}")]
    System {
        /// Purpose of the memory.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl Error {
    /// Returns the exit status: 2 for a wrong request, 3 for a failing device or system.
    #[must_use]
    pub fn status(&self) -> u8 {
        let request = match self {
            Error::Model(error) => error.is_request(),
            Error::Source(error) => error.is_request(),
            Error::Sink(error) => error.is_request(),
            Error::Cpu { .. } => true,
            Error::System { .. } => false,
        };
        if request { REQUEST } else { SYSTEM }
    }

    /// Makes an error of a system call; `what` names its purpose.
    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::System { what, source }
    }
}
