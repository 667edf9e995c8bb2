//! The GPU plan: the kernel and the division of the work, decided once per shape.

use super::choose::SeriesGpuChoice;
use crate::cuda::driver::Function;
use crate::cuda::gpu::Gpu;
use crate::cuda::launch::Launches;
use crate::cuda::plan;
use crate::cuda::workspace::{GpuWorkspace, Needs};
use crate::error::{DeviceError, PlanError};
use crate::problem::Problem;
use crate::tensors::DeviceTensors;
use elsa_kernels::cuda::{GPU_KERNELS, GpuKernel, Role};
use std::marker::PhantomData;
use std::sync::Arc;

/// Problem of a per-channel operator, with the launches that compute the problem on a GPU.
pub trait OnGpu: for<'a> Problem<Lengths<'a> = ()> {
    /// Name of the operator in error messages about the operator's kernel.
    const ROLE: &'static str;

    /// Returns whether a kernel with this `role` computes this operator.
    fn is_own(role: &Role) -> bool;

    /// Lists the launches of a run in `list`, which is empty, and returns it.
    ///
    /// # Errors
    /// Returns an error if memory is not available.
    fn list(
        &self,
        list: Launches,
        tensors: &DeviceTensors<'_, Self::Operand>,
        call: &Call<'_>,
    ) -> Result<Launches, DeviceError>;
}

/// Arguments that the launches of a call share.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    pub choice: &'a SeriesGpuChoice,
    /// The kernel, and its number of threads per block.
    pub kernel: (&'a Function, u32),
    /// Device address of the workspace.
    pub scratch: u64,
}

/// A plan for a GPU.
#[derive(Clone, Debug)]
pub struct GpuPlan<P> {
    gpu: Arc<Gpu>,
    pub choice: SeriesGpuChoice,
    kernel: &'static GpuKernel,
    problem: PhantomData<P>,
}

impl<P: OnGpu> GpuPlan<P> {
    /// Creates a plan with the decisions in `choice`, and loads the kernel.
    ///
    /// # Errors
    /// Returns an error if the build has no kernel for the operator, or if the device fails.
    pub fn new(gpu: &Arc<Gpu>, choice: SeriesGpuChoice) -> Result<GpuPlan<P>, PlanError> {
        let kernel = GPU_KERNELS.iter().find(|kernel| P::is_own(&kernel.role));
        let kernel = kernel.ok_or(DeviceError::NoKernel { role: P::ROLE })?;
        gpu.function(&gpu.context()?, kernel)?;
        Ok(GpuPlan { gpu: gpu.clone(), choice, kernel, problem: PhantomData })
    }
}

impl<P: OnGpu> plan::GpuPlan for GpuPlan<P> {
    type Problem = P;

    fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    fn kernel(&self) -> &'static str {
        self.kernel.name
    }

    fn needs(&self) -> Needs {
        Needs { scratch: self.choice.bytes, ..Needs::default() }
    }

    fn launches(
        &self,
        problem: &P,
        (): (),
        tensors: &DeviceTensors<'_, P::Operand>,
        workspace: &mut GpuWorkspace,
    ) -> Result<Launches, DeviceError> {
        let function = self.gpu.function(&workspace.context, self.kernel)?;
        let kernel = (&function, self.kernel.resources().threads as u32);
        let call = Call { choice: &self.choice, kernel, scratch: workspace.scratch.address() };
        problem.list(workspace.new_list(), tensors, &call)
    }
}
