//! The table of the kernels of the per-channel operators. Their registers and shared memory are copied from
//! `kernels/ptx/manifest.json`.

use super::args::FOLD;
use crate::cuda::kernel::{GpuKernel, Role};
use crate::cuda::module::kernel;
use elsa_core::attention::plan::GpuResources;

/// Defines a kernel of selective scans with 16 state elements.
macro_rules! of_s16 {
    ($name:literal, $flag:expr, $threads:literal, $shared:literal, $registers:literal) => {
        kernel!(
            $name,
            Role::SelectiveS16 {
                flag: $flag,
                resources: GpuResources { threads: $threads, shared: $shared, registers: $registers },
            }
        )
    };
}

/// Kernels of the per-channel operators in this build.
pub const KERNELS: &[GpuKernel] = &[
    kernel!(
        "series_recurrence__sm53",
        Role::Recurrence { resources: GpuResources { threads: 128, shared: 17408, registers: 109 } }
    ),
    kernel!(
        "series_recurrence__sm53_carry",
        Role::RecurrenceCarry { resources: GpuResources { threads: 128, shared: 0, registers: 105 } }
    ),
    kernel!(
        "series_selective__sm53",
        Role::Selective { resources: GpuResources { threads: 128, shared: 17728, registers: 128 } }
    ),
    kernel!(
        "series_selective__sm53_carry",
        Role::SelectiveCarry { resources: GpuResources { threads: 128, shared: 0, registers: 125 } }
    ),
    of_s16!("series_selective_s16__sm53", 0, 64, 20480, 128),
    of_s16!("series_selective_s16__sm53_fold", FOLD, 64, 20480, 128),
    kernel!(
        "series_convolution__sm53",
        Role::Convolution { resources: GpuResources { threads: 128, shared: 17408, registers: 126 } }
    ),
];
