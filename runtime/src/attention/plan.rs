//! The plan: everything that is decided once per shape.

use super::certify::{Ran, Records, Worked};
use super::cpu::plan::{CpuPlan, CpuWorkspace};
use super::cuda::plan::{GpuPlan, choices};
use super::cuda::workspace::{GpuWorkspace, Staging};
use super::options::PlanOptions;
use crate::backend::Backend;
use crate::cuda::gpu::Gpu;
use crate::engine::{Engine, Fallback};
use crate::error::{CertifyError, DeviceError, PlanError};
use elsa_core::attention::Problem;
use elsa_core::attention::certificate::Certificate;
use elsa_core::attention::certified::Certified;
use elsa_core::attention::plan::{CpuChoice, GpuChoice, GpuOptions, Method};
use elsa_kernels::registry;
use std::sync::Arc;

/// The device that computes, and the one that stands by.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "a plan has one, and few plans exist")]
pub(super) enum Execution {
    Cpu(CpuPlan),
    Gpu {
        gpu: GpuPlan,
        /// The CPU's plan for calls on which the GPU fails; `None` with [`Fallback::Fail`].
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

/// A problem with every decision that does not depend on pointers. A plan belongs to the engine that created it,
/// and can be bound to the tensors of any number of calls.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(super) engine: Engine,
    pub(super) problem: Problem,
    pub(super) execution: Execution,
    /// Why a GPU does not compute: the requested one is missing, or the engine's does not support the problem.
    /// `None` if a GPU computes, or if there is none and none was requested.
    pub(super) refusal: Option<Arc<PlanError>>,
}

/// The memory in which the runs of a plan work. A workspace serves one run at a time.
#[derive(Debug)]
pub struct Workspace {
    pub(super) memory: Memory,
    /// The last run, if it can be certified.
    pub(super) ran: Option<Ran>,
}

/// The memory of a workspace.
#[derive(Debug)]
pub(super) enum Memory {
    Cpu(CpuWorkspace),
    Gpu {
        /// Device memory, or why it could not be allocated.
        gpu: Result<Box<GpuWorkspace>, Arc<DeviceError>>,
        /// Memory for the CPU's standby plan.
        standby: Option<CpuWorkspace>,
    },
}

impl Workspace {
    fn of(memory: Memory) -> Workspace {
        Workspace { memory, ran: None }
    }

    /// Allocates one workspace for several plans, as large as the most demanding of them needs. Runs of any of them may
    /// use it, one at a time.
    ///
    /// # Errors
    /// Returns an error if there is no plan, if two of them compute on different GPUs, or if host memory is not
    /// available. If a plan has [`Fallback::Fail`], also if device memory is not available, or the device fails.
    pub fn shared(plans: &[&Plan]) -> Result<Workspace, PlanError> {
        if plans.is_empty() {
            return Err(PlanError::NoPlan);
        }
        let on_gpu = plans.iter().filter_map(|plan| Some((plan.execution.gpu()?, &plan.problem)));
        let mut gpu = None;
        if let Some((first, _)) = on_gpu.clone().next() {
            if on_gpu.clone().any(|(plan, _)| !Arc::ptr_eq(&plan.gpu, &first.gpu)) {
                return Err(PlanError::OtherGpu);
            }
            gpu = Some(match GpuWorkspace::of(&first.gpu, on_gpu) {
                Ok(workspace) => Ok(Box::new(workspace)),
                Err(e) if plans.iter().any(|plan| plan.engine.fallback() == Fallback::Fail) => {
                    return Err(e.into());
                }
                Err(e) => {
                    first.gpu.warn(&e);
                    Err(Arc::new(e))
                }
            });
        }
        let on_cpu = plans.iter().filter_map(|plan| Some((plan.execution.cpu()?, &plan.problem)));
        let cpu = CpuWorkspace::of(on_cpu)?;
        Ok(Workspace::of(match (gpu, cpu) {
            (Some(gpu), standby) => Memory::Gpu { gpu, standby },
            (None, Some(cpu)) => Memory::Cpu(cpu),
            // A plan computes on one of them.
            (None, None) => return Err(PlanError::NoPlan),
        }))
    }

