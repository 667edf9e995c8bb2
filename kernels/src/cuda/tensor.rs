//! Types shared by the launch arguments of every operator: tensors and precomputed divisions. They match the structures
//! of `kernels/cuda/common/tensor.cuh`, field by field.

/// A strided tensor `[batch, heads, tokens, dim]` in device memory. Its last axis is contiguous.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceTensor {
    /// Address of the first element; zero if the tensor is absent.
    pub data: u64,
    /// Stride of the batch axis in elements.
    pub batch: i64,
    /// Stride of heads in elements.
    pub head: i64,
    /// Stride of tokens in elements.
    pub token: i64,
}

/// Element type of tensors: f32.
pub const TYPE_F32: i32 = 0;
/// Element type of tensors: f16.
pub const TYPE_F16: i32 = 1;
/// Element type of tensors: bf16.
pub const TYPE_BF16: i32 = 2;

/// Precomputed division by `d` for numbers `n < 2³¹`: `n / d = (2 n · multiplier >> 32) >> shift`, where `shift` is the
/// smallest number for which `2^shift ≥ d`, and `multiplier` is `2^(31 + shift) / d`, rounded up.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Divisor {
    /// Number by which `2 n` is multiplied.
    pub multiplier: u32,
    /// Right shift of the upper half of the product, in bits.
    pub shift: u32,
}

impl Divisor {
    /// Precomputes the division by `d`, or by one if `d` is not positive.
    pub fn new(d: i32) -> Divisor {
        let d = d.max(1) as u64;
        let shift = d.next_power_of_two().trailing_zeros();
        Divisor { multiplier: (1u64 << (31 + shift)).div_ceil(d) as u32, shift }
    }
}

// The structures in the device code assert the same sizes.
const _: () = assert!(size_of::<DeviceTensor>() == 32 && size_of::<Divisor>() == 8);
