//! Computes per-channel operators on an NVIDIA GPU (`elsa_kernels::cuda::series`).

mod choose;
mod convolution;
mod marshal;
pub mod plan;
mod recurrence;
mod selective;

pub use choose::{SeriesGpuChoice, choose_convolution, choose_recurrence, choose_selective};
