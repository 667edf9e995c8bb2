//! The plan: everything that is decided once per shape.

use crate::backend::Backend;
use crate::cpu::plan::CpuPlan;
use crate::cuda::copies::Copies;
use crate::cuda::gpu::Gpu;
use crate::cuda::plan::GpuPlan;
use crate::engine::{Engine, Fallback};
use crate::error::PlanError;
use crate::operator::Operator;
use crate::problem::Problem;
use std::sync::Arc;

/// The plan for the CPU, or the plan for the GPU with a standby plan for the CPU.
#[derive(Clone, Debug)]
pub(crate) enum Execution<O: Operator> {
    Cpu(O::Cpu),
    Gpu {
        gpu: O::Gpu,
        /// CPU plan for calls that fail on the GPU; `None` with [`Fallback::Fail`].
        standby: Option<O::Cpu>,
    },
}

impl<O: Operator> Execution<O> {
    /// Returns the plan for the CPU, if the CPU computes or if there is a standby plan for the CPU. Returns `None` for
    /// a GPU plan without a standby plan.
    pub fn cpu(&self) -> Option<&O::Cpu> {
        match self {
            Execution::Cpu(cpu) => Some(cpu),
            Execution::Gpu { standby, .. } => standby.as_ref(),
        }
    }

    pub fn gpu(&self) -> Option<&O::Gpu> {
        match self {
            Execution::Cpu(_) => None,
            Execution::Gpu { gpu, .. } => Some(gpu),
        }
    }
}

/// The plan for one device: for the CPU or for the GPU.
pub(crate) enum DevicePlan<'a, O: Operator> {
    Cpu(&'a O::Cpu),
    Gpu(&'a O::Gpu),
}

/// A problem and all decisions that do not depend on pointers. A plan belongs to the engine that created it, and can be
/// bound to the tensors of any number of calls.
///
/// ```
/// # use elsa_core::{attention::Spec, dtype::DType, view::View};
/// # use elsa_runtime::{Engine, EngineOptions, PlanOptions};
/// let view = View::bhnd("q", [1, 12, 197, 64])?;
/// let problem = Spec::new(DType::F32, view, view, view, view).check()?;
/// let engine = Engine::new(&EngineOptions::default())?;
/// let plan = engine.plan(&problem, &PlanOptions::default())?;
/// println!("{}: {} bytes of workspace", plan.kernel(), plan.workspace_bytes());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Plan<O: Operator> {
    pub(crate) engine: Engine,
    pub(crate) problem: O::Problem,
    pub(crate) execution: Execution<O>,
    /// Reason why no GPU computes: the requested GPU is missing, or the engine's GPU does not support the problem.
    /// `None` if a GPU computes, or if the engine has no GPU and no GPU was requested.
    pub(crate) refusal: Option<Arc<PlanError>>,
}

impl<O: Operator> Plan<O> {
    /// Creates plans for the GPU of the engine, if it has one, and for the CPU. With [`Fallback::Cpu`] a plan for the
    /// GPU contains a standby plan for the CPU, and the CPU computes problems that the GPU does not support.
    ///
    /// # Errors
    /// Returns the error of `cpu`. With [`Fallback::Fail`], returns the error of `gpu`, too.
    pub(crate) fn new(
        engine: &Engine,
        problem: &O::Problem,
        gpu: impl FnOnce(&Arc<Gpu>) -> Result<O::Gpu, PlanError>,
        cpu: impl FnOnce() -> Result<O::Cpu, PlanError>,
    ) -> Result<Plan<O>, PlanError> {
        let (mut planned, mut refusal) = (None, engine.absence().cloned().map(PlanError::Device));
        if let Some(device) = engine.gpu() {
            match (gpu(device), engine.fallback()) {
                (Ok(plan), _) => planned = Some(plan),
                (Err(e), Fallback::Fail) => return Err(e),
                (Err(e), Fallback::Cpu) => {
                    device.warn(&e);
                    refusal = Some(e);
                }
            }
        }
        let execution = match (planned, engine.fallback()) {
            (Some(gpu), Fallback::Fail) => Execution::Gpu { gpu, standby: None },
            (Some(gpu), Fallback::Cpu) => Execution::Gpu { gpu, standby: Some(cpu()?) },
            (None, _) => Execution::Cpu(cpu()?),
        };
        Ok(Plan { engine: engine.clone(), problem: *problem, execution, refusal: refusal.map(Arc::new) })
    }

    /// Returns the problem of the plan.
    #[must_use]
    pub fn problem(&self) -> &O::Problem {
        &self.problem
    }

    /// Returns the back end that computes. If this is a GPU and it fails, the CPU may compute instead.
    #[must_use]
    pub fn backend(&self) -> Backend {
        match self.execution {
            Execution::Cpu(_) => Backend::Cpu(self.engine.cpu()),
            Execution::Gpu { .. } => Backend::Cuda,
        }
    }

    /// Returns the reason why no GPU computes: the requested GPU is missing, or the engine's GPU does not support the
    /// problem. `None` if a GPU computes, or if the engine has no GPU and no GPU was requested.
    #[must_use]
    pub fn refusal(&self) -> Option<&PlanError> {
        self.refusal.as_deref()
    }

    /// Returns the name of the kernel that computes on the back end [`Plan::backend`].
    #[must_use]
    pub fn kernel(&self) -> &'static str {
        self.kernel_of(self.backend())
    }

    /// Returns the device plan for runs on `backend`. If this plan never runs on `backend`, returns the device plan of
    /// [`Plan::backend`].
    pub(crate) fn of(&self, backend: Backend) -> DevicePlan<'_, O> {
        match (&self.execution, backend) {
            (Execution::Cpu(cpu), _) => DevicePlan::Cpu(cpu),
            (Execution::Gpu { standby: Some(cpu), .. }, Backend::Cpu(_)) => DevicePlan::Cpu(cpu),
            (Execution::Gpu { gpu, .. }, _) => DevicePlan::Gpu(gpu),
        }
    }

    /// Returns the name of the kernel for runs on `backend`. A run states its back end in its
    /// [`Report`](crate::Report).
    #[must_use]
    pub fn kernel_of(&self, backend: Backend) -> &'static str {
        match self.of(backend) {
            DevicePlan::Cpu(cpu) => cpu.kernel(),
            DevicePlan::Gpu(gpu) => gpu.kernel(),
        }
    }

    /// Returns the size of the workspace in bytes. On a GPU, this is the device memory that a run needs in addition to
    /// its inputs and outputs.
    #[must_use]
    pub fn workspace_bytes(&self) -> usize {
        match &self.execution {
            Execution::Cpu(cpu) => cpu.bytes(),
            Execution::Gpu { gpu, .. } => gpu.needs().scratch,
        }
    }

    /// Returns the size in bytes of the device memory that a run uses for copies of host tensors. Returns zero if the
    /// CPU computes. Copies of rarely used tensors, such as the states of rows, are not counted.
    #[must_use]
    pub fn staging_bytes(&self) -> usize {
        match &self.execution {
            Execution::Cpu(_) => 0,
            Execution::Gpu { .. } => Copies::of(&self.problem.tensors()).staging,
        }
    }
}
