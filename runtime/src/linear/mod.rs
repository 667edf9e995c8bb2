//! Linear attention on an engine: plans, bound calls and their runs.

pub mod cpu;
mod no_gpu;
pub mod operator;
pub mod options;
mod plan;
