//! Tasks of a division by quorums: their tokens, the origin of their states, and the report of a command that computes one.

pub mod load;
pub mod origin;
pub mod report;

use crate::error::Error;
use elsa_files::MemoryError;
use elsa_runtime::TaskError;

impl From<TaskError> for Error {
    fn from(error: TaskError) -> Error {
        match error {
            TaskError::Quorum(source) => Error::Quorum { argument: "task", source },
            TaskError::Argument(fault) => Error::Problem(fault),
            TaskError::Plan(e) => Error::Plan(e),
            TaskError::Bind(e) => Error::Bind(e),
            TaskError::Run(e) => Error::Run(e),
            TaskError::Memory { bytes } => MemoryError { argument: "state-out", bytes }.into(),
            _ => Error::States(error.to_string()),
        }
    }
}

/// Builds the error of a task's shares of gradients.
#[must_use]
pub fn shares(error: TaskError) -> Error {
    match error {
        TaskError::Memory { bytes } => MemoryError { argument: "shares-out", bytes }.into(),
        other => other.into(),
    }
}
