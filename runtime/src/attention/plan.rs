//! The plan: what is decided once per shape.

use super::cpu::plan::{CpuPlan, CpuWorkspace};
use super::cuda::plan::GpuPlan;
use super::cuda::workspace::{GpuWorkspace, Staging};
use super::options::PlanOptions;
use crate::backend::Backend;
use crate::engine::{Engine, Fallback};
use crate::error::{DeviceError, PlanError};
use elsa_core::attention::Problem;
use elsa_core::attention::certificate::Certificate;
use elsa_core::attention::plan::{ChooseError, CpuChoice, GpuChoice, GpuOptions, Method};
use std::sync::Arc;

/// What computes, and what stands by.
#[derive(Clone, Debug)]
pub(super) enum Execution {
    Cpu(CpuPlan),
    Gpu {
        gpu: GpuPlan,
        /// The CPU's plan for calls that the GPU fails; none with [`Fallback::Fail`].
        standby: Option<CpuPlan>,
    },
}

impl Execution {
    /// The CPU's plan, whether it computes or stands by.
    pub fn cpu(&self) -> Option<&CpuPlan> {
        match self {
            Execution::Cpu(cpu) => Some(cpu),
            Execution::Gpu { standby, .. } => standby.as_ref(),
        }
    }

    pub fn gpu(&self) -> Option<&GpuPlan> {
        match self {
            Execution::Cpu(_) => None,
            Execution::Gpu { gpu, .. } => Some(gpu),
        }
    }
}

/// The plan of one device.
enum DevicePlan<'a> {
    Cpu(&'a CpuPlan),
    Gpu(&'a GpuPlan),
}

/// A problem with everything decided that does not depend on pointers. It belongs to the engine that made it.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(super) engine: Engine,
    pub(super) problem: Problem,
    pub(super) execution: Execution,
    /// Why the GPU that was asked for does not compute.
    pub(super) refusal: Option<Arc<PlanError>>,
}

/// Memory that a plan's runs work in. One workspace serves one run at a time.
#[derive(Debug)]
pub struct Workspace(pub(super) Memory);

/// The memory of a workspace.
#[derive(Debug)]
pub(super) enum Memory {
    Cpu(CpuWorkspace),
    Gpu {
        /// Memory of the device, or why there is none.
        gpu: Result<Box<GpuWorkspace>, Arc<DeviceError>>,
        /// Memory of the CPU's plan that stands by.
        standby: Option<CpuWorkspace>,
    },
}

impl Workspace {
    /// Frees everything. Dropping a workspace does the same, and logs what fails.
    ///
    /// # Errors
    /// The first error of the device.
    pub fn close(self) -> Result<(), DeviceError> {
        match self.0 {
            Memory::Gpu { gpu: Ok(workspace), .. } => workspace.close(),
            Memory::Gpu { gpu: Err(_), .. } | Memory::Cpu(_) => Ok(()),
        }
    }
}

impl Engine {
    /// Decides everything that depends on the shape. With [`Fallback::Cpu`] a plan for the GPU has one for the
    /// CPU beside it, and the CPU computes what the GPU does not support.
    ///
    /// # Errors
    /// Options that are not offered, a budget that no form fits, and with [`Fallback::Fail`] what the GPU does
    /// not support, and its failures.
    pub fn plan(&self, problem: &Problem, options: &PlanOptions) -> Result<Plan, PlanError> {
        let (mut gpu, mut refusal) = (None, self.absence().cloned().map(PlanError::Device));
        if let Some(device) = self.gpu() {
            let planned = match options.method {
                Method::Elsa => GpuPlan::new(
                    device,
                    problem,
                    GpuOptions { budget: options.budget, half_scores: options.half_scores },
                ),
                Method::Math => Err(ChooseError::Math.into()),
            };
            match (planned, self.fallback()) {
                (Ok(plan), _) => gpu = Some(plan),
                (Err(e), Fallback::Fail) => return Err(e),
                (Err(e), Fallback::Cpu) => {
                    device.warn(&e);
                    refusal = Some(e);
                }
            }
        }
        let cpu = || CpuPlan::new(self, problem, options);
        let execution = match (gpu, self.fallback()) {
            (Some(gpu), Fallback::Fail) => Execution::Gpu { gpu, standby: None },
            (Some(gpu), Fallback::Cpu) => Execution::Gpu { gpu, standby: Some(cpu()?) },
            (None, _) => Execution::Cpu(cpu()?),
        };
        Ok(Plan { engine: self.clone(), problem: *problem, execution, refusal: refusal.map(Arc::new) })
    }
}

impl Plan {
    /// The problem.
    #[must_use]
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// What computes, as long as it does not fail.
    #[must_use]
    pub fn backend(&self) -> Backend {
        match self.execution {
            Execution::Cpu(_) => Backend::Cpu(self.engine.cpu()),
            Execution::Gpu { .. } => Backend::Cuda,
        }
    }

