//! The arguments of the kernel that measures the tensors of a call: the twin of `kernels/cuda/attention/measure.cuh`,
//! field for field.

use super::args::AttentionArgs;

/// Number of rows of a head that a thread block measures per step.
pub const PIECE_ROWS: usize = 64;

/// The only parameter of the measuring kernel. A record has the entries of `elsa_core::attention::measured`, then one
/// entry per channel of the values.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MeasureArgs {
    /// The attention call. The kernel reads the tensors, sequences and sizes of this call.
    pub call: AttentionArgs,
    /// Mask, bias, records and sizes.
    pub measuring: Measuring,
}

/// Arguments of the measuring kernel in addition to the attention call.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measuring {
    /// The records, f32 `[block][record]`.
    pub records: u64,
    /// The elements of the mask.
    pub mask: u64,
    /// The elements of the bias, or of its table.
    pub bias: u64,
    /// Number of elements of the mask; zero if there is no mask or if the mask is boolean.
    pub mask_elements: i64,
    /// Number of elements of the bias.
    pub bias_elements: i64,
    /// Type of the mask's elements: `TYPE_F32` to `TYPE_BF16`.
    pub mask_dtype: i32,
    /// Type of the bias's elements.
    pub bias_dtype: i32,
    /// Stride of records in f32 values.
    pub record: i32,
    /// Number of pieces of [`PIECE_ROWS`] queries in the longest sequence.
    pub query_pieces: i32,
    /// Number of pieces of [`PIECE_ROWS`] keys in the longest sequence.
    pub key_pieces: i32,
    /// Number of key heads.
    pub kv_heads: i32,
}

// The device twin asserts the same sizes and offsets.
const _: () = {
    assert!(core::mem::offset_of!(MeasureArgs, measuring) == size_of::<AttentionArgs>());
    assert!(core::mem::offset_of!(Measuring, mask_dtype) == 40);
    assert!(size_of::<MeasureArgs>() == size_of::<AttentionArgs>() + 64);
};
