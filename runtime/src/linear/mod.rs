//! Linear attention on an engine: plans, bound calls and their runs.

pub mod certify;
pub mod cpu;
pub mod cuda;
pub mod operator;
pub mod options;
pub mod plan;
mod warm;