    /// Why the GPU that was asked for does not compute.
    #[must_use]
    pub fn refusal(&self) -> Option<&PlanError> {
        self.refusal.as_deref()
    }

    /// What was decided for the CPU, which computes or stands by.
    #[must_use]
    pub fn choice(&self) -> Option<&CpuChoice> {
        self.execution.cpu().map(|cpu| &cpu.choice)
    }

    /// What was decided for the GPU.
    #[must_use]
    pub fn gpu_choice(&self) -> Option<&GpuChoice> {
        self.execution.gpu().map(|gpu| &gpu.choice)
    }

    /// Name of the kernel.
    #[must_use]
    pub fn kernel(&self) -> &'static str {
        self.kernel_of(self.backend())
    }

    /// The plan of a run on `backend`. A back end that this plan never runs on stands for the one that computes.
    fn of(&self, backend: Backend) -> DevicePlan<'_> {
        match (&self.execution, backend) {
            (Execution::Cpu(cpu), _) => DevicePlan::Cpu(cpu),
            (Execution::Gpu { standby: Some(cpu), .. }, Backend::Cpu(_)) => DevicePlan::Cpu(cpu),
            (Execution::Gpu { gpu, .. }, _) => DevicePlan::Gpu(gpu),
        }
    }

    /// Name of the kernel of a run on `backend`, as the run's report names it.
    #[must_use]
    pub fn kernel_of(&self, backend: Backend) -> &'static str {
        match self.of(backend) {
            DevicePlan::Cpu(cpu) => cpu.choice.kernel.name,
            DevicePlan::Gpu(gpu) => gpu.choice.kernel.name,
        }
    }

    /// What may be claimed of the error of its runs, on the back end of [`Plan::backend`].
    #[must_use]
    pub fn certificate(&self) -> Certificate {
        self.certificate_of(self.backend())
    }

    /// What may be claimed of the error of a run on `backend`, as the run's report names it.
    #[must_use]
    pub fn certificate_of(&self, backend: Backend) -> Certificate {
        let executed = match self.of(backend) {
            DevicePlan::Cpu(cpu) => cpu.executed(&self.problem),
            DevicePlan::Gpu(gpu) => gpu.executed(),
        };
        Certificate::new(self.problem.spec().dtype, self.problem.keys(), executed)
    }

    /// Bytes of the workspace: on a GPU, of device memory beyond inputs and outputs.
    #[must_use]
    pub fn workspace_bytes(&self) -> usize {
        match &self.execution {
            Execution::Cpu(cpu) => cpu.layout.bytes(),
            Execution::Gpu { gpu, .. } => gpu.layout.bytes,
        }
    }

    /// Bytes of device memory that hold tensors of the host during a run, without states; none on the CPU.
    #[must_use]
    pub fn staging_bytes(&self) -> usize {
        match &self.execution {
            Execution::Cpu(_) => 0,
            Execution::Gpu { .. } => Staging::bytes_of(&self.problem),
        }
    }

    /// Allocates a workspace.
    ///
    /// # Errors
    /// Memory that the system refuses; with [`Fallback::Fail`], memory that the device refuses, and its failures.
    pub fn workspace(&self) -> Result<Workspace, PlanError> {
        let memory = match &self.execution {
            Execution::Cpu(cpu) => Memory::Cpu(cpu.workspace(&self.problem)?),
            Execution::Gpu { gpu: plan, standby } => {
                let gpu = match plan.workspace(&self.problem) {
                    Ok(workspace) => Ok(Box::new(workspace)),
                    Err(e) if self.engine.fallback() == Fallback::Fail => return Err(e.into()),
                    Err(e) => {
                        plan.gpu.warn(&e);
                        Err(Arc::new(e))
                    }
                };
                let standby = standby.as_ref().map(|cpu| cpu.workspace(&self.problem)).transpose()?;
                Memory::Gpu { gpu, standby }
            }
        };
        Ok(Workspace(memory))
    }

    /// A workspace in memory of the caller's, of at least [`Plan::workspace_bytes`] bytes and any alignment. It is
    /// cleared; only small tables are allocated besides.
    ///
    /// # Errors
    /// Memory that is too short or null; a plan on a GPU; tables that the system refuses.
    ///
    /// # Safety
    /// - *lent*: `memory` is writable for `bytes` bytes, and nobody else uses it until the workspace is dropped.
    pub unsafe fn workspace_in(&self, memory: *mut u8, bytes: usize) -> Result<Workspace, PlanError> {
        let Execution::Cpu(cpu) = &self.execution else { return Err(PlanError::OnDevice) };
        let needed = self.workspace_bytes();
        if memory.is_null() || bytes < needed {
            return Err(PlanError::Room { found: if memory.is_null() { 0 } else { bytes }, needed });
        }
        // SAFETY: *lent*.
        let workspace = unsafe { cpu.workspace_in(&self.problem, memory, bytes)? };
        Ok(Workspace(Memory::Cpu(workspace)))
    }
}
