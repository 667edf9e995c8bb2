//! Errors of the program, and its exit statuses.

use crate::model::ModelError;
use crate::sink::SinkError;
use crate::source::SourceError;
use std::io;

/// Exit status for an invalid request.
pub const REQUEST: u8 = 2;
/// Exit status for a failing device or system.
pub const SYSTEM: u8 = 3;

/// Reason why the loop cannot start or continue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model is not usable, or attention failed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The source of frames failed.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// Results could not be delivered.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// The process may not use the requested core.
    #[error("cpu: {found}; allowed here: {allowed}")]
    Cpu {
        /// Number of the requested core.
        found: usize,
        /// List of the cores that the process may use.
        allowed: String,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// Purpose of the call.
        what: &'static str,
        /// Error that the system returned.
        source: io::Error,
    },
}

impl Error {
    /// Returns the exit status: 2 for an invalid request, 3 for a failing device or system.
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

    /// Returns a function that converts an error of a system call. `what` is the purpose of the call.
    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::System { what, source }
    }
}
