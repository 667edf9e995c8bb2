//! The arguments of the kernels of series. The twins of `kernels/cuda/series/call.cuh` and of the structures in the
//! kernels there, field for field.
//!
//! Addresses are device addresses, zero where a tensor is absent; strides count elements.

use crate::cuda::tensor::{Divisor, Tensor};

/// Flag: parts fold to their maps, which are written to `maps`.
pub const FOLD: i32 = 1;
/// Flag: the state is carried over the maps of all parts except the last. The states before the parts replace the
/// factors.
pub const CARRY: i32 = 2;
/// Flag: tokens run from the last to the first.
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
/// Flag of a convolution: one filter serves all channels.
pub const ONE_FILTER: i32 = 512;
/// Flag of a convolution: the last inputs of each channel are written instead of outputs.
pub const STATES: i32 = 1024;

/// A tensor of tokens and channels. Channel `c` is element `c % dim` of head `c / dim`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeriesTensor {
    /// Address and strides.
    pub tensor: Tensor,
    /// Reciprocal form of [`SeriesTensor::dim`], which splits a channel into head and element.
    pub by_dim: Divisor,
    /// Channels of a head.
    pub dim: i32,
    /// Type of the elements: `TYPE_F32` to `TYPE_BF16`.
    pub dtype: i32,
    /// One if the tokens of a channel are adjacent in memory, zero if the channels of a token are.
    pub lines: i32,
    /// Zero.
    pub unused: i32,
}

/// The parts of the tokens: the first [`Parts::more`] have one token more than [`Parts::each`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// Number of parts.
    pub count: i32,
    /// Least tokens of a part.
    pub each: i32,
    /// Parts with one token more.
    pub more: i32,
    /// Parts of the launch, counted from the first; one in a launch with [`CARRY`].
    pub listed: i32,
    /// Precomputed division by [`Parts::listed`].
    pub by_listed: Divisor,
}

impl Parts {
    /// Splits `tokens` tokens into `count` parts, with `listed` of them in the launch.
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
    /// Tiles of [`LANES`](super::LANES) channels.
    pub tiles: i32,
    /// Tiles of all sequences and listed parts: one per warp.
    pub items: i32,
    /// Channels.
    pub channels: i32,
    /// Tokens of a sequence.
    pub tokens: i32,
    /// Sequences.
    pub batch: i32,
    /// A sum of [`FOLD`] and its siblings.
    pub flags: i32,
    /// The parts.
    pub parts: Parts,
    /// Factors.
    pub a: SeriesTensor,
    /// Addends.
    pub b: SeriesTensor,
    /// States after each token.
    pub out: SeriesTensor,
    /// States before the first token, f32 `[batch][channel]`.
    pub past: u64,
    /// States after the last token, f32 `[batch][channel]`.
    pub present: u64,
    /// With several parts, f32 `[2][batch][part][channel]`: factors and addends.
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
    /// Tiles of channels: one per block.
    pub tiles: i32,
    /// Tiles of a group of channels that share all coefficients.
    pub tiles_of_group: i32,
    /// Channels of a group that shares all coefficients.
    pub group: i32,
    /// Channels that share input coefficients.
    pub b_group: i32,
    /// Channels that share output coefficients.
    pub c_group: i32,
    /// Lanes per channel, as a power of two.
    pub lanes: i32,
    /// Channels.
    pub channels: i32,
    /// State elements per channel.
    pub states: i32,
    /// Tokens of a sequence.
    pub tokens: i32,
    /// Sequences.
    pub batch: i32,
    /// A sum of [`FOLD`] and its siblings.
    pub flags: i32,
    /// Zero.
    pub unused: i32,
    /// The parts.
    pub parts: Parts,
    /// Inputs.
    pub u: SeriesTensor,
    /// Time steps.
    pub delta: SeriesTensor,
    /// Gates of the output.
    pub z: SeriesTensor,
    /// The output.
    pub out: SeriesTensor,
    /// Input coefficients. With [`B_OF_CHANNEL`] only address and type are read.
    pub b: SeriesTensor,
    /// Output coefficients, likewise.
    pub c: SeriesTensor,
    /// Rates, f32 `[channel][state]`.
    pub a: u64,
    /// Factors of the input in the output, f32 `[channel]`.
    pub skip: u64,
    /// Addends of the time steps, f32 `[channel]`.
    pub bias: u64,
    /// States before the first token, f32 `[batch][channel][state]`.
    pub past: u64,
    /// States after the last token, f32 `[batch][channel][state]`.
    pub present: u64,
    /// With several parts, f32 `[2][batch][part][channel][state]`: factors and addends.
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
    /// Tiles of [`LANES`](super::LANES) channels.
    pub tiles: i32,
    /// Tiles of all sequences and blocks, or with [`STATES`] channels of all sequences: one per warp.
    pub items: i32,
    /// Blocks of [`OUTPUTS`](super::OUTPUTS) tokens of a sequence.
    pub blocks: i32,
    /// Channels.
    pub channels: i32,
    /// Tokens of a sequence.
    pub tokens: i32,
    /// Weights of a filter.
    pub taps: i32,
    /// A sum of [`REVERSE`] and its siblings.
    pub flags: i32,
    /// Zero.
    pub unused: i32,
    /// Inputs.
    pub u: SeriesTensor,
    /// The output.
    pub out: SeriesTensor,
    /// Filters, f32 `[channel or one][tap]`.
    pub filter: u64,
    /// Addends of the sums, f32 `[channel]`.
    pub bias: u64,
    /// Inputs before the first token, f32 `[batch][channel][taps - 1]`.
    pub past: u64,
    /// The last inputs, f32 `[batch][channel][taps - 1]`.
    pub present: u64,
}

// The device twins assert the same sizes and offsets.
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
