//! Errors of a call that plans, binds and runs at once.

use crate::error::{BindError, PlanError, RunError};

/// Why a call failed that plans, binds and runs at once.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The plan or its workspace could not be created.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The tensors do not match the problem.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The run failed. Outputs are incomplete.
    #[error(transparent)]
    Run(#[from] RunError),
}
