//! The operators that treat every channel by itself on a GPU: the arguments of their kernels, and the table of them.
//!
//! | operator | launches |
//! |---|---|
//! | recurrence, selective scan, one part | one |
//! | the same, several parts | with [`FOLD`], all parts but the last; with [`CARRY`], one listed part; then all parts |
//! | convolution | one for the outputs; one with [`STATES`] for the present state |

mod args;
#[cfg(feature = "cuda")]
mod table;

pub use args::*;
#[cfg(feature = "cuda")]
pub(super) use table::KERNELS;

use elsa_core::series::bound::Precision;

/// How accurate the functions of the kernels are: they are those of the kernels for CPUs.
pub const PRECISION: Precision = Precision { exp: 1.8e-7, softplus: 3e-7, silu: 3e-7 };

/// Channels of a warp, of recurrences and convolutions.
pub const LANES: usize = 32;
/// Warps of a block.
pub const WARPS: usize = 4;
/// Tokens that pass at once, of recurrences.
pub const TOKENS: usize = 16;
/// Tokens that pass at once, of selective scans.
pub const TOKENS_OF_SELECTIVE: usize = 8;
/// Outputs of a channel that a warp computes, of convolutions.
pub const OUTPUTS: usize = 16;
/// Numbers of a state that a lane has, of selective scans.
pub const NUMBERS: usize = 4;
/// Most numbers of a channel's state: those of a warp.
pub const MOST_STATES: usize = LANES * NUMBERS;

/// Lanes of a channel with `states` numbers, as a power of two.
#[must_use]
pub const fn lanes_of(states: usize) -> u32 {
    states.div_ceil(NUMBERS).next_power_of_two().trailing_zeros()
}

/// Channels of a block of a selective scan whose channels have so many lanes.
#[must_use]
pub const fn channels_of(lanes: u32) -> usize {
    (LANES * WARPS) >> lanes
}
