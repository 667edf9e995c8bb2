//! The bound plan and its run.

use crate::cpu::call::Call;
use crate::cuda::call::{DeviceCall, HostCall};
use crate::engine::{Backend, Engine};
use crate::error::{BindError, DeviceError, PlanError, RunError};
use std::fmt;
use std::sync::Arc;

/// A plan with the tensors of a frame.
#[derive(Debug)]
pub struct Bound<'a> {
    engine: &'a Engine,
    /// There is at least one of the two.
    cpu: Option<Call<'a>>,
    gpu: Option<HostCall<'a>>,
    reason: Option<Reason>,
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

impl<'a> Bound<'a> {
    pub(crate) fn new(
        engine: &'a Engine,
        cpu: Option<Call<'a>>,
        gpu: Option<HostCall<'a>>,
        reason: Option<Reason>,
    ) -> Bound<'a> {
        Bound { engine, cpu, gpu, reason }
    }

    /// Computes the outputs. Nothing is allocated; the bits do not depend on threads, batch or repetition.
    ///
    /// A GPU that fails has the CPU finish the call, unless the policy is to fail. The next run tries the GPU
    /// again; a device whose context was lost gets a new one once, which allocates.
    ///
    /// # Errors
    /// A worker that panicked, a GPU that failed; the outputs are then incomplete.
    pub fn run(&mut self) -> Result<Report, RunError> {
        self.compute(false)
    }

    /// As [`Bound::run`], but a GPU takes the inputs that its memory holds since the run before, and leaves the
    /// outputs there: the time of a pipeline whose tensors live on the device. On the CPU it is the same as `run`.
    ///
    /// # Errors
    /// As for [`Bound::run`].
    pub fn run_resident(&mut self) -> Result<Report, RunError> {
        self.compute(true)
    }

    fn compute(&mut self, resident: bool) -> Result<Report, RunError> {
        let mut fallback = self.reason.clone();
        if let Some(call) = &mut self.gpu {
            match call.run(resident) {
                Ok(()) => {
                    return Ok(Report { backend: Backend::Cuda, workers: call.blocks(), fallback: None });
                }
                Err(e) => {
                    let e = Arc::new(e);
                    if self.cpu.is_none() {
                        return Err(RunError::Device(e));
                    }
                    if let Some(gpu) = self.engine.gpu() {
                        gpu.warn(&e);
                    }
                    fallback = Some(Reason::Device(e));
                }
            }
        }
        // A plan has one of the two.
        let Some(call) = &mut self.cpu else { return Err(RunError::Device(Arc::new(DeviceError::Lost))) };
        call.run(self.engine.pool())?;
        Ok(Report { backend: self.engine.cpu(), workers: call.workers(), fallback })
    }
}

/// A plan with tensors in device memory.
#[derive(Debug)]
pub struct DeviceBound<'a> {
    call: DeviceCall<'a>,
}

impl<'a> DeviceBound<'a> {
    pub(crate) fn new(call: DeviceCall<'a>) -> DeviceBound<'a> {
        DeviceBound { call }
    }

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
