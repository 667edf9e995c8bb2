//! The per-channel operators on a GPU: the arguments of their kernels, and the table of these kernels.
//!
//! | operator | launches |
//! |---|---|
//! | recurrence or selective scan, one part | one |
//! | recurrence or selective scan, several parts | one with [`FOLD`] over all parts except the last; one with [`CARRY`] and one listed part; one over all parts |
//! | convolution | one for the outputs; one with [`STATES`] for the present state |

mod args;
#[cfg(feature = "cuda")]
mod table;

pub use args::*;
#[cfg(feature = "cuda")]
pub(super) use table::KERNELS;

use elsa_core::series::bound::Precision;

/// Accuracy of the functions in the GPU kernels of the per-channel operators. They use the GPU's powers of two and
/// reciprocals, with relative errors of `2^-22` and `2^-23`. A gate's exponent is rounded twice: as a rate times
/// `log2 e`, and as the product of the time step and this rate.
pub const PRECISION: Precision = Precision { exp: 3.2e-7, exponent: 2.2, softplus: 7e-7, silu: 7e-7 };

/// Number of channels per warp in recurrences and convolutions.
pub const LANES: usize = 32;
/// Number of warps per thread block.
pub const WARPS: usize = 4;
/// Number of tokens per step of a recurrence.
pub const TOKENS: usize = 16;
/// Number of tokens per step of a selective scan.
pub const TOKENS_OF_SELECTIVE: usize = 16;
/// Number of outputs per warp and channel in a convolution.
pub const OUTPUTS: usize = 16;
/// Number of state elements per lane in a selective scan.
pub const NUMBERS: usize = 4;
/// Number of state elements of a channel if one lane has a whole channel.
pub const STATES_OF_LANE: usize = 16;
/// Largest number of state elements per channel: the capacity of one warp.
pub const MOST_STATES: usize = LANES * NUMBERS;

/// Returns the base-2 logarithm of the number of lanes for a channel with `states` state elements. The lanes of a channel
/// share the sums of four tokens, so there are at least four.
#[must_use]
pub const fn lanes_of(states: usize) -> u32 {
    let lanes = states.div_ceil(NUMBERS).next_power_of_two().trailing_zeros();
    if lanes < 2 { 2 } else { lanes }
}

/// Returns the number of values that a map of a part has per channel in a selective scan with `2^lanes` lanes per channel.
#[must_use]
pub const fn map_of(lanes: u32) -> usize {
    NUMBERS << lanes
}

/// Returns the number of channels per block of a selective scan with `2^lanes` lanes per channel.
#[must_use]
pub const fn channels_of(lanes: u32) -> usize {
    (LANES * WARPS) >> lanes
}
