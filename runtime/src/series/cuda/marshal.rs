//! Fills the kernel parameters from series and the addresses of their tensors.

use crate::cuda::driver::Function;
use crate::cuda::launch::{Grid, Launches};
use crate::cuda::marshal::{dtype, int, tensor};
use crate::cuda::parameter::{Parameter, parameters};
use crate::error::DeviceError;
use elsa_core::dtype::DType;
use elsa_core::series::Series;
use elsa_kernels::cuda::series::{ConvolutionArgs, RecurrenceArgs, SelectiveArgs, SeriesTensor};
use elsa_kernels::cuda::tensor::Divisor;

parameters!(ConvolutionArgs, RecurrenceArgs, SelectiveArgs);

/// Returns a description of a series at the device address `data`. The description is empty if the address is zero.
pub fn series(series: &Series, data: u64, of: DType) -> SeriesTensor {
    if data == 0 {
        return SeriesTensor::default();
    }
    let (view, dim) = (series.view(), int(series.view().dim()));
    SeriesTensor {
        tensor: tensor(view, data),
        by_dim: Divisor::new(dim),
        dim,
        dtype: dtype(of),
        lines: i32::from(view.strides()[2] == 1 && dim == 1 && series.channel_stride() != Some(1)),
        unused: 0,
    }
}

/// Appends a launch of `blocks` blocks, and records the number of blocks that share the work.
///
/// # Errors
/// Returns an error if the list is full.
///
/// # Safety
/// - *parameter*: the function's only parameter is a `P`.
pub unsafe fn push<P: Parameter>(
    list: &mut Launches,
    (function, threads): (&Function, u32),
    blocks: usize,
    parameter: &P,
) -> Result<(), DeviceError> {
    let stored = list.store(parameter)?;
    list.shared_by(blocks);
    // SAFETY: *parameter*: the clause of this function is the same.
    unsafe { list.push(function, Grid::new(blocks as u32, threads), stored) }
}
