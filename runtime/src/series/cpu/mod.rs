//! Computes per-channel operators on the CPU.

mod convolution;
mod operator;
pub mod plan;
mod recurrence;
mod selective;
mod spectrum;
mod stage;

pub use operator::OnCpu;
pub use spectrum::Transforms;
