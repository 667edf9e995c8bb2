//! The plan: what is decided once per shape.

use crate::cpu::call::Call;
use crate::cpu::workspace::Workspace as CpuWorkspace;
use crate::cuda::call::{DeviceCall, DeviceInputs, DeviceOutputs, HostCall};
use crate::cuda::driver::RawStream;
use crate::cuda::plan::{GpuPlan, GpuWorkspace};
use crate::engine::{Backend, Engine, Fallback};
use crate::error::{BindError, DeviceError, PlanError};
use crate::run::{Bound, DeviceBound, Reason};
use crate::targets::Targets;
use elsa_core::attention::certificate::{Certificate, Executed};
use elsa_core::attention::plan::{CpuChoice, GpuChoice, GpuWorkspaceLayout, Method, WorkspaceLayout};
use elsa_core::attention::{Inputs, Outputs, Problem};
use elsa_core::scan::stack;
use elsa_kernels::attention::Kernel;
use std::sync::Arc;

/// What is wished of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanOptions {
    /// How the answer is computed. A GPU has no method math.
    pub method: Method,
    /// Keys in a block of the CPU: 64, 128 or 256.
    pub block: usize,
    /// Most bytes of workspace: on a GPU, of partial states and tables; the staging of host tensors is told
    /// apart.
    pub budget: Option<usize>,
    /// Whether all threads take part however little there is to do; otherwise as many as pay for being woken.
    /// It changes no bit of the answer.
    pub all_workers: bool,
    /// Whether a GPU may sum short chains of products of halves in halves, where it has a kernel that does: the scores
    /// of f16 inputs take less time and are less exact, as the certificate's [`Executed::half_chain`] says, and a
    /// sum beyond the range of halves makes its row NaN. Inputs of other types are not touched by it.
    pub half_scores: bool,
}

impl Default for PlanOptions {
    fn default() -> Self {
        PlanOptions { method: Method::Elsa, block: 64, budget: None, all_workers: false, half_scores: false }
    }
}

/// What is decided for the CPU.
#[derive(Clone, Debug)]
pub(crate) struct CpuPlan {
    pub kernel: &'static Kernel,
    pub choice: CpuChoice,
    pub layout: WorkspaceLayout,
}

/// A problem with everything decided that does not depend on pointers. It belongs to the engine that made it.
#[derive(Clone, Debug)]
pub struct Plan {
    engine: Engine,
    problem: Problem,
    /// There is at least one of the two.
    cpu: Option<CpuPlan>,
    gpu: Option<GpuPlan>,
    /// Why the GPU that was asked for does not compute.
    refusal: Option<Arc<PlanError>>,
}

/// Memory that a plan's runs work in. One workspace serves one run at a time.
#[derive(Debug)]
pub struct Workspace {
    cpu: Option<CpuWorkspace>,
    gpu: Room,
}

/// Room on a GPU.
#[derive(Debug)]
enum Room {
    /// Not wanted.
    None,
    Ready(Box<GpuWorkspace>),
    /// Wanted, and not to be had.
    Refused(Arc<DeviceError>),
}

impl Workspace {
    /// Gives everything back. Dropping a workspace does the same, and logs what fails.
    ///
    /// # Errors
    /// The first error of the device.
    pub fn close(self) -> Result<(), DeviceError> {
        match self.gpu {
            Room::Ready(workspace) => workspace.close(),
            Room::None | Room::Refused(_) => Ok(()),
        }
    }
}

impl Plan {
    pub(crate) fn new(
        engine: Engine,
        problem: Problem,
        cpu: Option<CpuPlan>,
        gpu: Option<GpuPlan>,
        refusal: Option<Arc<PlanError>>,
    ) -> Plan {
        Plan { engine, problem, cpu, gpu, refusal }
    }

    /// The problem.
    #[must_use]
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// What computes, as long as it does not fail.
    #[must_use]
    pub fn backend(&self) -> Backend {
        if self.gpu.is_some() { Backend::Cuda } else { self.engine.cpu() }
    }

    /// Why the GPU that was asked for does not compute.
    #[must_use]
    pub fn refusal(&self) -> Option<&PlanError> {
        self.refusal.as_deref()
    }

    /// What was decided for the CPU, which computes or stands by.
    #[must_use]
    pub fn choice(&self) -> Option<&CpuChoice> {
        self.cpu.as_ref().map(|cpu| &cpu.choice)
    }

    /// What was decided for the GPU.
    #[must_use]
    pub fn gpu_choice(&self) -> Option<&GpuChoice> {
        self.gpu.as_ref().map(|gpu| &gpu.choice)
    }

