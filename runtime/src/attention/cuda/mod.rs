//! Computes attention on an NVIDIA GPU.
//!
//! A run enqueues, in one stream: the copy of the table of sequences, if the plan has one; the kernels that write
//! present keys and values; the attention kernel; and the merge kernel, if the attention kernel writes partial states.
//! One structure holds all parameters of the kernels. It is filled when tensors are bound.

mod launch;
mod marshal;
pub mod plan;
pub mod stream;
#[cfg(test)]
mod tests;
