//! Bound plans. A bound plan is a plan with the tensors of a call, ready to run.

use crate::backend::Backend;
use crate::cpu::memory;
use crate::cpu::plan::{CpuCall, CpuPlan};
use crate::cpu::pool::Crew;
use crate::cuda::host::{CallTimes, HostCall};
use crate::cuda::plan::GpuPlan;
use crate::cuda::workspace::GpuWorkspace;
use crate::error::{BindError, DeviceError, RunError};
use crate::operator::{LengthsOf, OperandOf, Operator};
use crate::plan::{Execution, Plan};
use crate::report::{Reason, Report};
use crate::tensors::HostTensors;
use crate::workspace::{Memory, Workspace, allocate_on_host};
use elsa_core::operands::Operands;
use std::sync::Arc;
use std::time::Duration;

/// A call of the operator `O` on the CPU.
type OnCpu<'a, O> = <<O as Operator>::Cpu as CpuPlan>::Call<'a>;

/// A plan with the host tensors of a call, created by [`Plan::bind`]. It may run any number of times.
///
/// ```
/// # use elsa_core::{attention::{Inputs, Outputs, Spec}, dtype::DType, view::View};
/// # use elsa_runtime::{Engine, EngineOptions, PlanOptions};
/// # let view = View::bhnd("q", [1, 1, 4, 8])?;
/// # let problem = Spec::new(DType::F32, view, view, view, view).check()?;
/// # let plan = Engine::new(&EngineOptions::default())?.plan(&problem, &PlanOptions::default())?;
/// # let (x, mut y) = (vec![0.5f32; view.count()], vec![0.0f32; view.count()]);
/// let mut workspace = plan.workspace()?;
/// let inputs = Inputs::new(&x[..], &x[..], &x[..]);
/// let mut bound = plan.bind(inputs, Outputs::new(&mut y[..]), &mut workspace)?;
/// let report = bound.run()?;
/// println!("{} workers of {}", report.workers, report.backend);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Bound<'a, O: Operator> {
    pub(crate) calls: Calls<'a, O>,
    /// Reason why the CPU computes instead of the GPU.
    reason: Option<Reason>,
    plan: &'a Plan<O>,
    /// Record of the last run, stored in the workspace.
    pub(crate) record: &'a mut Option<O::RunRecord>,
}

/// The prepared call on the CPU, or on the GPU with a standby call on the CPU.
#[derive(Debug)]
pub(crate) enum Calls<'a, O: Operator> {
    Cpu(OnCpu<'a, O>),
    Gpu { gpu: HostCall<'a, O::Gpu>, standby: Option<OnCpu<'a, O>> },
}

/// Reason why the GPU does not compute a call.
enum Refused {
    /// The workspace has no device memory.
    Memory(Arc<DeviceError>),
    /// The device does not support the tensors.
    Tensors(BindError),
}

/// Returns the host memory for the CPU's standby plan. First replaces this memory if it is too small for the plan.
/// Replacing the memory discards data that an earlier run left there.
fn standing_by<'a, R>(
    plan: &impl CpuPlan,
    memory: &'a mut Option<memory::Memory>,
    record: &mut Option<R>,
) -> Result<&'a mut memory::Memory, BindError> {
    let bytes = plan.bytes();
    let enough = match memory.take() {
        Some(memory) if memory.bytes() >= bytes => memory,
        _ => {
            *record = None;
            allocate_on_host(bytes).map_err(|_| BindError::Device(DeviceError::HostMemory { bytes }))?
        }
    };
    Ok(memory.insert(enough))
}

/// Returns the memory of a workspace for a call on the CPU.
fn cpu_memory<'a, R>(
    plan: &impl CpuPlan,
    memory: &'a mut Memory,
    record: &mut Option<R>,
) -> Result<&'a mut memory::Memory, BindError> {
    match memory {
        Memory::Cpu(cpu) => Ok(cpu),
        Memory::Gpu { standby, .. } => standing_by(plan, standby, record),
    }
}

