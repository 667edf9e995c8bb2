//! The operators that treat every channel by itself, on an NVIDIA GPU (`elsa_kernels::cuda::series`).

mod choose;
mod convolution;
#[cfg(test)]
mod device_tests;
mod marshal;
pub mod plan;
mod recurrence;
mod selective;

pub use choose::{SeriesGpuChoice, choose_convolution, choose_recurrence, choose_selective};
