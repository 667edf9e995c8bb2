//! On the CPU.

pub mod series;
