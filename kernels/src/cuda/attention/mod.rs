//! Attention on a GPU: the arguments of its kernels, and the table of them.

mod args;
#[cfg(feature = "cuda")]
mod costs;
mod math;
mod measure;
mod stream;
#[cfg(feature = "cuda")]
mod table;
mod within;

pub use args::*;
pub use math::{MATH_ROWS, MATH_TILE, MathArgs};
pub use measure::{MeasureArgs, Measuring, PIECE_ROWS};
pub use stream::{Pending, StreamArgs};
#[cfg(feature = "cuda")]
pub(super) use table::KERNELS;
pub use within::{Budget, WithinArgs, WithinCounts};

use elsa_core::attention::plan::GpuCost;

/// Costs of each kernel of this build on a Jetson TX2, by kernel name; empty without the feature `cuda`.
#[cfg(feature = "cuda")]
pub static COSTS: &[(&str, GpuCost)] = costs::COSTS;

/// Costs of each kernel of this build on a Jetson TX2, by kernel name; empty without the feature `cuda`.
#[cfg(not(feature = "cuda"))]
pub static COSTS: &[(&str, GpuCost)] = &[];

/// Threads of a block of the merge, as in `merge.cuh`.
const MERGE_THREADS: usize = 128;

/// Returns the blocks of a merge of `states` states at once, for `rows` rows of `splits` partial states with `part_dim`
/// columns each.
///
///    Up to `states` splits, a team of lanes takes a row, with four columns per lane, and a block has several rows.
///    Beyond that, a block has one row.
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
