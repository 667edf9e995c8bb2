//! The CPU: what it is, its standing threads, and memory to work in.

pub mod detect;
pub mod memory;
pub mod pool;
