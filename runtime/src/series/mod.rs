//! Per-channel operators: recurrence, selective scan, convolution.

mod cpu;
pub mod cuda;
pub mod operators;
pub mod options;
pub mod plan;
mod problems;
pub mod tensors;
mod warm;
