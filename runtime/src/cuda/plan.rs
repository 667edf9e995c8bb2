//! The GPU's side of an operator.

use super::gpu::Gpu;
use super::launch::Launches;
use super::workspace::{GpuWorkspace, Needs};
use crate::error::{BindError, DeviceError};
use crate::problem::Problem;
use crate::tensors::{Given, PerTensor};
use std::fmt::Debug;
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
    fn room(&self, given: Given) -> usize {
        let _ = given;
        self.needs().scratch
    }

    /// Checks that the plan supports a call with these tensors.
    ///
    /// # Errors
    /// Returns an error if it does not; the CPU then computes instead.
    fn allows(&self, given: Given) -> Result<(), BindError> {
        let _ = given;
        Ok(())
    }

    /// Lists everything that a run launches, and fills the workspace's table on the host. `at` holds the device
    /// address of every tensor, or zero for absent tensors.
    ///
    /// # Errors
    /// Returns an error if memory is not available, or if the device fails.
    fn launches(
        &self,
        problem: &Self::Problem,
        lengths: <Self::Problem as Problem>::Lengths<'_>,
        at: &PerTensor<u64>,
        workspace: &mut GpuWorkspace,
    ) -> Result<Launches, DeviceError>;
}
