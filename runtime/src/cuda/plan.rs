//! Interface that an operator implements for a GPU: its plan.

use super::gpu::Gpu;
use super::launch::Launches;
use super::workspace::{GpuWorkspace, Needs};
use crate::error::{BindError, DeviceError};
use crate::problem::Problem;
use crate::tensors::DeviceTensors;
use elsa_core::operands::{ByOperand, Location, Operand, Operands};
use std::convert::Infallible;
use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;

/// The operand type of a plan's problem.
pub type OperandOf<P> = <<P as GpuPlan>::Problem as Problem>::Operand;

/// An operator's plan for a GPU: the decisions that are made once per shape.
pub trait GpuPlan: Clone + Debug + Send + Sync {
    /// The problem of the operator.
    type Problem: Problem;

    /// Returns the GPU on which the plan runs.
    fn gpu(&self) -> &Arc<Gpu>;

    /// Returns the name of the kernel that computes.
    fn kernel(&self) -> &'static str;

    /// Returns the sizes of the workspace that runs of the plan need.
    fn needs(&self) -> Needs;

    /// Returns the size in bytes of a workspace in the caller's device memory, for a call with the `given` tensors. The
    /// default is the size in [`GpuPlan::needs`]; some calls need more.
    fn room(&self, given: &Operands<<Self::Problem as Problem>::Operand, bool>) -> usize {
        let _ = given;
        self.needs().scratch
    }

    /// Checks that the plan supports a call with the `given` tensors.
    ///
    /// # Errors
    /// Returns an error if the plan does not support the call. With a fallback, the CPU then computes the call.
    fn allows(&self, given: &Operands<<Self::Problem as Problem>::Operand, bool>) -> Result<(), BindError> {
        let _ = given;
        Ok(())
    }

    /// Lists the launches of a run, and fills the workspace's table on the host.
    ///
    /// # Errors
    /// Returns an error if memory is not available, or if the device fails.
    fn launches(
        &self,
        problem: &Self::Problem,
        lengths: <Self::Problem as Problem>::Lengths<'_>,
        tensors: &DeviceTensors<'_, <Self::Problem as Problem>::Operand>,
        workspace: &mut GpuWorkspace,
    ) -> Result<Launches, DeviceError>;
}

/// Plan type for an operator that no GPU supports. It has no values.
#[derive(Clone, Copy, Debug)]
pub struct NoGpu<P>(Infallible, PhantomData<P>);

impl<P> NoGpu<P> {
    /// Marks the caller's code as unreachable: this function cannot be called, because no value of this type exists.
    pub fn absurd(&self) -> ! {
        match self.0 {}
    }
}

impl<P: Problem> GpuPlan for NoGpu<P> {
    type Problem = P;

    fn gpu(&self) -> &Arc<Gpu> {
        self.absurd()
    }

    fn kernel(&self) -> &'static str {
        self.absurd()
    }

    fn needs(&self) -> Needs {
        self.absurd()
    }

    fn launches(
        &self,
        _: &P,
        _: P::Lengths<'_>,
        _: &DeviceTensors<'_, P::Operand>,
        _: &mut GpuWorkspace,
    ) -> Result<Launches, DeviceError> {
        self.absurd()
    }
}

/// Type of the device tensors for an operator that no GPU supports. It has no values.
#[derive(Clone, Copy, Debug)]
pub enum NoTensors {}

impl<O: Operand> ByOperand<O> for NoTensors {
    type Address = u64;

    fn place(&mut self, _: O) -> Option<Location<u64>> {
        match *self {}
    }
}
