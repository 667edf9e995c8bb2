//! Creates workspaces in device memory lent by the caller.

use super::plan::GpuPlan;
use super::workspace::GpuWorkspace;
use crate::cpu::plan::CpuPlan;
use crate::error::PlanError;
use crate::operator::Operator;
use crate::plan::{Execution, Plan};
use crate::workspace::{Memory, Workspace, allocate_on_host};

impl<O: Operator> Plan<O> {
    /// Creates a workspace in the caller's device memory. `memory` is the device address of this memory and must be a
    /// multiple of 256. `bytes` is the size of this memory and must be at least [`Plan::workspace_bytes`]. For
    /// attention calls that output states or have no output tensor, `bytes` must be at least
    /// `Plan::state_workspace_bytes`. A plan that needs no memory accepts address zero with no bytes. Runs on device
    /// tensors in this workspace allocate no device memory. Runs on host tensors still allocate staging memory for
    /// tensors that the device cannot use in place.
    ///
    /// If the device's context is lost, the memory is lost with it. Calls then return [`DeviceError::LostWorkspace`],
    /// or the CPU completes them, until the caller creates another workspace.
    ///
    /// [`DeviceError::LostWorkspace`]: crate::DeviceError::LostWorkspace
    ///
    /// # Errors
    /// Returns an error if the memory is null, misaligned, too short, longer than its allocation, or not memory of the
    /// plan's device and context. Also returns an error if the plan computes on the CPU, if host memory is not
    /// available, or if the device fails.
    ///
    /// # Safety
    /// - *lent*: nothing else uses the memory, or frees it, until the workspace is dropped. Dropping it waits for
    ///   pending runs.
    pub unsafe fn workspace_on_device(&self, memory: u64, bytes: usize) -> Result<Workspace<O>, PlanError> {
        let Execution::Gpu { gpu: plan, standby } = &self.execution else {
            return Err(PlanError::OnHost { found: self.backend() });
        };
        let standby = standby.as_ref().map(|cpu| allocate_on_host(cpu.bytes())).transpose()?;
        // SAFETY: the clause *lent* of this function includes the clause of `GpuWorkspace::lent`.
        let gpu = unsafe { GpuWorkspace::lent(plan.gpu(), plan.needs(), memory, bytes)? };
        Ok(Workspace::of(Memory::Gpu { gpu: Ok(Box::new(gpu)), standby }))
    }
}
