//! Launch arguments of the per-channel kernels. Field by field, the structures match those of
//! `kernels/cuda/series/call.cuh` and those of the kernels in the same folder.
//!
//! Addresses are device addresses, zero where a tensor is absent; strides count elements.

use crate::cuda::tensor::{DeviceTensor, Divisor};

/// Flag: each part is folded to a map `h ← a h + b`, which is written to `maps`.
pub const FOLD: i32 = 1;
/// Flag: the state is carried through the maps of all parts except the last. In `maps`, the factor of each part is
/// overwritten with the state before the part.
pub const CARRY: i32 = 2;
/// Flag: tokens are processed from the last to the first.
pub const REVERSE: i32 = 4;
/// Flag of a recurrence: factors are natural logarithms.
pub const LOG: i32 = 8;
/// Flag of a selective scan: time steps are the softplus of the given values.
pub const SOFTPLUS: i32 = 16;
/// Flag of a selective scan: each channel has its own input coefficients.
pub const B_OF_CHANNEL: i32 = 32;
/// Flag of a selective scan: each channel has its own output coefficients.
pub const C_OF_CHANNEL: i32 = 64;
/// Flag of a convolution: outputs are the silu of the sums.
pub const SILU: i32 = 128;
/// Flag of a convolution: the last weight of a filter applies to the current token.
pub const NEWEST_LAST: i32 = 256;
/// Flag of a convolution: all channels have the same filter.
pub const ONE_FILTER: i32 = 512;
/// Flag of a convolution: the launch writes the last inputs of each channel instead of outputs.
pub const STATES: i32 = 1024;

/// A tensor of tokens and channels. Channel `c` is element `c % dim` of head `c / dim`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeriesTensor {
    /// Address and strides.
    pub tensor: DeviceTensor,
    /// Precomputed division by [`SeriesTensor::dim`], which splits a channel index into head and element.
    pub by_dim: Divisor,
    /// Number of channels per head.
    pub dim: i32,
    /// Type of the elements: `TYPE_F32` to `TYPE_BF16`.
    pub dtype: i32,
    /// One if the tokens of a channel are adjacent in memory; zero if the channels of a token are adjacent.
    pub lines: i32,
    /// Padding, zero.
    pub unused: i32,
}

/// Division of the tokens into parts: the first [`Parts::more`] parts have one token more than [`Parts::each`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// Number of parts.
    pub count: i32,
    /// Smallest number of tokens per part.
    pub each: i32,
    /// Number of parts that have one token more than [`Parts::each`].
    pub more: i32,
    /// Number of parts that the launch processes, counted from the first part; one in a launch with [`CARRY`].
    pub listed: i32,
    /// Precomputed division by [`Parts::listed`].
    pub by_listed: Divisor,
}

impl Parts {
    /// Divides `tokens` tokens into `count` parts. The first `listed` parts are in the launch.
    pub fn of(tokens: usize, count: usize, listed: usize) -> Parts {
        let int = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
        let of = count.max(1);
        Parts {
            count: int(count),
            each: int(tokens / of),
            more: int(tokens % of),
            listed: int(listed),
            by_listed: Divisor::new(int(listed)),
        }
    }
}

/// The only parameter of the kernel of recurrences.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RecurrenceArgs {
    /// Precomputed division by [`RecurrenceArgs::tiles`].
    pub by_tiles: Divisor,
    /// Number of tiles of [`LANES`](super::LANES) channels.
    pub tiles: i32,
    /// Number of tiles in all sequences and listed parts; a warp computes one tile.
    pub items: i32,
    /// Number of channels.
    pub channels: i32,
    /// Number of tokens per sequence.
    pub tokens: i32,
    /// Number of sequences.
    pub batch: i32,
    /// Sum of flags, from [`FOLD`] to [`LOG`].
    pub flags: i32,
    /// Division of the tokens into parts.
    pub parts: Parts,
    /// Factors `a` of the recurrence `h ← a h + b`.
    pub a: SeriesTensor,
    /// Addends `b` of the recurrence.
    pub b: SeriesTensor,
    /// States after each token.
    pub out: SeriesTensor,
    /// States before the first token, f32 `[batch][channel]`.
    pub past: u64,
    /// States after the last token, f32 `[batch][channel]`.
    pub present: u64,
    /// Factors of the parts, followed by their addends, f32 `[2][batch][part][channel]`; used only with several parts.
    pub maps: u64,
}

