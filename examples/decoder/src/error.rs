//! Errors of the program.

use elsa_core::argument::ArgumentError;
use elsa_runtime::{BindError, PlanError, RunError};
use std::path::PathBuf;

/// Reason why the program failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A flag has a value that it does not allow.
    #[error("--{argument}: {found}; allowed: {allowed}")]
    Argument {
        /// Name of the flag, without its dashes.
        argument: &'static str,
        /// Value that was given.
        found: String,
        /// Values that the flag allows.
        allowed: &'static str,
    },
    /// The sizes do not form an attention problem.
    #[error("--heads, --dim: {0}")]
    Problem(#[from] ArgumentError),
    /// The engine or a plan could not be created.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The data could not be bound to a plan.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A run of attention failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The file of weights could not be written or read.
    #[error("{}: {source}", path.display())]
    Weights {
        /// Path of the file, or of its folder.
        path: PathBuf,
        /// Error that the system returned.
        source: std::io::Error,
    },
    /// A read of weights failed, or weights have the wrong number of elements.
    #[error("weights: {0}")]
    Reader(String),
    /// The system refused memory.
    #[error("{what}: {bytes} bytes of memory were refused by the system")]
    Memory {
        /// Purpose of the memory.
        what: &'static str,
        /// Requested size in bytes.
        bytes: usize,
    },
    /// The output computed through two buffers differs from the output with all weights in memory.
    #[error("{tokens} tokens: {differing} of {all} values have other bits than with all weights in memory")]
    Differs {
        /// Number of tokens in the sequence.
        tokens: usize,
        /// Number of values whose bits differ.
        differing: usize,
        /// Number of values compared.
        all: usize,
    },
}

impl Error {
    /// Returns the exit status: 2 for an invalid request, 3 for a failing device or system.
    #[must_use]
    pub fn status(&self) -> u8 {
        match self {
            Error::Argument { .. } | Error::Problem(_) => 2,
            _ => 3,
        }
    }
}

impl From<std::io::Error> for Error {
    fn from(e: std::io::Error) -> Error {
        Error::Reader(e.to_string())
    }
}

/// Allocates `count` zeros. `what` is their purpose, for the error message.
///
/// # Errors
/// Returns an error if the system refuses the memory.
pub fn zeros(what: &'static str, count: usize) -> Result<Vec<f32>, Error> {
    let mut data = Vec::new();
    data.try_reserve_exact(count).map_err(|_| Error::Memory { what, bytes: count.saturating_mul(4) })?;
    data.resize(count, 0.0);
    Ok(data)
}
