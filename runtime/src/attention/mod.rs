//! Exact softmax attention on the devices of an engine: plan, bound frame, run.

pub mod bound;
pub mod cpu;
pub mod cuda;
pub mod options;
pub mod plan;
mod tensors;
