//! Binds tensors in device memory to a plan of a GPU.

use super::device::{DeviceCall, Trust};
use super::driver::{RawEvent, RawStream};
use super::plan::GpuPlan;
use crate::backend::Backend;
use crate::error::{BindError, DeviceError, RunError};
use crate::operator::Operator;
use crate::plan::{Execution, Plan};
use crate::report::Report;
use crate::tensors::places;
use crate::workspace::{Memory, Workspace};
use elsa_core::operands::Operands;
use std::sync::Arc;

impl<O: Operator> Plan<O> {
    /// Binds tensors in device memory, which are used in place. Runs enqueue their work in `stream`, or in a stream of
    /// the workspace if `stream` is `None`. Runs do not wait for the work. Later runs in the same workspace execute
    /// after the enqueued work, even with another plan or in another stream. There is no fallback, because the CPU
    /// cannot read device memory. Page-locked host memory may be passed by its device address
    /// ([`HostBuffer::device_address`]).
    ///
    /// If the stream is being captured, the run becomes part of its CUDA graph. A captured stream cannot wait for
    /// earlier runs in the workspace, so the run itself waits for them. The caller must order launches of the graph
    /// with other runs in the workspace. A launch uses the lengths that were bound when the run was captured.
    ///
    /// [`HostBuffer::device_address`]: crate::HostBuffer::device_address
    ///
    /// # Errors
    /// Returns an error if
    /// - the plan computes on the CPU,
    /// - an address is not memory of the plan's device and context, is misaligned, or is too close to the end of its
    ///   allocation,
    /// - the stream belongs to another context,
    /// - the lengths do not match the problem,
    /// - the workspace belongs to another plan,
    /// - the device fails.
    ///
    /// # Safety
    /// - Until every run has been waited for, the caller keeps the tensors allocated, and only work in the same stream
    ///   writes the inputs or uses the outputs.
    /// - No output shares memory with another tensor of the call.
    pub unsafe fn bind_device<'a>(
        &'a self,
        inputs: &O::DeviceInputs<'a>,
        outputs: &O::DeviceOutputs,
        stream: Option<RawStream>,
        workspace: &'a mut Workspace<O>,
    ) -> Result<DeviceBound<'a, O>, BindError> {
        // SAFETY: the clauses of this function; the default guarantees nothing.
        unsafe { self.bind_device_trusted(inputs, outputs, stream, Trust::default(), workspace) }
    }

    /// Binds tensors like [`Plan::bind_device`], but does not ask the driver about the facts that `trust` guarantees, so
    /// that a repeated call takes less time. With all of them, a run in the stream of the previous run makes only the
    /// calls that make a context current, ask whether the stream is captured, launch kernels and record their end.
    ///
    /// # Errors
    /// Returns the errors of [`Plan::bind_device`], except for what is guaranteed. If something is guaranteed, also returns
    /// an error if the context of the workspace is lost.
    ///
    /// # Safety
    /// - The clauses of [`Plan::bind_device`].
    /// - Every fact that `trust` guarantees is true.
    pub unsafe fn bind_device_trusted<'a>(
        &'a self,
        inputs: &O::DeviceInputs<'a>,
        outputs: &O::DeviceOutputs,
        stream: Option<RawStream>,
        trust: Trust,
        workspace: &'a mut Workspace<O>,
    ) -> Result<DeviceBound<'a, O>, BindError> {
        let Workspace { memory, record } = workspace;
        let call = self.device_call(inputs, outputs, (stream, trust), None, memory)?;
        Ok(DeviceBound { call, plan: self, record })
    }

    /// Binds tensors like [`Plan::bind_device_trusted`]. If `trust` guarantees the facts about addresses, the workspace keeps
    /// the list of launches and uses it in the next call with the same `key`. That call takes less time, because its tensors
    /// are neither requested nor checked. A workspace keeps 128 lists.
    ///
    /// `key` is bytes in parts of whole words of eight bytes, or `None` if the workspace keeps nothing. `tensors` returns the tensors
    /// of the call. If the key contains the address of each tensor as one of its words, the list also serves calls whose keys differ
    /// in these words only, unless their alignment differs or a tensor overlaps an output.
    ///
    /// # Errors
    /// Returns the errors of [`Plan::bind_device_trusted`] and of `tensors`.
    ///
    /// # Safety
    /// - The clauses of [`Plan::bind_device_trusted`].
    /// - In one workspace, calls with equal keys are of one plan, and have equal inputs and outputs, including lengths. Calls
    ///   whose keys differ only in words that are addresses of tensors differ only in these addresses.
    pub unsafe fn bind_device_keyed<'a, E: From<BindError>>(
        &'a self,
        key: Option<&[&[u8]]>,
        tensors: impl FnOnce() -> Result<(O::DeviceInputs<'a>, O::DeviceOutputs), E>,
        stream: Option<RawStream>,
        trust: Trust,
        workspace: &'a mut Workspace<O>,
    ) -> Result<DeviceBound<'a, O>, E> {
        let key = key.filter(|_| trust.addresses);
        let Workspace { memory, record } = workspace;
        let known = match (&mut *memory, key) {
            (Memory::Gpu { gpu: Ok(memory), .. }, Some(key)) => memory.again(key),
            _ => false,
        };
        let call = match (known, memory) {
            (true, Memory::Gpu { gpu: Ok(memory), .. }) => DeviceCall::again(stream, trust, memory)?,
            (_, memory) => {
                let (inputs, outputs) = tensors()?;
                self.device_call(&inputs, &outputs, (stream, trust), key, memory)?
            }
        };
        Ok(DeviceBound { call, plan: self, record })
    }

    /// Checks the tensors of a call and prepares its launches, as [`Plan::bind_device_trusted`] does.
    fn device_call<'a>(
        &'a self,
        inputs: &O::DeviceInputs<'a>,
        outputs: &O::DeviceOutputs,
        (stream, trust): (Option<RawStream>, Trust),
        key: Option<&[&[u8]]>,
        memory: &'a mut Memory,
    ) -> Result<DeviceCall<'a>, BindError> {
        let Execution::Gpu { gpu: plan, .. } = &self.execution else {
            return Err(BindError::NotOnDevice { found: Backend::Cpu(self.engine.cpu()) });
        };
        let memory = match memory {
            Memory::Gpu { gpu: Ok(memory), .. } => memory,
            Memory::Gpu { gpu: Err(e), .. } => return Err(BindError::Device(DeviceError::clone(e))),
            Memory::Cpu(_) => return Err(BindError::Foreign),
        };
        O::check_on_device(&self.problem, inputs, outputs)?;
        let (mut read, mut written) = (*inputs, *outputs);
        let places = places(&mut read, &mut written);
        let given = Operands::from_fn(|operand| places[operand].is_some());
        self.check_memory(plan, &given, memory)?;
        plan.allows(&given)?;
        let lengths = O::device_lengths(&self.problem, inputs);
        DeviceCall::new(plan, &self.problem, lengths, &places, (stream, trust), key, memory)
    }
}

