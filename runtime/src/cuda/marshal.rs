//! Converts numbers and views to the representation that the kernels of all operators expect.

use elsa_core::dtype::DType;
use elsa_core::view::View;
use elsa_kernels::cuda::tensor::{DeviceTensor, TYPE_BF16, TYPE_F16, TYPE_F32};

/// Describes a view whose first element is at the device address `data`.
pub fn tensor(view: &View, data: u64) -> DeviceTensor {
    let [batch, head, token, _] = view.steps().map(|step| step as i64);
    DeviceTensor { data, batch, head, token }
}

/// Returns `true` if the address, the strides and `dim` allow rows to be accessed four elements at a time. Does not
/// check how far apart rows are; callers must check this.
pub fn is_vec4(tensor: &DeviceTensor, dim: usize, element: usize) -> bool {
    let strides = [tensor.batch, tensor.head, tensor.token];
    tensor.data.is_multiple_of(4 * element as u64)
        && strides.iter().all(|stride| stride % 4 == 0)
        && dim.is_multiple_of(4)
}

/// Converts a count to `i32`. The chooser has checked that it fits.
pub fn int(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

/// Returns the number by which the kernels identify an element type.
pub const fn dtype(dtype: DType) -> i32 {
    match dtype {
        DType::F32 => TYPE_F32,
        DType::F16 => TYPE_F16,
        DType::Bf16 => TYPE_BF16,
    }
}
