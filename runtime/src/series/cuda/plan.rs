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

    /// Returns whether a kernel with this `role` computes this operator's launches with this flag, one of [`FLAGS`]. `by_channel`
    /// requires the kernels of [`SeriesGpuChoice::by_channel`] instead of those for all layouts.
    fn is_own(role: &Role, flag: i32, by_channel: bool) -> bool;

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
const FLAGS: [i32; 3] = [FOLD, CARRY, 0];

/// A kernel, and its number of threads per block.
pub type Launched<'a> = (&'a Function, u32);

fn launched(loaded: &[(Function, u32); 3]) -> [Launched<'_>; 3] {
    loaded.each_ref().map(|(function, threads)| (function, *threads))
}

/// Returns the launches of a computation in `parts` parts: the kernel, the flag and the number of listed parts.
pub fn passes(kernels: [Launched<'_>; 3], parts: usize) -> impl Iterator<Item = (Launched<'_>, i32, usize)> {
    let all = kernels.into_iter().zip(FLAGS).zip([parts - 1, 1, parts]);
    let all = all.map(|((kernel, flag), listed)| (kernel, flag, listed));
    all.filter(move |(_, flag, _)| parts > 1 || *flag == 0)
}

/// Arguments that the launches of a call share.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    pub choice: &'a SeriesGpuChoice,
    /// Kernels for the launches with each of [`FLAGS`].
    pub kernels: [Launched<'a>; 3],
    /// Kernels of [`SeriesGpuChoice::by_channel`].
    pub by_channel: Option<[Launched<'a>; 3]>,
    /// Device address of the workspace.
    pub scratch: u64,
}

/// A plan for a GPU.
#[derive(Clone, Debug)]
pub struct GpuPlan<P> {
    gpu: Arc<Gpu>,
    pub choice: SeriesGpuChoice,
    /// Kernels for the launches with each of [`FLAGS`].
    kernels: [&'static GpuKernel; 3],
    /// Kernels of [`SeriesGpuChoice::by_channel`].
    by_channel: Option<[&'static GpuKernel; 3]>,
    problem: PhantomData<P>,
}

impl<P: OnGpu> GpuPlan<P> {
    /// Creates a plan with the decisions in `choice`, and loads the kernel.
    ///
    /// # Errors
    /// Returns an error if the build has no kernel for the operator, or if the device fails.
    pub fn new(gpu: &Arc<Gpu>, choice: SeriesGpuChoice) -> Result<GpuPlan<P>, PlanError> {
        let all = |by_channel| {
            let of = |flag| GPU_KERNELS.iter().find(|kernel| P::is_own(&kernel.role, flag, by_channel));
            match FLAGS.map(of) {
                [Some(fold), Some(carry), Some(last)] => Ok([fold, carry, last]),
                _ => Err(DeviceError::NoKernel { role: P::ROLE }),
            }
        };
        let (kernels, by_channel) = (all(false)?, choice.by_channel.then(|| all(true)).transpose()?);
        for kernel in by_channel.into_iter().flatten().chain(kernels) {
            gpu.function(&gpu.context()?, kernel)?;
        }
        Ok(GpuPlan { gpu: gpu.clone(), choice, kernels, by_channel, problem: PhantomData })
    }
}

impl<P: OnGpu> plan::GpuPlan for GpuPlan<P> {
    type Problem = P;

    fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    fn kernel(&self) -> &'static str {
        let [_, _, last] = self.kernels;
        last.name
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
        let load = |kernel: &'static GpuKernel| {
            let function = self.gpu.function(&workspace.context, kernel)?;
            Ok::<_, DeviceError>((function, kernel.resources().threads as u32))
        };
        let load =
            |[fold, carry, last]: [_; 3]| Ok::<_, DeviceError>([load(fold)?, load(carry)?, load(last)?]);
        let (kernels, by_channel) = (load(self.kernels)?, self.by_channel.map(load).transpose()?);
        let call = Call {
            choice: &self.choice,
            kernels: launched(&kernels),
            by_channel: by_channel.as_ref().map(launched),
            scratch: workspace.scratch.address(),
        };
        problem.list(workspace.new_list(), tensors, &call)
    }
}
