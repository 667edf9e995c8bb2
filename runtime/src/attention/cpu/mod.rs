//! Attention on the CPU: tiles and blocks over standing threads.

pub mod call;
mod context;
mod finish;
mod math;
pub mod plan;
mod stage;
mod walk;
