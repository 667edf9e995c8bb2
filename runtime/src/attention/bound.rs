//! The bound plan and its run.

use super::cpu::call::CpuCall;
use super::cpu::plan::{CpuPlan, CpuWorkspace};
use super::cuda::device::{DeviceCall, DeviceInputs, DeviceOutputs};
use super::cuda::host::HostCall;
use super::cuda::plan::GpuPlan;
use super::cuda::workspace::GpuWorkspace;
use super::plan::{Execution, Memory, Plan, Workspace};
use super::tensors::HostTensors;
use crate::backend::Backend;
use crate::cuda::driver::RawStream;
use crate::engine::Engine;
use crate::error::{BindError, DeviceError, PlanError, RunError};
use elsa_core::attention::{Inputs, Lengths, Outputs};
use std::fmt;
use std::sync::Arc;

/// A plan with the tensors of a frame.
#[derive(Debug)]
pub struct Bound<'a> {
    engine: &'a Engine,
    calls: Calls<'a>,
    /// Why the CPU computes in place of a GPU.
    reason: Option<Reason>,
}

/// What computes a frame, and what stands by.
#[derive(Debug)]
enum Calls<'a> {
    Cpu(CpuCall<'a>),
    Gpu { gpu: HostCall<'a>, standby: Option<CpuCall<'a>> },
}

/// Why the CPU has taken the place of a GPU.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Reason {
    /// The GPU cannot be used, or does not take the problem.
    Plan(Arc<PlanError>),
    /// The GPU does not take the tensors.
    Bind(Arc<BindError>),
    /// The GPU failed.
    Device(Arc<DeviceError>),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Plan(e) => e.fmt(f),
            Reason::Bind(e) => e.fmt(f),
            Reason::Device(e) => write!(f, "backend: cuda: {e}"),
        }
    }
}

/// What a run did.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// What computed.
    pub backend: Backend,
    /// Workers among which it was divided: threads, or blocks of threads of a GPU.
    pub workers: usize,
    /// Why the CPU computed in place of the GPU that was to.
    pub fallback: Option<Reason>,
}

/// Why a GPU does not compute a frame.
enum Refused {
    /// The workspace has no memory on the device.
    Memory(Arc<DeviceError>),
    /// The device does not take the tensors.
    Frame(BindError),
}

impl Plan {
    /// Binds the tensors of a frame. Nothing is written, and nothing is allocated, but for device memory that
    /// the first frame of its kind needs.
    ///
    /// # Errors
    /// Data that do not match the problem, another plan's workspace; with [`Fallback::Fail`](crate::Fallback::Fail),
    /// failures of the device.
    pub fn bind<'a>(
        &'a self,
        inputs: Inputs<'a>,
        outputs: Outputs<'a>,
        workspace: &'a mut Workspace,
    ) -> Result<Bound<'a>, BindError> {
        inputs.check(&self.problem)?;
        outputs.check(&self.problem)?;
        let tensors = HostTensors::new(&inputs, outputs);
        let (gpu_memory, cpu_memory) = match &mut workspace.0 {
            Memory::Cpu(cpu) => (None, Some(cpu)),
            Memory::Gpu { gpu, standby } => (Some(gpu), standby.as_mut()),
        };
        let (calls, reason) = match &self.execution {
            Execution::Cpu(plan) => {
                let cpu = self.bind_cpu(plan, inputs, &tensors, cpu_memory)?;
                (Calls::Cpu(cpu), self.refusal.clone().map(Reason::Plan))
            }
            Execution::Gpu { gpu, standby } => {
                let standby = match standby {
                    Some(plan) => Some(self.bind_cpu(plan, inputs, &tensors, cpu_memory)?),
                    None => None,
                };
                match (self.bind_gpu(gpu, inputs.lengths, tensors, gpu_memory)?, standby) {
                    (Ok(gpu), standby) => (Calls::Gpu { gpu, standby }, None),
                    (Err(Refused::Memory(e)), Some(cpu)) => (Calls::Cpu(cpu), Some(Reason::Device(e))),
                    (Err(Refused::Frame(e)), Some(cpu)) => {
                        gpu.gpu.warn(&e);
                        (Calls::Cpu(cpu), Some(Reason::Bind(Arc::new(e))))
                    }
                    (Err(Refused::Memory(e)), None) => return Err(BindError::Device(DeviceError::clone(&e))),
                    (Err(Refused::Frame(e)), None) => return Err(e),
                }
            }
        };
        Ok(Bound { engine: &self.engine, calls, reason })
    }

    fn bind_cpu<'a>(
        &'a self,
        plan: &'a CpuPlan,
        inputs: Inputs<'a>,
        tensors: &HostTensors<'a>,
        memory: Option<&'a mut CpuWorkspace>,
    ) -> Result<CpuCall<'a>, BindError> {
        let Some(memory) = memory else {
            let (needed, sequences) = (plan.layout.bytes(), self.problem.sequences());
            return Err(BindError::Workspace { found: 0, needed, found_sequences: 0, sequences });
        };
        CpuCall::new(plan, &self.problem, inputs, tensors, memory)
    }

    /// The GPU's call, or why the CPU computes in its place.
    ///
    /// # Errors
    /// A workspace that is not this plan's.
    fn bind_gpu<'a>(
        &'a self,
        plan: &'a GpuPlan,
        lengths: Lengths<'a>,
        tensors: HostTensors<'a>,
        memory: Option<&'a mut Result<Box<GpuWorkspace>, Arc<DeviceError>>>,
    ) -> Result<Result<HostCall<'a>, Refused>, BindError> {
        let memory = match memory.ok_or(BindError::Foreign)? {
            Ok(memory) => memory,
            Err(e) => return Ok(Err(Refused::Memory(e.clone()))),
        };
        memory.check(plan, &self.problem)?;
        let call = plan.check_states(tensors.has_states()).and_then(|()| {
            let call = HostCall::new(plan, &self.problem, lengths, tensors, memory);
            call.map_err(BindError::Device)
        });
        Ok(call.map_err(Refused::Frame))
    }

    /// Binds tensors in device memory. They are used where they lie; runs enqueue in `stream`, or in one of the
    /// workspace, and do not wait. There is no fallback: the CPU cannot read them.
    ///
    /// # Errors
    /// A plan that computes on the CPU; addresses that are no memory of this device and context, or whose
    /// allocation is too short; a stream of another context; lengths that do not match the problem; another
    /// plan's workspace; failures of the device.
    ///
    /// # Safety
    /// - Until every run was waited for, the tensors stay allocated, and nobody writes inputs or uses outputs
    ///   but in the same stream.
    /// - No output shares memory with another tensor of the call.
    pub unsafe fn bind_device<'a>(
        &'a self,
        inputs: &DeviceInputs<'a>,
        outputs: &DeviceOutputs,
        stream: Option<RawStream>,
        workspace: &'a mut Workspace,
    ) -> Result<DeviceBound<'a>, BindError> {
        let Execution::Gpu { gpu: plan, .. } = &self.execution else {
            return Err(BindError::NotOnDevice { found: Backend::Cpu(self.engine.cpu()) });
        };
        let memory = match &mut workspace.0 {
            Memory::Gpu { gpu: Ok(memory), .. } => memory,
            Memory::Gpu { gpu: Err(e), .. } => return Err(BindError::Device(DeviceError::clone(e))),
            Memory::Cpu(_) => return Err(BindError::Foreign),
        };
        memory.check(plan, &self.problem)?;
        plan.check_states(outputs.state.is_some())?;
        Ok(DeviceBound { call: DeviceCall::new(plan, &self.problem, inputs, outputs, stream, memory)? })
    }
}

