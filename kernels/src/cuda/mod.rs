//! GPU kernels: their PTX, their roles and their launch arguments.
//!
//! The device code is in `kernels/cuda`, and the PTX generated from it in `kernels/ptx/sm_53`. A kernel takes one
//! parameter, a structure that its operator defines; [`tensor`] contains the types that these structures share.

pub mod attention;
pub mod group;
mod kernel;
pub mod linear;
#[cfg(feature = "cuda")]
mod module;
pub mod registers;
pub mod series;
pub mod tensor;

pub use kernel::{GpuKernel, Ptx, Role};

/// Every GPU kernel of this build; empty without the feature `cuda`.
#[cfg(feature = "cuda")]
pub static GPU_KERNELS: &[GpuKernel] = &all();

/// Kernels of linear attention; none without the feature `linear`.
#[cfg(feature = "cuda")]
const OF_LINEAR: &[GpuKernel] = if cfg!(feature = "linear") { linear::KERNELS } else { &[] };

/// Kernels of the operators on separate channels; none without the feature `series`.
#[cfg(feature = "cuda")]
const OF_SERIES: &[GpuKernel] = if cfg!(feature = "series") { series::KERNELS } else { &[] };

/// Number of kernels of all operators.
#[cfg(feature = "cuda")]
const COUNT: usize = attention::KERNELS.len() + OF_LINEAR.len() + OF_SERIES.len();

/// Concatenates the kernel tables of all operators.
#[cfg(feature = "cuda")]
const fn all() -> [GpuKernel; COUNT] {
    let (first, second) = (attention::KERNELS.len(), OF_LINEAR.len());
    let mut all = [attention::KERNELS[0]; COUNT];
    let mut i = 1;
    while i < all.len() {
        all[i] = if i < first {
            attention::KERNELS[i]
        } else if i < first + second {
            OF_LINEAR[i - first]
        } else {
            OF_SERIES[i - first - second]
        };
        i += 1;
    }
    all
}

/// Every GPU kernel of this build; empty without the feature `cuda`.
#[cfg(not(feature = "cuda"))]
pub static GPU_KERNELS: &[GpuKernel] = &[];