/// The only parameter of the kernel of selective scans.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SelectiveArgs {
    /// Precomputed division by [`SelectiveArgs::tiles`].
    pub by_tiles: Divisor,
    /// Precomputed division by [`SelectiveArgs::tiles_of_group`].
    pub by_tiles_of_group: Divisor,
    /// Precomputed division by [`SelectiveArgs::b_group`].
    pub by_b: Divisor,
    /// Precomputed division by [`SelectiveArgs::c_group`].
    pub by_c: Divisor,
    /// Number of tiles of channels; a block computes one tile.
    pub tiles: i32,
    /// Number of tiles per group of channels that have the same coefficients.
    pub tiles_of_group: i32,
    /// Number of channels per group. All channels of a group have the same coefficients.
    pub group: i32,
    /// Number of channels that have the same input coefficients.
    pub b_group: i32,
    /// Number of channels that have the same output coefficients.
    pub c_group: i32,
    /// Base-2 logarithm of the number of lanes per channel.
    pub lanes: i32,
    /// Number of channels.
    pub channels: i32,
    /// Number of state elements per channel.
    pub states: i32,
    /// Number of tokens per sequence.
    pub tokens: i32,
    /// Number of sequences.
    pub batch: i32,
    /// Sum of flags, from [`FOLD`] to [`C_OF_CHANNEL`].
    pub flags: i32,
    /// Padding, zero.
    pub unused: i32,
    /// Division of the tokens into parts.
    pub parts: Parts,
    /// Inputs of the scan.
    pub u: SeriesTensor,
    /// Time steps.
    pub delta: SeriesTensor,
    /// Gates of the output.
    pub z: SeriesTensor,
    /// Outputs of the scan.
    pub out: SeriesTensor,
    /// Input coefficients. With [`B_OF_CHANNEL`] only the address and the type are read.
    pub b: SeriesTensor,
    /// Output coefficients. With [`C_OF_CHANNEL`] only the address and the type are read.
    pub c: SeriesTensor,
    /// Decay rates, f32 `[channel][state]`.
    pub a: u64,
    /// Factors `D` of the terms `D u` that are added to the outputs, f32 `[channel]`.
    pub skip: u64,
    /// Biases added to the time steps, f32 `[channel]`.
    pub bias: u64,
    /// States before the first token, f32 `[batch][channel][state]`.
    pub past: u64,
    /// States after the last token, f32 `[batch][channel][state]`.
    pub present: u64,
    /// Factors of the parts, followed by their addends, f32 `[2][batch][part][channel][NUMBERS << lanes]`; used only with
    /// several parts.
    pub maps: u64,
}

/// The only parameter of the kernel of convolutions.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ConvolutionArgs {
    /// Precomputed division by [`ConvolutionArgs::tiles`].
    pub by_tiles: Divisor,
    /// Precomputed division by [`ConvolutionArgs::blocks`].
    pub by_blocks: Divisor,
    /// Precomputed division by [`ConvolutionArgs::channels`].
    pub by_channels: Divisor,
    /// Number of tiles of [`LANES`](super::LANES) channels.
    pub tiles: i32,
    /// Number of items; a warp computes one item. The items are the tiles of all sequences and blocks. With [`STATES`]
    /// they are the channels of all sequences.
    pub items: i32,
    /// Number of blocks of [`OUTPUTS`](super::OUTPUTS) tokens per sequence.
    pub blocks: i32,
    /// Number of channels.
    pub channels: i32,
    /// Number of tokens per sequence.
    pub tokens: i32,
    /// Number of weights per filter.
    pub taps: i32,
    /// Sum of flags: [`REVERSE`], and those from [`SILU`] to [`STATES`].
    pub flags: i32,
    /// Padding, zero.
    pub unused: i32,
    /// Inputs of the convolution.
    pub u: SeriesTensor,
    /// Outputs of the convolution.
    pub out: SeriesTensor,
    /// Filters, f32 `[channel][tap]`, with a single channel if [`ONE_FILTER`] is set.
    pub filter: u64,
    /// Biases added to the outputs, f32 `[channel]`.
    pub bias: u64,
    /// Inputs of the tokens before the first token, f32 `[batch][channel][taps - 1]`.
    pub past: u64,
    /// Last inputs of each sequence, f32 `[batch][channel][taps - 1]`.
    pub present: u64,
}

// The structures in the device code assert the same sizes and offsets.
const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<SeriesTensor>() == 56 && size_of::<Parts>() == 24);
    assert!(offset_of!(RecurrenceArgs, parts) == 32 && offset_of!(RecurrenceArgs, a) == 56);
    assert!(offset_of!(RecurrenceArgs, past) == 224 && size_of::<RecurrenceArgs>() == 248);
    assert!(offset_of!(SelectiveArgs, parts) == 80 && offset_of!(SelectiveArgs, u) == 104);
    assert!(offset_of!(SelectiveArgs, a) == 440 && size_of::<SelectiveArgs>() == 488);
    assert!(offset_of!(ConvolutionArgs, tiles) == 24 && offset_of!(ConvolutionArgs, u) == 56);
    assert!(offset_of!(ConvolutionArgs, filter) == 168 && size_of::<ConvolutionArgs>() == 200);
};
