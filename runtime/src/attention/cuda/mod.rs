//! Attention on an NVIDIA GPU.
//!
//! A run is, in one stream: the table of sequences to the device where there is one, present keys and values,
//! the attention kernel, and the merge of its partial states where there are any. Everything that the kernels
//! are told is in one structure, which is filled when tensors are bound.
//!
//! Tensors of the host go to the device before and come back after, and the run waits, because their owner
//! reads them next ([`host`]). An integrated GPU uses page-locked memory in place. Tensors of the device stay where they
//! are, and such a run only enqueues ([`device`]).

pub mod device;
#[cfg(test)]
mod device_tests;
pub mod host;
mod launch;
mod marshal;
mod place;
pub mod plan;
pub mod workspace;
