//! Linear attention: plan, tensors of a call, back ends.

pub mod cpu;
pub mod options;
pub mod plan;
pub mod tensors;
