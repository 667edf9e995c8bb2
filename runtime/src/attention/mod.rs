//! Exact softmax attention on an engine: plans, bound calls and their runs.

pub mod backward;
mod certify;
pub mod cpu;
pub mod cuda;
pub mod guard;
mod last_run;
pub mod operator;
pub mod options;
mod plan;
pub mod refusals;
mod run_memory;
pub mod stream;
pub mod task;
pub mod traversed;
pub mod tuned;
mod warm;
