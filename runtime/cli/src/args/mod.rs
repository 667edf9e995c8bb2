//! Flags that several commands share. The flags of one command stand beside it.

mod engine;
mod problem;
pub mod values;

pub use engine::{BackendFlag, EngineArgs};
pub use problem::{FILE, ProblemArgs};
