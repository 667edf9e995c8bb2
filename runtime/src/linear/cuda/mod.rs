//! Linear attention on an NVIDIA GPU.
//!
//! Two kinds of kernels compute it: those that prepare what is quadratic in the tokens of a chunk, of all chunks at once, and
//! those that walk, carrying a state through the chunks of a part. A form is a list of such launches
//! (`elsa_kernels::cuda::linear`).

mod choice;
mod choose;
#[cfg(test)]
mod choose_tests;
#[cfg(test)]
mod device_tests;
mod launch;
mod layout;
mod marshal;
pub mod plan;

pub use choice::LinearGpuChoice;
