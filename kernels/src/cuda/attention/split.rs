//! The arguments of launches on Tensor Cores: the twin of `kernels/cuda/attention/tensor/planes.cuh`, field for field.

use super::args::AttentionArgs;
use crate::cuda::tensor::Divisor;

/// The only parameter of the kernels that compute attention on Tensor Cores, of those that prepare it, and of those that compute
/// the rows that it refuses.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SplitArgs {
    /// The attention call.
    pub call: AttentionArgs,
    /// Keys and values in planes, and the facts that the guard needs of them.
    pub planes: Planes,
}

/// Keys and values as two planes of f16 elements each.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Planes {
    /// The planes, `[batch][key head][tile]`: two of keys, two of values.
    pub images: u64,
    /// Exponents of the tiles, i32 `[batch][key head][tile][2]`: of keys and of values.
    pub shifts: u64,
    /// Largest magnitude, residual and second part of each channel of the keys, f32 `[sequence][key head][3][dim]`, with the
    /// kernel's largest head size as `dim`. Zero before the first launch.
    pub channels: u64,
    /// A word for each key head of each sequence, then one for each block of `rows` rows of each head. Tensor Cores refuse if it
    /// is not zero. Zero before the first launch.
    pub refused: u64,
    /// Number of tiles of a key head. Packed sequences share them.
    pub tiles: i32,
    /// Number of tiles of the longest sequence.
    pub longest: i32,
    /// Number of key heads.
    pub kv_heads: i32,
    /// Number of rows that share a word of `refused`.
    pub rows: i32,
    /// Number of such words of a head. Packed sequences share them.
    pub row_blocks: i32,
    /// Zero.
    pub unused: i32,
    /// Precomputed division by `longest`.
    pub by_longest: Divisor,
    /// Precomputed division by `kv_heads`.
    pub by_kv_heads: Divisor,
}

// The device twin asserts the same sizes and offsets.
const _: () = {
    assert!(core::mem::offset_of!(SplitArgs, planes) == size_of::<AttentionArgs>());
    assert!(size_of::<Planes>() == 72);
};
