//! The GPU's side of an operator.

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

/// The decisions for runs on a GPU that are made once per shape.
pub trait GpuPlan: Clone + Debug + Send + Sync {
    /// The problem.
    type Problem: Problem;

    /// Returns the GPU of the plan.
    fn gpu(&self) -> &Arc<Gpu>;

    /// Returns the name of the kernel that computes.
    fn kernel(&self) -> &'static str;

    /// Returns the workspace that runs need.
    fn needs(&self) -> Needs;

    /// Returns the bytes that a call needs of a workspace in the caller's device memory, if more than
    /// [`GpuPlan::needs`].
    fn room(&self, given: &Operands<<Self::Problem as Problem>::Operand, bool>) -> usize {
        let _ = given;
        self.needs().scratch
    }

    /// Checks that the plan supports a call with these tensors.
    ///
    /// # Errors
    /// Returns an error if it does not, so that the CPU computes instead.
    fn allows(&self, given: &Operands<<Self::Problem as Problem>::Operand, bool>) -> Result<(), BindError> {
        let _ = given;
        Ok(())
    }

    /// Lists everything that a run launches, and fills the workspace's table on the host.
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

/// The plan of an operator that no GPU computes. There is none.
#[derive(Clone, Copy, Debug)]
pub struct NoGpu<P>(Infallible, PhantomData<P>);

impl<P> NoGpu<P> {
    /// Returns nothing, as there is no plan.
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

/// The device tensors of an operator that no GPU computes. There are none.
#[derive(Clone, Copy, Debug)]
pub enum NoTensors {}

impl<O: Operand> ByOperand<O> for NoTensors {
    type Address = u64;

    fn place(&mut self, _: O) -> Option<Location<u64>> {
        match *self {}
    }
}