/// A plan with tensors in device memory, created by [`Plan::bind_device`].
#[derive(Debug)]
pub struct DeviceBound<'a, O: Operator> {
    pub(crate) call: DeviceCall<'a>,
    plan: &'a Plan<O>,
    pub(crate) record: &'a mut Option<O::RunRecord>,
}

impl<O: Operator> DeviceBound<'_, O> {
    /// Enqueues the computation and returns without waiting for it. Allocates nothing.
    ///
    /// # Safety
    /// The clauses of [`Plan::bind_device`](crate::Plan::bind_device) remain true until the stream has been waited for.
    ///
    /// # Errors
    /// Returns the error that the device reports. There is no fallback.
    pub unsafe fn run(&mut self) -> Result<Report, RunError> {
        *self.record = None;
        // SAFETY: the caller guarantees the clause of this function.
        unsafe { self.call.run() }.map_err(|e| RunError::Device(Arc::new(e)))?;
        let Plan { execution, problem, .. } = self.plan;
        *self.record = execution.gpu().and_then(|gpu| O::record_of_gpu(gpu, problem));
        Ok(Report { backend: Backend::Cuda, workers: self.call.blocks(), copied: 0, fallback: None })
    }

    /// Makes the stream wait for `event` before it executes the work of later runs. The calling thread does not wait.
    /// An event that has not been recorded counts as done. The event may be of another context.
    ///
    /// # Errors
    /// Returns the error that the device reports.
    pub fn follow(&self, event: RawEvent) -> Result<(), RunError> {
        self.call.follow(event).map_err(|e| RunError::Device(Arc::new(e)))
    }

    /// Records `event`, which must be of the plan's context, after the work of earlier runs.
    ///
    /// # Errors
    /// Returns the error that the device reports.
    pub fn mark(&self, event: RawEvent) -> Result<(), RunError> {
        self.call.mark(event).map_err(|e| RunError::Device(Arc::new(e)))
    }

    /// Waits until all work in the stream is done.
    ///
    /// # Errors
    /// Returns the error that the device reports, including errors of earlier runs.
    pub fn wait(&self) -> Result<(), RunError> {
        self.call.wait().map_err(|e| RunError::Device(Arc::new(e)))
    }
}