impl Bound<'_> {
    /// Computes the outputs. Nothing is allocated; the bits do not depend on threads, batch or repetition.
    ///
    /// When a GPU fails, the CPU finishes the call, unless the policy is to fail. The next run tries the GPU
    /// again; a device whose context was lost gets a new one once, which allocates.
    ///
    /// # Errors
    /// A worker that panicked, a GPU that failed; the outputs are then incomplete.
    pub fn run(&mut self) -> Result<Report, RunError> {
        self.compute(false)
    }

    /// As [`Bound::run`], but a GPU reads the inputs that its memory holds since the run before, and leaves the
    /// outputs there: the time of a pipeline whose tensors live on the device. On the CPU it is the same as `run`.
    ///
    /// # Errors
    /// As for [`Bound::run`].
    pub fn run_resident(&mut self) -> Result<Report, RunError> {
        self.compute(true)
    }

    fn compute(&mut self, resident: bool) -> Result<Report, RunError> {
        let (cpu, fallback) = match &mut self.calls {
            Calls::Cpu(cpu) => (cpu, self.reason.clone()),
            Calls::Gpu { gpu, standby } => {
                let Err(e) = gpu.run(resident) else {
                    return Ok(Report { backend: Backend::Cuda, workers: gpu.blocks(), fallback: None });
                };
                let e = Arc::new(e);
                let Some(cpu) = standby else { return Err(RunError::Device(e)) };
                if let Some(device) = self.engine.gpu() {
                    device.warn(&e);
                }
                (cpu, Some(Reason::Device(e)))
            }
        };
        cpu.run(self.engine.pool())?;
        Ok(Report { backend: Backend::Cpu(self.engine.cpu()), workers: cpu.workers(), fallback })
    }
}

/// A plan with tensors in device memory.
#[derive(Debug)]
pub struct DeviceBound<'a> {
    call: DeviceCall<'a>,
}

impl<'a> DeviceBound<'a> {
    /// Enqueues the computation and returns. Nothing is allocated.
    ///
    /// # Safety
    /// The clauses of [`Plan::bind_device`](crate::Plan::bind_device) hold until the stream was waited for.
    ///
    /// # Errors
    /// What the device reports. There is no fallback.
    pub unsafe fn run(&mut self) -> Result<Report, RunError> {
        // SAFETY: the clause of this function.
        unsafe { self.call.run() }.map_err(|e| RunError::Device(Arc::new(e)))?;
        Ok(Report { backend: Backend::Cuda, workers: self.call.blocks(), fallback: None })
    }

    /// Waits until everything in the stream is done.
    ///
    /// # Errors
    /// What the device reports, of what ran too.
    pub fn wait(&self) -> Result<(), RunError> {
        self.call.wait().map_err(|e| RunError::Device(Arc::new(e)))
    }
}
