//! Attention on an NVIDIA GPU.
//!
//! A run enqueues, in one stream: the copy of the table of sequences, if the plan has one; the kernels that write
//! present keys and values; the attention kernel; and the merge of its partial states, if it writes any. One
//! structure holds every parameter of the kernels. It is filled when tensors are bound.
//!
//! Host tensors are copied to the device before and back after the kernels, and the run waits, because the caller
//! reads them next ([`host`]). An integrated GPU uses page-locked memory in place. Device tensors are used in
//! place, and such a run only enqueues ([`device`]).

#[cfg(test)]
mod buffer_tests;
pub mod device;
#[cfg(test)]
mod device_tests;
pub mod host;
mod launch;
mod marshal;
mod place;
pub mod plan;
pub mod predict;
pub mod stream;
pub mod workspace;
