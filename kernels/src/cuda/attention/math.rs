//! The arguments of the kernels of method math: the twin of `Math` in `kernels/cuda/attention/math.cuh`, field for
//! field.

use super::args::AttentionArgs;
use crate::cuda::tensor::Divisor;

/// Number of rows and number of columns per thread block of a product kernel.
pub const MATH_TILE: usize = 64;
/// Number of rows per thread block of the kernel that converts scores to weights.
pub const MATH_ROWS: usize = 4;

/// The only parameter of the kernels of method math. The index of a thread block combines four indices. In order, with
/// the fastest-varying index first, they are: column block, block of [`MATH_TILE`] rows, head and sequence.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MathArgs {
    /// The attention call. [`AttentionArgs::part_ms`] always receives the reference and sum of each row. The output is
    /// written only if [`AttentionArgs::part_w`] is zero.
    pub call: AttentionArgs,
    /// Scores, overwritten by the weights, f32 `[row][stride]`.
    pub scores: u64,
    /// Stride of rows in f32 values, a multiple of [`MATH_TILE`].
    pub stride: i64,
    /// Precomputed division by [`MathArgs::columns`].
    pub by_columns: Divisor,
    /// Number of column blocks of the product. Columns are keys, or dims of the values.
    pub columns: i32,
    /// Padding, zero.
    pub unused: i32,
}

// The device twin asserts the same sizes and offsets.
const _: () = {
    assert!(core::mem::offset_of!(MathArgs, scores) == size_of::<AttentionArgs>());
    assert!(size_of::<MathArgs>() == size_of::<AttentionArgs>() + 32);
};