impl<O: Operator> Plan<O> {
    /// Binds the host tensors of a call. Checks them against the problem and writes nothing. If the workspace is on a
    /// GPU, allocates the device memory and host memory that this call needs and that the workspace does not have yet.
    /// Allocates nothing in other workspaces.
    ///
    /// # Errors
    /// Returns an error if the data do not match the problem, or if the workspace belongs to another plan. With
    /// [`Fallback::Fail`](crate::Fallback::Fail), also returns an error if the device fails.
    pub fn bind<'a>(
        &'a self,
        inputs: O::Inputs<'a>,
        outputs: O::Outputs<'a>,
        workspace: &'a mut Workspace<O>,
    ) -> Result<Bound<'a, O>, BindError> {
        O::check(&self.problem, &inputs, &outputs)?;
        self.bind_tensors(O::lengths(&self.problem, &inputs), HostTensors::new(inputs, outputs), workspace)
    }

    /// Runs the plan once over the host tensors of a call: checks them as [`Plan::bind`] does, computes the outputs as
    /// [`Bound::run`] does, and waits for them. Skips the copies of a bound plan, so it is the fastest form of a single
    /// call on the CPU.
    ///
    /// # Errors
    /// Returns the errors of [`Plan::bind`] and [`Bound::run`].
    pub fn run<'a>(
        &'a self,
        inputs: O::Inputs<'a>,
        outputs: O::Outputs<'a>,
        workspace: &'a mut Workspace<O>,
    ) -> Result<Report, RunError> {
        O::check(&self.problem, &inputs, &outputs)?;
        let lengths = O::lengths(&self.problem, &inputs);
        let tensors = HostTensors::new(inputs, outputs);
        match &self.execution {
            Execution::Cpu(plan) => self.run_on_cpu(plan, lengths, &tensors, workspace),
            Execution::Gpu { .. } => self.run_bound(lengths, tensors, workspace),
        }
    }

    /// Checks that the workspace is large enough for a call on the CPU.
    pub(crate) fn fits(&self, plan: &O::Cpu, workspace: &mut Workspace<O>) -> Result<(), BindError> {
        let memory = cpu_memory(plan, &mut workspace.memory, &mut workspace.record)?;
        memory.lines_for(plan.bytes()).map(|_| ())
    }

    /// Runs a call on the CPU, for tensors that have been checked against the problem.
    #[inline(never)]
    pub(crate) fn run_on_cpu<'a>(
        &'a self,
        plan: &'a O::Cpu,
        lengths: LengthsOf<'a, O>,
        tensors: &HostTensors<'a, OperandOf<O>>,
        workspace: &'a mut Workspace<O>,
    ) -> Result<Report, RunError> {
        let Workspace { memory, record, .. } = workspace;
        let memory = cpu_memory(plan, memory, record)?;
        let mut call = plan.call(&self.problem, lengths, tensors, memory)?;
        *record = None;
        let crew = self.engine.pool().begin();
        self.compute_on_cpu(&mut call, &crew, self.refusal.clone().map(Reason::Plan), record)
    }

    /// Binds tensors that have been checked against the problem, and runs the call once. A bound call is large. It stays in
    /// this function's stack frame, so that calls of a quorum's task stay within the stack that the C interface states.
    #[inline(never)]
    pub(crate) fn run_bound<'a>(
        &'a self,
        lengths: LengthsOf<'a, O>,
        tensors: HostTensors<'a, OperandOf<O>>,
        workspace: &'a mut Workspace<O>,
    ) -> Result<Report, RunError> {
        match &mut self.bind_tensors(lengths, tensors, workspace) {
            Ok(bound) => bound.run(),
            Err(error) => Err(error.clone().into()),
        }
    }

    /// Computes a call on the CPU, and stores the record of the run. `fallback` is the reason why no GPU computes.
    fn compute_on_cpu(
        &self,
        call: &mut OnCpu<'_, O>,
        crew: &Crew<'_>,
        fallback: Option<Reason>,
        record: &mut Option<O::RunRecord>,
    ) -> Result<Report, RunError> {
        call.run(crew)?;
        let workers = call.workers().min(self.engine.threads());
        let backend = Backend::Cpu(self.engine.cpu());
        *record =
            self.execution.cpu().and_then(|cpu| O::record_of_cpu(cpu, &self.problem, fallback.is_some()));
        Ok(Report { backend, workers, copied: 0, fallback })
    }

    /// Binds tensors that have been checked against the problem.
    ///
    /// # Errors
    /// Returns the errors of [`Plan::bind`], except for data that do not match the problem.
    pub(crate) fn bind_tensors<'a>(
        &'a self,
        lengths: LengthsOf<'a, O>,
        tensors: HostTensors<'a, OperandOf<O>>,
        workspace: &'a mut Workspace<O>,
    ) -> Result<Bound<'a, O>, BindError> {
        // Each back end has a separate function, so that calls on the CPU do not need the stack of a GPU's call.
        match &self.execution {
            Execution::Cpu(plan) => self.bind_to_cpu(plan, lengths, &tensors, workspace),
            Execution::Gpu { gpu, standby } => {
                self.bind_to_gpu(gpu, standby.as_ref(), lengths, tensors, workspace)
            }
        }
    }

    #[inline(never)]
    fn bind_to_cpu<'a>(
        &'a self,
        plan: &'a O::Cpu,
        lengths: LengthsOf<'a, O>,
        tensors: &HostTensors<'a, OperandOf<O>>,
        workspace: &'a mut Workspace<O>,
    ) -> Result<Bound<'a, O>, BindError> {
        let memory = cpu_memory(plan, &mut workspace.memory, &mut workspace.record)?;
        let calls = Calls::Cpu(plan.call(&self.problem, lengths, tensors, memory)?);
        let reason = self.refusal.clone().map(Reason::Plan);
        Ok(Bound { calls, reason, plan: self, record: &mut workspace.record })
    }

    #[inline(never)]
    pub(crate) fn bind_to_gpu<'a>(
        &'a self,
        gpu: &'a O::Gpu,
        standby: Option<&'a O::Cpu>,
        lengths: LengthsOf<'a, O>,
        tensors: HostTensors<'a, OperandOf<O>>,
        workspace: &'a mut Workspace<O>,
    ) -> Result<Bound<'a, O>, BindError> {
        let Memory::Gpu { gpu: gpu_memory, standby: cpu_memory } = &mut workspace.memory else {
            return Err(BindError::Foreign);
        };
        let standby = match standby {
            Some(plan) => {
                let memory = standing_by(plan, cpu_memory, &mut workspace.record)?;
                Some(plan.call(&self.problem, lengths, &tensors, memory)?)
            }
            None => None,
        };
        let (calls, reason) =
            match (self.bind_gpu(gpu, lengths, tensors, standby.is_some(), gpu_memory)?, standby) {
                (Ok(gpu), standby) => (Calls::Gpu { gpu, standby }, None),
                (Err(Refused::Memory(e)), Some(cpu)) => (Calls::Cpu(cpu), Some(Reason::Device(e))),
                (Err(Refused::Tensors(e)), Some(cpu)) => {
                    gpu.gpu().warn(&e);
                    (Calls::Cpu(cpu), Some(Reason::Bind(Arc::new(e))))
                }
                (Err(Refused::Memory(e)), None) => return Err(BindError::Device(DeviceError::clone(&e))),
                (Err(Refused::Tensors(e)), None) => return Err(e),
            };
        Ok(Bound { calls, reason, plan: self, record: &mut workspace.record })
    }

    /// Checks that the workspace belongs to the plan's GPU and is large enough for a call with the `given` tensors.
    pub(crate) fn check_memory(
        &self,
        plan: &O::Gpu,
        given: &Operands<OperandOf<O>, bool>,
        memory: &GpuWorkspace,
    ) -> Result<(), BindError> {
        memory.check(plan.gpu(), &plan.needs(), plan.room(given))
    }

    /// Returns the call on the GPU, or the reason why the CPU must compute instead.
    ///
    /// # Errors
    /// Returns an error if the workspace does not belong to this plan.
    #[inline(never)]
    fn bind_gpu<'a>(
        &'a self,
        plan: &'a O::Gpu,
        lengths: LengthsOf<'a, O>,
        tensors: HostTensors<'a, OperandOf<O>>,
        guarded: bool,
        memory: &'a mut Result<Box<GpuWorkspace>, Arc<DeviceError>>,
    ) -> Result<Result<HostCall<'a, O::Gpu>, Refused>, BindError> {
        let memory = match memory {
            Ok(memory) => memory,
            Err(e) => return Ok(Err(Refused::Memory(e.clone()))),
        };
        let given = tensors.given();
        self.check_memory(plan, &given, memory)?;
        let call = plan.allows(&given).and_then(|()| {
            let call = HostCall::new(plan, &self.problem, lengths, tensors, guarded, memory);
            call.map_err(BindError::Device)
        });
        Ok(call.map_err(Refused::Tensors))
    }
}