    /// Waits for pending runs and frees everything. Dropping a workspace does the same, but logs errors instead of
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

impl Engine {
    /// Name of the CPU attention kernel that takes any number of queries.
    #[must_use]
    pub fn kernel(&self) -> &'static str {
        registry::attention_for_any(self.cpu()).unwrap_or(&elsa_kernels::scalar::attention::KERNEL).spec.name
    }

    /// Creates a plan for `problem`: decides everything that depends on the shape, and loads the GPU kernels. With
    /// [`Fallback::Cpu`] a plan for the GPU contains a standby plan for the CPU, and the CPU computes what the GPU
    /// does not support.
    ///
    /// # Errors
    /// Returns an error if an option is not supported, or if every form of the plan exceeds the budget. With
    /// [`Fallback::Fail`] also if the GPU does not support the problem, or fails.
    pub fn plan(&self, problem: &Problem, options: &PlanOptions) -> Result<Plan, PlanError> {
        let (mut gpu, mut refusal) = (None, self.absence().cloned().map(PlanError::Device));
        if let Some(device) = self.gpu() {
            let planned = match options.method {
                Method::Elsa => self.plan_gpu(device, problem, options),
                Method::Math => GpuPlan::math(device, problem, gpu_options(options)),
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

/// The part of the options that the GPU's chooser takes.
fn gpu_options(options: &PlanOptions) -> GpuOptions {
    let PlanOptions { budget, half_scores, certify, division, .. } = *options;
    GpuOptions { budget, half_scores, certify, division }
}

impl Engine {
    /// Plans for the GPU: with the division of the options, else with that of the tuned file, else with the chooser's.
    fn plan_gpu(
        &self,
        gpu: &Arc<Gpu>,
        problem: &Problem,
        options: &PlanOptions,
    ) -> Result<GpuPlan, PlanError> {
        let own = gpu_options(options);
        let tuned = self.tuned().and_then(|file| file.contents.as_ref().ok());
        let tuned = tuned.and_then(|tuned| tuned.division(problem, options.half_scores));
        if let (None, Some(division)) = (own.division, tuned) {
            match GpuPlan::new(gpu, problem, GpuOptions { division: Some(division), ..own }) {
                // What the kernels do not compute, the chooser may.
                Err(PlanError::Refused(e)) => log::debug!("the tuned division is not used: {e}"),
                planned => return planned,
            }
        }
        GpuPlan::new(gpu, problem, own)
    }

    /// What a measurement on the GPU may choose from for `problem`, for [`PlanOptions::division`]: the chooser's own choice
    /// first, then kernels with other blocks of rows and other numbers of splits. Empty if the CPU computes.
    ///
    /// # Errors
    /// Returns an error if the GPU does not support the problem, or if every form of the plan exceeds the budget.
    pub fn divisions(&self, problem: &Problem, options: &PlanOptions) -> Result<Vec<GpuChoice>, PlanError> {
        let options = gpu_options(options);
        let Some(gpu) = self.gpu() else { return Ok(Vec::new()) };
        Ok(choices(gpu, problem, &options)?)
    }
}

impl Plan {
    /// The problem of the plan.
    #[must_use]
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// The back end that computes, unless it fails.
    #[must_use]
    pub fn backend(&self) -> Backend {
        match self.execution {
            Execution::Cpu(_) => Backend::Cpu(self.engine.cpu()),
            Execution::Gpu { .. } => Backend::Cuda,
        }
    }

    /// Why a GPU does not compute: the requested one is missing, or the engine's does not support the problem.
    /// `None` if a GPU computes, or if there is none and none was requested.
    #[must_use]
    pub fn refusal(&self) -> Option<&PlanError> {
        self.refusal.as_deref()
    }

    /// The choice for the CPU, whether it computes or stands by; `None` for a GPU plan without fallback.
    #[must_use]
    pub fn choice(&self) -> Option<&CpuChoice> {
        self.execution.cpu().map(|cpu| &cpu.choice)
    }

    /// The choice for the GPU; `None` if the CPU computes.
    #[must_use]
    pub fn gpu_choice(&self) -> Option<&GpuChoice> {
        self.execution.gpu().map(|gpu| &gpu.choice)
    }

    /// Name of the attention kernel, on the back end of [`Plan::backend`].
    #[must_use]
    pub fn kernel(&self) -> &'static str {
        self.kernel_of(self.backend())
    }

    /// The plan of a run on `backend`. If this plan never runs on `backend`, returns the plan that computes.
    fn of(&self, backend: Backend) -> DevicePlan<'_> {
        match (&self.execution, backend) {
            (Execution::Cpu(cpu), _) => DevicePlan::Cpu(cpu),
            (Execution::Gpu { standby: Some(cpu), .. }, Backend::Cpu(_)) => DevicePlan::Cpu(cpu),
            (Execution::Gpu { gpu, .. }, _) => DevicePlan::Gpu(gpu),
        }
    }

    /// Name of the attention kernel of a run on `backend`, the back end of the run's [`Report`](crate::Report).
    #[must_use]
    pub fn kernel_of(&self, backend: Backend) -> &'static str {
        match self.of(backend) {
            DevicePlan::Cpu(cpu) => cpu.choice.kernel.name,
            DevicePlan::Gpu(gpu) => gpu.choice.kernel.name,
        }
    }

    /// The error certificate of runs on the back end of [`Plan::backend`].
    #[must_use]
    pub fn certificate(&self) -> Certificate {
        self.certificate_of(self.backend())
    }

    /// The error certificate of a run on `backend`, the back end of the run's [`Report`](crate::Report).
    #[must_use]
    pub fn certificate_of(&self, backend: Backend) -> Certificate {
        let executed = match self.of(backend) {
            DevicePlan::Cpu(cpu) => cpu.executed(),
            DevicePlan::Gpu(gpu) => gpu.executed(),
        };
        Certificate::new(self.problem.spec().dtype, self.problem.keys(), executed)
    }

    /// Size of the workspace in bytes. On a GPU, the device memory that a run needs besides inputs and outputs.
    #[must_use]
    pub fn workspace_bytes(&self) -> usize {
        match &self.execution {
            Execution::Cpu(cpu) => cpu.layout.bytes(),
            Execution::Gpu { gpu, .. } => gpu.layout.bytes,
        }
    }

    /// Size in bytes of a workspace with room for calls that output states, or no output. It is larger than
    /// [`Plan::workspace_bytes`] on a GPU that does not divide the keys.
    #[must_use]
    pub fn state_workspace_bytes(&self) -> usize {
        match &self.execution {
            Execution::Cpu(cpu) => cpu.layout.bytes(),
            Execution::Gpu { gpu, .. } => gpu.bytes_with_states(),
        }
    }

    /// Bytes of device memory that hold copies of host tensors during a run, without states; zero on the CPU.
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
    /// Returns an error if host memory is not available. With [`Fallback::Fail`] also if device memory is not
    /// available, or the device fails.
    pub fn workspace(&self) -> Result<Workspace, PlanError> {
        Workspace::shared(&[self])
    }

    /// Creates a workspace in the caller's memory, of at least [`Plan::workspace_bytes`] bytes and any alignment.
    /// The workspace is the first [`Plan::workspace_bytes`] bytes, which are set to zero; the rest is left alone. Apart
    /// from the memory, only small tables are allocated.
    ///
    /// # Errors
    /// Returns an error if the memory is null, too short, or longer than memory can be, if the plan computes on a
    /// GPU, or if the tables cannot be allocated.
    ///
    /// # Safety
    /// - *lent*: `memory` is writable for `bytes` bytes, and nobody else uses it until the workspace is dropped.
    pub unsafe fn workspace_in(&self, memory: *mut u8, bytes: usize) -> Result<Workspace, PlanError> {
        let Execution::Cpu(cpu) = &self.execution else { return Err(PlanError::OnDevice) };
        let needed = self.workspace_bytes();
        let (found, address) = (bytes, memory.addr() as u64);
        if memory.is_null() {
            return Err(PlanError::Null { found, needed });
        }
        if bytes > isize::MAX as usize || memory.addr().checked_add(bytes).is_none() {
            return Err(PlanError::Extent { found, address, needed });
        }
        if bytes < needed {
            return Err(PlanError::Room { found, needed });
        }
        // SAFETY: *lent*.
        let workspace = unsafe { cpu.workspace_in(&self.problem, memory, bytes)? };
        Ok(Workspace::of(Memory::Cpu(workspace)))
    }

    /// Creates a workspace in the caller's device memory, of at least [`Plan::workspace_bytes`] bytes, or
    /// [`Plan::state_workspace_bytes`] for calls that output states or no output, at a multiple of 256. `memory` is its device
    /// address; zero with no bytes serves a plan that needs none. Runs on device tensors in this workspace allocate no
    /// device memory. Runs on host tensors that are not used in place still allocate their staging.
    ///
    /// If the device's context is lost, so is the memory: calls return [`DeviceError::LostWorkspace`], or are finished
    /// by the CPU, until the caller creates another workspace.
    ///
    /// # Errors
    /// Returns an error if the plan computes on the CPU; if the memory is null, misaligned, too short, longer than its
    /// allocation, or not memory of the plan's device and context; if host memory is not available, or if the device
    /// fails.
    ///
    /// # Safety
    /// - *lent*: nobody else uses the memory, or frees it, until the workspace is dropped. Dropping it waits for
    ///   pending runs.
    pub unsafe fn workspace_on_device(&self, memory: u64, bytes: usize) -> Result<Workspace, PlanError> {
        let Execution::Gpu { gpu: plan, standby } = &self.execution else {
            return Err(PlanError::OnHost { found: self.backend() });
        };
        let standby = CpuWorkspace::of(standby.iter().map(|cpu| (cpu, &self.problem)))?;
        // SAFETY: *lent*.
        let gpu = unsafe { plan.workspace_on_device(memory, bytes)? };
        Ok(Workspace::of(Memory::Gpu { gpu: Ok(Box::new(gpu)), standby }))
    }
}

impl Plan {
    /// What a workspace remembers of a run of this plan on `backend`; `None` if the plan does not certify. States pass through
    /// memory, which makes no path of additions longer, so that one certificate serves runs with and without them.
    pub(super) fn ran(&self, backend: Backend, fallback: bool) -> Option<Ran> {
        let records = self.records(backend)?;
        let certificate = self.certificate_of(backend);
        Some(Ran::new(&self.problem, certificate, records, fallback))
    }

