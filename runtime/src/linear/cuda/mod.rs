//! Computes linear attention on an NVIDIA GPU.
//!
//! Two kinds of kernels compute it. Preparing kernels compute everything that is quadratic in the tokens of a chunk,
//! for all chunks at once. Walking kernels update a state with the chunks of a part, one after another. Each form is a
//! list of such launches (`elsa_kernels::cuda::linear`).

mod choice;
mod choose;
mod launch;
mod layout;
mod marshal;
pub mod plan;

pub use choice::LinearGpuChoice;