impl<O: Operator> Bound<'_, O> {
    /// Computes the outputs and waits for them. Allocates nothing. The output bits do not depend on the number of
    /// threads or the batch, and repeated runs return the same bits.
    ///
    /// If the GPU fails, the CPU finishes the call, unless the policy is [`Fallback::Fail`](crate::Fallback::Fail). The
    /// next run tries the GPU again. If the device has lost its context, that run first creates a new context, which
    /// allocates memory. An engine replaces a lost context only once.
    ///
    /// # Errors
    /// Returns an error if a worker panicked, if the GPU failed and there is no fallback, or if the call was cancelled
    /// ([`Engine::cancel`](crate::Engine::cancel)). The outputs are then incomplete.
    pub fn run(&mut self) -> Result<Report, RunError> {
        self.compute(|gpu| gpu.run(false)).map(|(report, _)| report)
    }

    /// Runs like [`Bound::run`], but keeps the tensors on a GPU: the run reuses the inputs that an earlier run of this
    /// bound plan has copied to the GPU's memory, and leaves the outputs there. Inputs are copied if no earlier run has
    /// succeeded, or if the copies have been lost with the device's context. The run takes as long as in a pipeline
    /// whose tensors stay on the device. On the CPU, this is [`Bound::run`].
    ///
    /// # Errors
    /// Returns the errors of [`Bound::run`].
    pub fn run_resident(&mut self) -> Result<Report, RunError> {
        self.compute(|gpu| gpu.run(true)).map(|(report, _)| report)
    }

    /// Runs like [`Bound::run_resident`]. If a GPU computed, also returns the times for enqueuing, waiting and
    /// computing. Two events are recorded, so the call takes a little longer. The first call on a GPU allocates.
    ///
    /// # Errors
    /// Returns the errors of [`Bound::run`].
    pub fn run_timed(&mut self) -> Result<(Report, Option<CallTimes>), RunError> {
        self.compute(|gpu| gpu.run_timed())
    }

    /// Measures the mean time on the device over `calls` calls, which are enqueued back to back. If the driver supports
    /// CUDA graphs, the calls form one graph, so that the time excludes the host's work. Inputs and outputs stay on the
    /// device as in [`Bound::run_resident`]. If the CPU computes, the call runs once and the time is `None`. The first
    /// measurement with a given number of calls allocates.
    ///
    /// # Errors
    /// Returns the errors of [`Bound::run`].
    pub fn time_on_device(&mut self, calls: usize) -> Result<(Report, Option<Duration>), RunError> {
        self.compute(|gpu| gpu.time(calls))
    }

    /// Computes on the GPU by calling `run`. If the call was bound to the CPU, or if the GPU fails, computes on the CPU
    /// instead.
    fn compute<T>(
        &mut self,
        run: impl FnOnce(&mut HostCall<'_, O::Gpu>) -> Result<T, DeviceError>,
    ) -> Result<(Report, Option<T>), RunError> {
        *self.record = None;
        let Plan { engine, problem, execution, .. } = self.plan;
        let crew = engine.pool().begin();
        let (cpu, fallback) = match &mut self.calls {
            Calls::Cpu(cpu) => (cpu, self.reason.clone()),
            Calls::Gpu { gpu, standby } => {
                let done = run(gpu);
                crew.check()?;
                let e = match done {
                    Ok(done) => {
                        *self.record = execution.gpu().and_then(|gpu| O::record_of_gpu(gpu, problem));
                        let (workers, copied) = (gpu.blocks(), gpu.copied());
                        let report = Report { backend: Backend::Cuda, workers, copied, fallback: None };
                        return Ok((report, Some(done)));
                    }
                    Err(e) => Arc::new(e),
                };
                let Some(cpu) = standby else { return Err(RunError::Device(e)) };
                if let Some(device) = engine.gpu() {
                    device.warn(&e);
                }
                (cpu, Some(Reason::Device(e)))
            }
        };
        self.plan.compute_on_cpu(cpu, &crew, fallback, self.record).map(|report| (report, None))
    }
}
