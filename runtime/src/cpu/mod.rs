//! Code for the CPU that all operators share: the description of the processor, threads, memory, and interfaces of
//! plans.

pub mod detect;
pub mod float;
pub mod host;
mod lent;
pub mod limits;
pub mod memory;
pub mod place;
pub mod plan;
pub mod pool;
pub mod process;
pub mod slices;
pub mod spin;
mod standing;
pub mod tensor;
