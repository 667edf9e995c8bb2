//! Quorum tasks: loading their tokens, checking the origin of states, and reporting the computation of a task.

pub mod load;
pub mod origin;
pub mod report;

use crate::error::Error;
use elsa_files::MemoryError;
use elsa_runtime::PlanError;

/// Returns a function that converts the error of a task's plan to an error of the tool. If the system refuses memory
/// for the results, the error names `argument`.
pub fn planned(argument: &'static str) -> impl Fn(PlanError) -> Error {
    move |e| match e {
        PlanError::TaskMemory { bytes } => MemoryError { argument, bytes }.into(),
        e => e.into(),
    }
}
