//! The table of the kernels of linear attention: the roles of the modules in `kernels/ptx/sm_53`. Their registers and
//! shared memory are copied from `kernels/ptx/manifest.json`.

use super::{LinearLong, LinearQuadratic, LinearWalk};
use crate::cuda::kernel::{GpuKernel, Role};
use crate::cuda::module::kernel;
use elsa_core::attention::plan::GpuResources;

/// Describes a walk kernel for states of at most `dims` rows, with four warps of eight columns.
const fn walk(dims: usize, per_dim: bool) -> LinearWalk {
    LinearWalk { dims, per_dim, columns: 32, shares: false, pairs: false, steps: false }
}

/// Describes a share kernel. It is like the kernel of [`walk`], but its warps share their reads.
const fn share(dims: usize, per_dim: bool) -> LinearWalk {
    LinearWalk { shares: true, ..walk(dims, per_dim) }
}

/// Describes a pairs kernel, with four warps of four columns.
const fn pairs(dims: usize, per_dim: bool) -> LinearWalk {
    LinearWalk { columns: 16, pairs: true, ..walk(dims, per_dim) }
}

/// Describes a step kernel, with eight rows and eight columns of a state per thread.
const fn steps(per_dim: bool) -> LinearWalk {
    LinearWalk { columns: 8, steps: true, ..share(1024, per_dim) }
}

/// Defines a walk kernel.
macro_rules! walks {
    ($name:literal, $walk:expr, $shared:literal, $registers:literal) => {
        kernel!(
            $name,
            Role::LinearWalk {
                walk: $walk,
                resources: GpuResources { threads: 128, shared: $shared, registers: $registers },
            }
        )
    };
}

/// Defines a prepare kernel.
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

/// Defines a kernel of the quadratic form.
macro_rules! quadratic {
    ($name:literal, $step:expr, $per_dim:literal, $shared:literal, $registers:literal) => {
        kernel!(
            $name,
            Role::LinearParallel {
                step: $step,
                per_dim: $per_dim,
                resources: GpuResources { threads: 128, shared: $shared, registers: $registers },
            }
        )
    };
}

/// Defines a kernel that computes all chunks at once.
macro_rules! long {
    ($name:literal, $step:expr, $few:literal, $threads:literal, $shared:literal, $registers:literal) => {
        kernel!(
            $name,
            Role::LinearLong {
                step: $step,
                few: $few,
                resources: GpuResources { threads: $threads, shared: $shared, registers: $registers },
            }
        )
    };
}

/// The kernels of linear attention of this build.
pub const KERNELS: &[GpuKernel] = &[
    walks!("linear_walk_head_d64__sm53", walk(64, false), 14336, 229),
    walks!("linear_walk_head_d128__sm53", walk(128, false), 22528, 255),
    walks!("linear_walk_head_d256__sm53", walk(256, false), 38912, 255),
    walks!("linear_pairs_head_d128__sm53", pairs(128, false), 20480, 240),
    walks!("linear_walk_dim_d64__sm53", walk(64, true), 18432, 248),
    walks!("linear_walk_dim_d128__sm53", walk(128, true), 30720, 215),
    walks!("linear_share_head_d64__sm53", share(64, false), 14336, 219),
    walks!("linear_share_head_d128__sm53", share(128, false), 22528, 255),
    walks!("linear_share_dim_d64__sm53", share(64, true), 18432, 247),
    walks!("linear_share_dim_d128__sm53", share(128, true), 30720, 227),
    walks!("linear_wide_head__sm53", steps(false), 256, 231),
    walks!("linear_wide_dim__sm53", steps(true), 256, 255),
    kernel!(
        "linear_sums__sm53",
        Role::LinearSums { resources: GpuResources { threads: 128, shared: 1024, registers: 56 } }
    ),
    kernel!(
        "linear_carry__sm53",
        Role::LinearCarry { resources: GpuResources { threads: 128, shared: 32768, registers: 131 } }
    ),
    quadratic!("linear_parallel__sm53", LinearQuadratic::Plain, false, 17552, 128),
    quadratic!("linear_write_head__sm53", LinearQuadratic::Write, false, 23808, 191),
    quadratic!("linear_write_dim__sm53", LinearQuadratic::Write, true, 48512, 198),
    quadratic!("linear_answer_head__sm53", LinearQuadratic::Answer, false, 23808, 172),
    quadratic!("linear_answer_dim__sm53", LinearQuadratic::Answer, true, 48512, 180),
    quadratic!("linear_last__sm53", LinearQuadratic::Last, false, 23808, 134),
    long!("linear_long_terms__sm53", LinearLong::Terms, false, 128, 18688, 128),
    long!("linear_long_terms_few__sm53", LinearLong::Terms, true, 256, 37120, 123),
    long!("linear_long_states__sm53", LinearLong::States, false, 128, 0, 128),
    long!("linear_solve_head__sm53", LinearLong::Solve { per_dim: false }, false, 256, 37888, 128),
    long!("linear_solve_dim__sm53", LinearLong::Solve { per_dim: true }, false, 256, 36096, 128),
    long!("linear_long_carry_d64__sm53", LinearLong::Carry { dims: 64 }, false, 128, 2688, 227),
    long!("linear_long_carry_d128__sm53", LinearLong::Carry { dims: 128 }, false, 256, 4096, 128),
    long!("linear_long_answers__sm53", LinearLong::Answers, false, 128, 18176, 128),
    long!("linear_long_answers_few__sm53", LinearLong::Answers, true, 256, 34560, 128),
    prepare!("linear_prepare_head_plain__sm53", false, false, 18944, 89),
    prepare!("linear_prepare_head_delta__sm53", false, true, 18944, 96),
    prepare!("linear_prepare_dim_plain__sm53", true, false, 28160, 128),
    prepare!("linear_prepare_dim_delta__sm53", true, true, 28160, 128),
];
