//! Flags that several commands share. A flag of only one command is in the module of that command.

mod engine;
mod force;
mod problem;
mod task;
mod traversal;
pub mod values;

pub use engine::{EngineArgs, HostArgs, warn_without_effect};
pub use force::ForceArgs;
pub use problem::{FILE, FILE_IS, ProblemArgs, layouts};
pub use task::{Chunks, TaskArgs, chunks, needs_task, run_id};
pub use traversal::TraversalArgs;

use clap::Arg;

/// Marks a flag as required, if only some of the commands that share it require it.
#[must_use]
pub fn required(flag: Arg) -> Arg {
    flag.required(true)
}
