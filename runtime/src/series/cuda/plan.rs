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
use elsa_kernels::cuda::series::{CARRY, FOLD};
use elsa_kernels::cuda::{GPU_KERNELS, GpuKernel, Role};
use std::marker::PhantomData;
use std::sync::Arc;

/// Problem of a per-channel operator, with the launches that compute the problem on a GPU.
pub trait OnGpu: for<'a> Problem<Lengths<'a> = ()> {
    /// Name of the operator in error messages about the operator's kernel.
    const ROLE: &'static str;

    /// Returns whether a kernel with this `role` computes this operator.
    fn is_own(role: &Role) -> bool;

    /// Returns the flag of the launches that a kernel with this `role` computes for problems with
    /// [`SeriesGpuChoice::by_channel`]. [`FLAGS`] has all flags.
    fn flag_of(_role: &Role) -> Option<i32> {
        None
    }

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

/// Flags of the launches of a computation in parts, in order.
pub const FLAGS: [i32; 3] = [FOLD, CARRY, 0];

/// A kernel, and its number of threads per block.
pub type Launched<'a> = (&'a Function, u32);

/// Arguments that the launches of a call share.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    pub choice: &'a SeriesGpuChoice,
    /// The kernel for all launches.
    pub kernel: Launched<'a>,
    /// Kernels for the launches with each of [`FLAGS`], if the choice has its own.
    pub by_flag: Option<[Launched<'a>; 3]>,
    /// Device address of the workspace.
    pub scratch: u64,
}

/// A plan for a GPU.
#[derive(Clone, Debug)]
pub struct GpuPlan<P> {
    gpu: Arc<Gpu>,
    pub choice: SeriesGpuChoice,
    kernel: &'static GpuKernel,
    /// Kernels for the launches with each of [`FLAGS`], if the choice has its own.
    by_flag: Option<[&'static GpuKernel; 3]>,
    problem: PhantomData<P>,
}

impl<P: OnGpu> GpuPlan<P> {
    /// Creates a plan with the decisions in `choice`, and loads the kernel.
    ///
    /// # Errors
    /// Returns an error if the build has no kernel for the operator, or if the device fails.
    pub fn new(gpu: &Arc<Gpu>, choice: SeriesGpuChoice) -> Result<GpuPlan<P>, PlanError> {
        let missing = DeviceError::NoKernel { role: P::ROLE };
        let kernel = GPU_KERNELS.iter().find(|kernel| P::is_own(&kernel.role)).ok_or(missing.clone())?;
        let of = |flag| GPU_KERNELS.iter().find(|kernel| P::flag_of(&kernel.role) == Some(flag));
        let by_flag = match (choice.by_channel, FLAGS.map(of)) {
            (true, [Some(fold), Some(carry), Some(last)]) => Some([fold, carry, last]),
            (true, _) => return Err(missing.into()),
            (false, _) => None,
        };
        for kernel in by_flag.into_iter().flatten().chain([kernel]) {
            gpu.function(&gpu.context()?, kernel)?;
        }
        Ok(GpuPlan { gpu: gpu.clone(), choice, kernel, by_flag, problem: PhantomData })
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
        let threads = |kernel: &GpuKernel| kernel.resources().threads as u32;
        let function = self.gpu.function(&workspace.context, self.kernel)?;
        let by_flag = match self.by_flag {
            Some([fold, carry, last]) => {
                let of = |kernel| {
                    Ok::<_, DeviceError>((self.gpu.function(&workspace.context, kernel)?, threads(kernel)))
                };
                Some([of(fold)?, of(carry)?, of(last)?])
            }
            None => None,
        };
        let call = Call {
            choice: &self.choice,
            kernel: (&function, threads(self.kernel)),
            by_flag: by_flag
                .as_ref()
                .map(|all| all.each_ref().map(|(function, threads)| (function, *threads))),
            scratch: workspace.scratch.address(),
        };
        problem.list(workspace.new_list(), tensors, &call)
    }
}
