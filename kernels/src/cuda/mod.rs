//! GPU kernels: the PTX that holds each of them, what it is for, and the arguments of its launch.
//!
//! The device code lies in `kernels/cuda`, and the PTX that is generated from it in `kernels/ptx/sm_53`. A kernel takes
//! one parameter, a structure that its operator defines; [`tensor`] holds what these structures share.

pub mod attention;
mod kernel;
pub mod linear;
#[cfg(feature = "cuda")]
mod module;
pub mod registers;
pub mod tensor;

pub use kernel::{GpuKernel, Ptx, Role};

/// Every GPU kernel of this build: none without the feature `cuda`.
#[cfg(feature = "cuda")]
pub static GPU_KERNELS: &[GpuKernel] = attention::KERNELS;

/// Every GPU kernel of this build: none without the feature `cuda`.
#[cfg(not(feature = "cuda"))]
pub static GPU_KERNELS: &[GpuKernel] = &[];
