//! The arguments of the kernels of method math. The twin of `Math` in `kernels/cuda/attention/math.cuh`, field for field.

use super::args::AttentionArgs;
use crate::cuda::tensor::Divisor;

/// Rows and columns of a block of a product.
pub const MATH_TILE: usize = 64;
/// Rows per block of the kernel that makes weights.
pub const MATH_ROWS: usize = 4;

/// The only parameter of those kernels. Blocks are ordered by column block, then by block of [`MATH_TILE`] rows, then
/// by head, then by sequence.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MathArgs {
    /// The call. [`AttentionArgs::part_ms`] always receives the reference and sum of each row. The output is written
    /// only if [`AttentionArgs::part_w`] is zero.
    pub call: AttentionArgs,
    /// The scores, which become the weights, f32 `[row][stride]`.
    pub scores: u64,
    /// f32 values from one row to the next, a multiple of [`MATH_TILE`].
    pub stride: i64,
    /// Precomputed division by [`MathArgs::columns`].
    pub by_columns: Divisor,
    /// Blocks of columns of the product, which are keys or dims of the values.
    pub columns: i32,
    /// Zero.
    pub unused: i32,
}

// The device twin asserts the same sizes and offsets.
const _: () = {
    assert!(core::mem::offset_of!(MathArgs, scores) == size_of::<AttentionArgs>());
    assert!(size_of::<MathArgs>() == size_of::<AttentionArgs>() + 32);
};
