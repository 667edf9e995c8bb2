//! Why the program ends otherwise than with success.

use crate::model::ModelError;
use crate::sink::SinkError;
use crate::source::SourceError;
use std::io;

/// Exit status when the request was wrong.
pub const REQUEST: u8 = 2;
/// Exit status when the device or the system failed.
pub const SYSTEM: u8 = 3;

/// Why the loop does not start or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The frames.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The results.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// A core that is not there.
    #[error("cpu: {found}; allowed here: {allowed}")]
    Cpu {
        /// What was asked for.
        found: usize,
        /// The cores of the process.
        allowed: String,
    },
    /// Something that the system does not do.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl Error {
    /// The exit status: 2 for a wrong request, 3 for a failing device or system.
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

    /// Names what was tried when the system said no.
    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::System { what, source }
    }
}
