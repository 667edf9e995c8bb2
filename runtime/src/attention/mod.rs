//! Exact softmax attention on an engine: plans, bound calls and their runs.

pub mod backward;
pub mod bound;
mod certify;
pub mod cpu;
pub mod cuda;
pub mod guard;
pub mod options;
pub mod plan;
pub mod stream;
pub mod task;
mod tensors;
mod warm;
