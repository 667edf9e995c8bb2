//! The table of the kernels of the per-channel operators. Their registers and shared memory are copied from
//! `kernels/ptx/manifest.json`.

use crate::cuda::kernel::{GpuKernel, Role};
use crate::cuda::module::kernel;
use elsa_core::attention::plan::GpuResources;

/// Kernels of the per-channel operators in this build.
pub const KERNELS: &[GpuKernel] = &[
    kernel!(
        "series_recurrence__sm53",
        Role::Recurrence { resources: GpuResources { threads: 128, shared: 17408, registers: 125 } }
    ),
    kernel!(
        "series_selective__sm53",
        Role::Selective { resources: GpuResources { threads: 128, shared: 17728, registers: 128 } }
    ),
    kernel!(
        "series_convolution__sm53",
        Role::Convolution { resources: GpuResources { threads: 128, shared: 17408, registers: 126 } }
    ),
];
