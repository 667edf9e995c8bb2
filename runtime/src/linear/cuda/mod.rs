//! Linear attention on an NVIDIA GPU.
//!
//! Two kinds of kernels compute it: those that prepare what is quadratic in the tokens of a chunk, of all chunks at once, and
//! those that walk, carrying a state through the chunks of a part. A form is a list of such launches
//! (`elsa_kernels::cuda::linear`).

mod choice;
mod choose;
mod launch;
mod layout;
mod marshal;
pub mod plan;
#[cfg(test)]
mod tests;

pub use choice::LinearGpuChoice;
