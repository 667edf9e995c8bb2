//! The workspace: the memory that runs of a plan need in addition to their tensors.

use crate::cpu::memory;
use crate::cpu::plan::CpuPlan;
use crate::cuda::copies::Copies;
use crate::cuda::gpu::Gpu;
use crate::cuda::plan::GpuPlan;
use crate::cuda::workspace::{GpuWorkspace, Needs};
use crate::engine::Fallback;
use crate::error::{DeviceError, PlanError};
use crate::operator::Operator;
use crate::plan::Plan;
use crate::problem::Problem;
use elsa_core::plan::ChooseError;
use std::sync::Arc;

/// The memory that runs of a plan need in addition to their tensors. Only one run at a time can use a workspace.
///
/// A plan can use every workspace that has at least [`Plan::workspace_bytes`] bytes and is on the plan's device. The
/// plans may have different shapes, so a larger workspace can serve more plans. A GPU plan also needs host memory,
/// which binding allocates.
///
/// ```
/// # use elsa_core::{attention::Spec, dtype::DType, view::View};
/// # use elsa_runtime::{Engine, EngineOptions, PlanOptions, Workspace};
/// # let engine = Engine::new(&EngineOptions::default())?;
/// let plan = |tokens| -> Result<_, Box<dyn std::error::Error>> {
///     let view = View::bhnd("q", [1, 1, tokens, 8])?;
///     let problem = Spec::new(DType::F32, view, view, view, view).check()?;
///     Ok(engine.plan(&problem, &PlanOptions::default())?)
/// };
/// let (short, long) = (plan(64)?, plan(1024)?);
/// let workspace = Workspace::shared(&[&short, &long])?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Workspace<O: Operator> {
    pub(crate) memory: Memory,
    /// Record of the last run.
    pub(crate) record: Option<O::RunRecord>,
}

/// The memory of a workspace.
#[derive(Debug)]
pub(crate) enum Memory {
    Cpu(memory::Memory),
    Gpu {
        /// Device memory, or the reason why it could not be allocated.
        gpu: Result<Box<GpuWorkspace>, Arc<DeviceError>>,
        /// Memory for the CPU's standby plan.
        standby: Option<memory::Memory>,
    },
}

impl<O: Operator> Workspace<O> {
    pub(crate) fn of(memory: Memory) -> Workspace<O> {
        Workspace { memory, record: None }
    }

    /// Allocates one workspace for several plans. Its size is the largest that any of these plans needs. Runs of all
    /// these plans may use it, one at a time.
    ///
    /// # Errors
    /// Returns an error if there is no plan, if two of the plans compute on different GPUs, or if host memory is not
    /// available. If a plan has [`Fallback::Fail`], also returns an error if device memory is not available or the
    /// device fails.
    pub fn shared(plans: &[&Plan<O>]) -> Result<Workspace<O>, PlanError> {
        if plans.is_empty() {
            return Err(PlanError::NoPlan);
        }
        let on_gpu = plans.iter().filter_map(|plan| Some((plan.execution.gpu()?, &plan.problem)));
        let mut gpu = None;
        if let Some((first, _)) = on_gpu.clone().next() {
            if on_gpu.clone().any(|(plan, _)| !Arc::ptr_eq(plan.gpu(), first.gpu())) {
                return Err(PlanError::OtherGpu);
            }
            gpu = Some(match allocate(first.gpu(), on_gpu) {
                Ok(workspace) => Ok(Box::new(workspace)),
                Err(e) if plans.iter().any(|plan| plan.engine.fallback() == Fallback::Fail) => {
                    return Err(e.into());
                }
                Err(e) => {
                    first.gpu().warn(&e);
                    Err(Arc::new(e))
                }
            });
        }
        let on_cpu = plans.iter().filter_map(|plan| plan.execution.cpu().map(CpuPlan::bytes)).max();
        let cpu = on_cpu.map(allocate_on_host).transpose()?;
        let memory = match gpu {
            Some(gpu) => Memory::Gpu { gpu, standby: cpu },
            // If no plan is for a GPU, every plan computes on the CPU.
            None => Memory::Cpu(cpu.ok_or(PlanError::NoPlan)?),
        };
        Ok(Workspace::of(memory))
    }

    /// Waits for pending runs and frees the memory. Dropping a workspace does the same, but logs errors instead of
    /// returning them.
    ///
    /// # Errors
    /// Returns the first error that the device reports.
    pub fn close(self) -> Result<(), DeviceError> {
        match self.memory {
            Memory::Gpu { gpu: Ok(workspace), .. } => workspace.close(),
            Memory::Gpu { gpu: Err(_), .. } | Memory::Cpu(_) => Ok(()),
        }
    }
}

/// Allocates a workspace of `needed` bytes for the CPU.
///
/// # Errors
/// Returns an error if the memory is not available.
pub(crate) fn allocate_on_host(needed: usize) -> Result<memory::Memory, ChooseError> {
    memory::Memory::allocate(needed).ok_or(ChooseError::Memory { needed })
}

/// Allocates a workspace on `gpu` that is large enough for each of the plans. All plans compute on `gpu`. The workspace
/// includes the device memory for copies of host tensors, unless the GPU is integrated and may use host memory in
/// place.
fn allocate<'a, P: GpuPlan + 'a>(
    gpu: &Arc<Gpu>,
    plans: impl Iterator<Item = (&'a P, &'a P::Problem)> + Clone,
) -> Result<GpuWorkspace, DeviceError> {
    let needs = plans.clone().map(|(plan, _)| plan.needs()).fold(Needs::default(), Needs::max);
    let mut workspace = GpuWorkspace::new(gpu, needs)?;
    for (_, problem) in plans {
        workspace.reserve_copies(&Copies::of(&problem.tensors()), !gpu.profile().integrated)?;
    }
    Ok(workspace)
}

impl<O: Operator> Plan<O> {
    /// Allocates a workspace for this plan.
    ///
    /// # Errors
    /// Returns an error if host memory is not available. With [`Fallback::Fail`], also returns an error if device
    /// memory is not available or the device fails.
    pub fn workspace(&self) -> Result<Workspace<O>, PlanError> {
        Workspace::shared(&[self])
    }
}
