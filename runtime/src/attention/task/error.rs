//! Why a task is not computed, or its states are not merged.

use crate::error::{BindError, PlanError, RunError};
use elsa_core::argument::ArgumentError;
use elsa_core::quorum::QuorumError;

/// Why a task was not computed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TaskError {
    /// A division or a path that does not exist.
    #[error("task: {0}")]
    Quorum(#[from] QuorumError),
    /// A problem, or data, that the task does not take.
    #[error(transparent)]
    Argument(#[from] ArgumentError),
    /// A plan that cannot be made.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Data that cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A run that failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Host memory that is not available.
    #[error("task: {bytes} bytes of memory were refused by the system")]
    Memory {
        /// The requested number of bytes.
        bytes: usize,
    },
}
