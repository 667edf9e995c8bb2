//! GPU kernels: their PTX, their roles and their launch arguments.
//!
//! The device code is in `kernels/cuda`, and the PTX generated from it in `kernels/ptx`. A kernel takes one
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

pub use kernel::{GpuKernel, Ptx, Role, Target};

/// Every GPU kernel of this build; empty without the feature `cuda`.
#[cfg(feature = "cuda")]
pub static GPU_KERNELS: &[GpuKernel] = &all();

/// Kernels of attention on Tensor Cores; none in a build for GPUs without them.
#[cfg(all(feature = "cuda", not(elsa_without = "sm80")))]
const OF_TENSOR: &[GpuKernel] = attention::TENSOR_KERNELS;
#[cfg(all(feature = "cuda", elsa_without = "sm80"))]
const OF_TENSOR: &[GpuKernel] = &[];

/// `true` if the build has kernels that compute on Tensor Cores.
pub const HAS_TENSOR_CORES: bool = cfg!(all(feature = "cuda", not(elsa_without = "sm80")));

/// Kernels of linear attention; none without the feature `linear`.
#[cfg(feature = "cuda")]
const OF_LINEAR: &[GpuKernel] = if cfg!(feature = "linear") { linear::KERNELS } else { &[] };

/// Kernels of the operators on separate channels; none without the feature `series`.
#[cfg(feature = "cuda")]
const OF_SERIES: &[GpuKernel] = if cfg!(feature = "series") { series::KERNELS } else { &[] };

/// The tables of all operators.
#[cfg(feature = "cuda")]
const TABLES: [&[GpuKernel]; 4] = [attention::KERNELS, OF_TENSOR, OF_LINEAR, OF_SERIES];

/// Number of kernels of all operators.
#[cfg(feature = "cuda")]
const COUNT: usize = TABLES[0].len() + TABLES[1].len() + TABLES[2].len() + TABLES[3].len();

/// Concatenates the kernel tables of all operators.
#[cfg(feature = "cuda")]
const fn all() -> [GpuKernel; COUNT] {
    let mut all = [attention::KERNELS[0]; COUNT];
    let (mut table, mut first) = (0, 0);
    while table < TABLES.len() {
        let mut i = 0;
        while i < TABLES[table].len() {
            all[first + i] = TABLES[table][i];
            i += 1;
        }
        first += i;
        table += 1;
    }
    all
}

/// Every GPU kernel of this build; empty without the feature `cuda`.
#[cfg(not(feature = "cuda"))]
pub static GPU_KERNELS: &[GpuKernel] = &[];
