//! Attention on a GPU: the arguments of its kernels, and the table of these kernels.

mod args;
mod math;
mod measure;
mod split;
mod stream;
#[cfg(feature = "cuda")]
mod table;
mod within;

pub use args::*;
pub use math::{MATH_ROWS, MATH_TILE, MathArgs};
pub use measure::{MeasureArgs, Measuring, PIECE_ROWS};
pub use split::{Planes, SplitArgs};
pub use stream::{Pending, StreamArgs};
#[cfg(feature = "cuda")]
pub(super) use table::KERNELS;
#[cfg(all(feature = "cuda", not(elsa_without = "sm80")))]
pub(super) use table::TENSOR_KERNELS;
pub use within::{Budget, WithinArgs, WithinCounts};

use super::kernel::{GpuKernel, Role};

/// Returns the kernel of `kernels` that merges `splits` partial states of a row, and the number of states that this
/// kernel reads at once. Returns `None` if no kernel supports so many splits. If several kernels support them, returns
/// the kernel that supports the fewest splits.
#[must_use]
pub fn merging(kernels: &[GpuKernel], splits: usize) -> Option<(&GpuKernel, usize)> {
    let suffices = |k: &'_ GpuKernel| match k.role {
        Role::AttentionMerge { states, most, .. } if splits <= most => Some((most, states)),
        _ => None,
    };
    let sufficient = kernels.iter().filter_map(|k| suffices(k).map(|(most, states)| (most, states, k)));
    sufficient.min_by_key(|(most, ..)| *most).map(|(_, states, k)| (k, states))
}

/// Threads per block of the merge kernels, as in `merge.cuh`.
const MERGE_THREADS: usize = 128;

/// Returns the number of blocks of a merge kernel that reads `states` states at once, for `rows` rows of `splits`
/// partial states with `part_dim` columns each.
///
/// If there are at most `states` splits, a team of lanes merges a row, with four columns per lane, and a block has
/// several rows. If there are more splits, a block has one row.
#[must_use]
pub const fn merge_blocks(states: usize, rows: usize, splits: usize, part_dim: usize) -> usize {
    if splits > states {
        return rows;
    }
    let lanes = match part_dim {
        0..=32 => 8,
        33..=64 => 16,
        _ => 32,
    };
    rows.div_ceil(MERGE_THREADS / lanes)
}
