//! The plan for a GPU of an operator that has none.

use crate::cuda::gpu::Gpu;
use crate::cuda::launch::Launches;
use crate::cuda::plan::GpuPlan;
use crate::cuda::workspace::{GpuWorkspace, Needs};
use crate::error::DeviceError;
use crate::tensors::PerTensor;
use elsa_core::linear::Problem;
use std::sync::Arc;

/// A plan that does not exist.
#[derive(Clone, Copy, Debug)]
pub enum NoGpu {}

impl GpuPlan for NoGpu {
    type Problem = Problem;

    fn gpu(&self) -> &Arc<Gpu> {
        match *self {}
    }

    fn kernel(&self) -> &'static str {
        match *self {}
    }

    fn needs(&self) -> Needs {
        match *self {}
    }

    fn launches(
        &self,
        _: &Problem,
        _: Option<&[i64]>,
        _: &PerTensor<u64>,
        _: &mut GpuWorkspace,
    ) -> Result<Launches, DeviceError> {
        match *self {}
    }
}
