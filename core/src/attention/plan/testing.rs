//! GPUs and kernels for the tests of the choosers.

use super::gpu_choice::{GpuKernelSpec, GpuResources, Summation};
use super::race::{Pace, Paces};
use crate::profile::GpuProfile;

/// Returns the paces of a kernel that has the pace `pace` on every GPU generation.
pub const fn alike(pace: Pace) -> Paces {
    Paces { early: pace, late: pace }
}

/// A discrete GPU.
pub const H200: GpuProfile = GpuProfile {
    capability: (9, 0),
    sms: 132,
    lanes_per_sm: 128,
    shared_memory: 48 << 10,
    shared_per_sm: 64 << 10,
    l2: 50 << 20,
    mhz: 1980,
    integrated: false,
};
/// An integrated GPU.
pub const TX2: GpuProfile =
    GpuProfile { capability: (6, 2), sms: 2, mhz: 1300, l2: 512 << 10, integrated: true, ..H200 };

/// Returns a kernel for head sizes up to `head_dim` and up to `most` queries, with `rows` query rows per block.
pub const fn kernel(
    name: &'static str,
    head_dim: usize,
    sixteen_bit: bool,
    most: usize,
    rows: usize,
) -> GpuKernelSpec {
    GpuKernelSpec {
        name,
        head_dim,
        sixteen_bit,
        most_queries: most,
        most_plain: most,
        most_causal: most,
        most_added: most,
        few_blocks: false,
        joins_race: false,
        serial: false,
        merges: 0,
        slow_edges: false,
        idles: false,
        rows,
        paces: alike(Pace { shared: rows * head_dim * 9 / 100, alone: rows * head_dim * 27 / 200 }),
        keys: 64,
        resources: GpuResources { threads: 128, shared: 24 << 10, registers: 128 },
        summation: Summation::Tiles { columns: 8, flush: 512 },
        chain: head_dim,
        exp2_relative: 2.4e-7,
        half_chain: 0,
        one_product: false,
    }
}
