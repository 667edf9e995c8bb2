//! Errors of the program.

use elsa_core::argument::ArgumentError;
use elsa_runtime::{BindError, PlanError, RunError};
use std::path::PathBuf;

/// Reason why the program failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value that a flag does not allow.
    #[error("--{argument}: {found}; allowed: {allowed}")]
    Argument {
        /// The flag, without its dashes.
        argument: &'static str,
        /// Value found.
        found: String,
        /// Values allowed.
        allowed: &'static str,
    },
    /// Sizes that make no attention problem.
    #[error("--heads, --dim: {0}")]
    Problem(#[from] ArgumentError),
    /// An engine or a plan that cannot be made.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Data that cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A run that failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The file of weights cannot be made or read.
    #[error("{}: {source}", path.display())]
    Weights {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The reader of weights failed.
    #[error("weights: {0}")]
    Reader(String),
    /// Memory that the system refuses.
    #[error("{what}: {bytes} bytes of memory were refused by the system")]
    Memory {
        /// Purpose of the memory.
        what: &'static str,
        /// Size in bytes.
        bytes: usize,
    },
    /// The answer through two buffers differs from that with all weights in memory.
    #[error("{tokens} tokens: {differing} of {all} values have other bits than with all weights in memory")]
    Differs {
        /// Tokens.
        tokens: usize,
        /// Number of values with other bits.
        differing: usize,
        /// Total number of values.
        all: usize,
    },
}

impl Error {
    /// Returns the exit status: 2 for a wrong request, 3 for a failing device or system.
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

/// Allocates `count` zeros for `what`.
///
/// # Errors
/// If the system refuses the memory.
pub fn zeros(what: &'static str, count: usize) -> Result<Vec<f32>, Error> {
    let mut data = Vec::new();
    data.try_reserve_exact(count).map_err(|_| Error::Memory { what, bytes: count.saturating_mul(4) })?;
    data.resize(count, 0.0);
    Ok(data)
}
