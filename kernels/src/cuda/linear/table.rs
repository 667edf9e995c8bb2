//! The table of the kernels of linear attention: what the modules in `kernels/ptx/sm_53` are for. Registers and shared
//! memory are those of `kernels/ptx/manifest.json`.

use super::LinearWalk;
use crate::cuda::kernel::{GpuKernel, Role};
use crate::cuda::module::kernel;
use elsa_core::attention::plan::GpuResources;

/// A kernel that walks, with four warps of eight columns.
macro_rules! walk {
    ($name:literal, $dims:literal, $per_dim:literal, $shared:literal, $registers:literal) => {
        walk!($name, $dims, $per_dim, $shared, $registers, false)
    };
    ($name:literal, $dims:literal, $per_dim:literal, $shared:literal, $registers:literal, $shares:literal) => {
        kernel!(
            $name,
            Role::LinearWalk {
                walk: LinearWalk {
                    dims: $dims,
                    per_dim: $per_dim,
                    columns: 32,
                    shares: $shares,
                    pairs: false,
                    steps: false
                },
                resources: GpuResources { threads: 128, shared: $shared, registers: $registers },
            }
        )
    };
}

/// A kernel that walks in pairs, with four warps of four columns.
macro_rules! pairs {
    ($name:literal, $dims:literal, $per_dim:literal, $shared:literal, $registers:literal) => {
        kernel!(
            $name,
            Role::LinearWalk {
                walk: LinearWalk {
                    dims: $dims,
                    per_dim: $per_dim,
                    columns: 16,
                    shares: false,
                    pairs: true,
                    steps: false
                },
                resources: GpuResources { threads: 128, shared: $shared, registers: $registers },
            }
        )
    };
}

/// A kernel that goes step by step, with eight rows and eight columns of a state in each of its threads.
macro_rules! steps {
    ($name:literal, $per_dim:literal, $registers:literal) => {
        kernel!(
            $name,
            Role::LinearWalk {
                walk: LinearWalk {
                    dims: 1024,
                    per_dim: $per_dim,
                    columns: 8,
                    shares: true,
                    pairs: false,
                    steps: true
                },
                resources: GpuResources { threads: 128, shared: 256, registers: $registers },
            }
        )
    };
}

/// A kernel that prepares.
macro_rules! prepare {
    ($name:literal, $per_dim:literal, $delta:literal, $shared:literal, $registers:literal) => {
        kernel!(
            $name,
            Role::LinearPrepare {
                per_dim: $per_dim,
                delta: $delta,
                resources: GpuResources { threads: 128, shared: $shared, registers: $registers },
            }
        )
    };
}

/// The kernels of linear attention of this build.
pub const KERNELS: &[GpuKernel] = &[
    walk!("linear_walk_head_d64__sm53", 64, false, 14336, 225),
    walk!("linear_walk_head_d128__sm53", 128, false, 22528, 255),
    walk!("linear_walk_head_d256__sm53", 256, false, 38912, 255),
    pairs!("linear_pairs_head_d128__sm53", 128, false, 20480, 229),
    walk!("linear_walk_dim_d64__sm53", 64, true, 18432, 240),
    walk!("linear_walk_dim_d128__sm53", 128, true, 30720, 207),
    walk!("linear_share_head_d64__sm53", 64, false, 14336, 216, true),
    walk!("linear_share_head_d128__sm53", 128, false, 22528, 252, true),
    walk!("linear_share_dim_d64__sm53", 64, true, 18432, 247, true),
    walk!("linear_share_dim_d128__sm53", 128, true, 30720, 220, true),
    steps!("linear_wide_head__sm53", false, 229),
    steps!("linear_wide_dim__sm53", true, 242),
    kernel!(
        "linear_sums__sm53",
        Role::LinearSums { resources: GpuResources { threads: 128, shared: 1024, registers: 56 } }
    ),
    kernel!(
        "linear_carry__sm53",
        Role::LinearCarry { resources: GpuResources { threads: 128, shared: 32768, registers: 135 } }
    ),
    kernel!(
        "linear_parallel__sm53",
        Role::LinearParallel { resources: GpuResources { threads: 128, shared: 32896, registers: 192 } }
    ),
    prepare!("linear_prepare_head_plain__sm53", false, false, 18944, 89),
    prepare!("linear_prepare_head_delta__sm53", false, true, 18944, 96),
    prepare!("linear_prepare_dim_plain__sm53", true, false, 28160, 96),
    prepare!("linear_prepare_dim_delta__sm53", true, true, 28160, 112),
];
