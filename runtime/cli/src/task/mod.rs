//! Tasks of a division by quorums: their tokens, the origin of their states, and the report of a command that computes one.

pub mod load;
pub mod origin;
pub mod report;

use crate::error::Error;
use elsa_files::MemoryError;
use elsa_runtime::{PlanError, RunError};

/// Returns a function that builds the error of a task's plan, or of memory for its results, which `argument` takes.
pub fn planned(argument: &'static str) -> impl Fn(PlanError) -> Error {
    move |e| match e {
        PlanError::TaskMemory { bytes } => MemoryError { argument, bytes }.into(),
        e => e.into(),
    }
}

/// Builds the error of a task's run.
#[must_use]
pub fn ran(e: RunError) -> Error {
    match e {
        RunError::Bind(e) => e.into(),
        e => e.into(),
    }
}