    /// Name of the kernel.
    #[must_use]
    pub fn kernel(&self) -> &'static str {
        self.kernel_of(self.backend())
    }

    /// Name of the kernel of a run on `backend`, which its report names.
    #[must_use]
    pub fn kernel_of(&self, backend: Backend) -> &'static str {
        match (&self.gpu, &self.cpu) {
            (Some(gpu), _) if backend == Backend::Cuda => gpu.choice.kernel.name,
            (_, Some(cpu)) => cpu.choice.kernel.name,
            _ => "none",
        }
    }

    /// What may be said of the error of its runs, on the back end of [`Plan::backend`].
    #[must_use]
    pub fn certificate(&self) -> Certificate {
        self.certificate_of(self.backend())
    }

    /// What may be said of the error of a run on `backend`, which its report names.
    #[must_use]
    pub fn certificate_of(&self, backend: Backend) -> Certificate {
        let executed = match (&self.gpu, &self.cpu) {
            (Some(gpu), _) if backend == Backend::Cuda => Plan::executed_on_gpu(gpu),
            (_, Some(cpu)) => self.executed_on_cpu(&cpu.choice),
            _ => {
                Executed { block: 1, segment_blocks: 1, merge_depth: 0, additions: usize::MAX, half_chain: 0 }
            }
        };
        Certificate::new(self.problem.spec().dtype, self.problem.keys(), executed)
    }

    fn executed_on_cpu(&self, c: &CpuChoice) -> Executed {
        let keys = self.problem.keys();
        let merge_depth = match c.method {
            Method::Elsa => stack::depth(c.segments),
            Method::Math => 0,
        };
        let leaf = match c.method {
            Method::Elsa => c.segment.min(keys),
            Method::Math => keys,
        };
        let segment_blocks = c.segment / c.block;
        Executed { block: c.block, segment_blocks, merge_depth, additions: leaf + merge_depth, half_chain: 0 }
    }

    fn executed_on_gpu(gpu: &GpuPlan) -> Executed {
        let c = &gpu.choice;
        let depth = c.depth(false);
        let block = c.kernel.keys.max(1);
        Executed {
            block,
            segment_blocks: c.chunk / block,
            merge_depth: depth.merges,
            additions: depth.additions,
            half_chain: c.kernel.half_chain,
        }
    }

    /// Bytes of the workspace: on a GPU, of device memory beyond inputs and outputs.
    #[must_use]
    pub fn workspace_bytes(&self) -> usize {
        match (&self.gpu, &self.cpu) {
            (Some(gpu), _) => gpu.layout.bytes,
            (None, Some(cpu)) => cpu.layout.bytes(),
            (None, None) => 0,
        }
    }

    /// Bytes of device memory that hold tensors of the host during a run, states apart; none on the CPU.
    #[must_use]
    pub fn staging_bytes(&self) -> usize {
        self.gpu.as_ref().map_or(0, |gpu| gpu.staging_bytes(&self.problem))
    }

    /// Allocates a workspace.
    ///
    /// # Errors
    /// Memory that the system does not give; with [`Fallback::Fail`], memory that the device does not give, and
    /// its failures.
    pub fn workspace(&self) -> Result<Workspace, PlanError> {
        let gpu = match &self.gpu {
            None => Room::None,
            Some(gpu) => match gpu.workspace(&self.problem) {
                Ok(workspace) => Room::Ready(Box::new(workspace)),
                Err(e) if self.engine.fallback() == Fallback::Fail => return Err(e.into()),
                Err(e) => {
                    gpu.gpu.warn(&e);
                    Room::Refused(Arc::new(e))
                }
            },
        };
        let cpu = match &self.cpu {
            None => None,
            Some(cpu) => {
                let workspace = CpuWorkspace::new(&cpu.layout, self.problem.sequences());
                let needed = cpu.layout.bytes();
                Some(workspace.ok_or(elsa_core::attention::plan::ChooseError::Memory { needed })?)
            }
        };
        Ok(Workspace { cpu, gpu })
    }

    /// A workspace in memory of the caller's, of at least [`Plan::workspace_bytes`] bytes and any alignment. It is
    /// cleared; only small tables are allocated besides.
    ///
    /// # Errors
    /// Memory that is too short or null; a plan on a GPU; tables that the system does not give.
    ///
    /// # Safety
    /// - *lent*: `memory` is writable for `bytes` bytes, and nobody else uses it until the workspace is dropped.
    pub unsafe fn workspace_in(&self, memory: *mut u8, bytes: usize) -> Result<Workspace, PlanError> {
        let (None, Some(cpu)) = (&self.gpu, &self.cpu) else { return Err(PlanError::OnDevice) };
        let needed = self.workspace_bytes();
        if memory.is_null() || bytes < needed {
            return Err(PlanError::Room { found: if memory.is_null() { 0 } else { bytes }, needed });
        }
        // SAFETY: *lent*.
        let workspace = unsafe { CpuWorkspace::lent(&cpu.layout, self.problem.sequences(), memory, bytes) };
        let cpu = Some(workspace.ok_or(elsa_core::attention::plan::ChooseError::Memory { needed })?);
        Ok(Workspace { cpu, gpu: Room::None })
    }

    /// What a workspace of another plan lacks.
    fn lacking(&self, found: usize, needed: usize) -> BindError {
        BindError::Workspace { found, needed, found_sequences: 0, sequences: self.problem.sequences() }
    }

    /// Whether a GPU workspace has the room that the plan needs.
    fn check_room(&self, gpu: &GpuPlan, workspace: &GpuWorkspace) -> Result<(), BindError> {
        if !workspace.context.is_lost() && !gpu.gpu.owns(&workspace.context) {
            return Err(BindError::Foreign);
        }
        let (found, needed) = (workspace.parts.bytes(), gpu.layout.bytes);
        if found < needed || workspace.table.bytes() < gpu.layout.sequences.len {
            return Err(self.lacking(found, needed));
        }
        Ok(())
    }

    /// Whether states fit the budget.
    fn check_states(&self, gpu: &GpuPlan, states: bool) -> Result<(), BindError> {
        if let (true, Some(budget)) = (states, gpu.budget) {
            let needed = GpuWorkspaceLayout::of(&gpu.choice, true).map_or(usize::MAX, |layout| layout.bytes);
            if needed > budget {
                return Err(BindError::Budget { needed, budget });
            }
        }
        Ok(())
    }

    /// Binds the tensors of a frame. Nothing is written, and nothing is allocated, but for device memory that
    /// the first frame of its kind needs.
    ///
    /// # Errors
    /// Data that are not those of the problem, another plan's workspace; with [`Fallback::Fail`], failures of
    /// the device.
    pub fn bind<'a>(
        &'a self,
        inputs: Inputs<'a>,
        outputs: Outputs<'a>,
        workspace: &'a mut Workspace,
    ) -> Result<Bound<'a>, BindError> {
        inputs.check(&self.problem)?;
        outputs.check(&self.problem)?;
        let targets = Targets::new(outputs);
        let cpu = match (&self.cpu, &mut workspace.cpu) {
            (None, _) => None,
            (Some(cpu), None) => return Err(self.lacking(0, cpu.layout.bytes())),
            (Some(cpu), Some(room)) => {
                Some(Call::new(cpu.kernel, &self.problem, &cpu.choice, &cpu.layout, inputs, targets, room)?)
            }
        };
        let mut reason = self.refusal.clone().map(Reason::Plan);
        let gpu = match (&self.gpu, &mut workspace.gpu) {
            (None, _) => None,
            (Some(_), Room::None) => return Err(BindError::Foreign),
            (Some(_), Room::Refused(e)) => {
                if cpu.is_none() {
                    return Err(BindError::Device(gpu_error(e)));
                }
                reason = Some(Reason::Device(e.clone()));
                None
            }
            (Some(gpu), Room::Ready(room)) => {
                self.check_room(gpu, room)?;
                let bound = match self.check_states(gpu, targets.states()) {
                    Ok(()) => {
                        HostCall::new(gpu, &self.problem, inputs, targets, room).map_err(BindError::Device)
                    }
                    Err(e) => Err(e),
                };
                match bound {
                    Ok(bound) => Some(bound),
                    Err(e) if cpu.is_none() => return Err(e),
                    Err(e) => {
                        gpu.gpu.warn(&e);
                        reason = Some(Reason::Bind(Arc::new(e)));
                        None
                    }
                }
            }
        };
        Ok(Bound::new(&self.engine, cpu, gpu, reason))
    }

    /// Binds tensors in device memory. They are used where they lie; runs enqueue in `stream`, or in one of the
    /// workspace, and do not wait. There is no fallback: the CPU cannot read them.
    ///
    /// # Errors
    /// A plan that computes on the CPU; addresses that are no memory of this device and context, or whose
    /// allocation is too short; a stream of another context; lists that are not those of the problem; another
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
        let Some(gpu) = &self.gpu else { return Err(BindError::NotOnDevice { found: self.engine.cpu() }) };
        let room = match &mut workspace.gpu {
            Room::Ready(room) => room,
            Room::Refused(e) => return Err(BindError::Device(gpu_error(e))),
            Room::None => return Err(BindError::Foreign),
        };
        self.check_room(gpu, room)?;
        self.check_states(gpu, outputs.state.is_some())?;
        Ok(DeviceBound::new(DeviceCall::new(gpu, &self.problem, inputs, outputs, stream, room)?))
    }
}

fn gpu_error(e: &Arc<DeviceError>) -> DeviceError {
    DeviceError::clone(e)
}
