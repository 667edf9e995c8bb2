//! Linear attention and the operators beside it.

pub mod cpu;