    /// Where runs on `backend` keep their records.
    fn records(&self, backend: Backend) -> Option<Records> {
        match backend {
            Backend::Cpu(_) => {
                let cpu = self.execution.cpu().filter(|cpu| cpu.choice.certify)?;
                Some(Records::Cpu(cpu.layout.measured))
            }
            Backend::Cuda => {
                let gpu = self.execution.gpu()?;
                let (count, stride) = (gpu.choice.records, gpu.choice.record_stride());
                (count > 0).then_some(Records::Gpu { at: gpu.layout.records.start, count, stride })
            }
        }
    }
}

impl Workspace {
    /// The certificate of the last run in this workspace: how wrong its answer may be, from the plan's arithmetic and from
    /// what the run measured of its tensors. Waits for the run, if it is pending on a GPU. On the CPU it allocates
    /// nothing.
    ///
    /// # Errors
    /// Returns an error if the last run was of a plan without [`PlanOptions::certify`](crate::PlanOptions::certify), if it
    /// failed, if there was none, or if the GPU fails.
    pub fn certified(&mut self) -> Result<Certified<'_>, CertifyError> {
        let ran = self.ran.as_ref().ok_or(CertifyError::NoRun)?;
        let worked = match (&mut self.memory, ran.records()) {
            (Memory::Cpu(cpu) | Memory::Gpu { standby: Some(cpu), .. }, Records::Cpu(_)) => Worked::Cpu(cpu),
            (Memory::Gpu { gpu: Ok(gpu), .. }, Records::Gpu { .. }) => Worked::Gpu(gpu),
            _ => return Err(CertifyError::NoRun),
        };
        ran.certified(worked)
    }
}
