//! Workspaces in memory that the caller lends.

use super::plan::CpuPlan;
use crate::error::PlanError;
use crate::operator::Operator;
use crate::plan::{Execution, Plan};
use crate::workspace::{Memory, Workspace};

impl<O: Operator> Plan<O> {
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
    pub unsafe fn workspace_in(&self, memory: *mut u8, bytes: usize) -> Result<Workspace<O>, PlanError> {
        let Execution::Cpu(cpu) = &self.execution else { return Err(PlanError::OnDevice) };
        check_lent(memory, bytes, self.workspace_bytes())?;
        // SAFETY: *lent*.
        let workspace = unsafe { cpu.workspace_in(&self.problem, memory, bytes)? };
        Ok(Workspace::of(Memory::Cpu(workspace)))
    }
}

/// Checks memory of the caller's for a workspace of `needed` bytes.
///
/// # Errors
/// Returns an error if the memory is null, too short, or longer than memory can be.
fn check_lent(memory: *const u8, bytes: usize, needed: usize) -> Result<(), PlanError> {
    let (found, address) = (bytes, memory.addr() as u64);
    if memory.is_null() {
        return Err(PlanError::Null { found, needed });
    }
    if bytes > isize::MAX as usize || memory.addr().checked_add(bytes).is_none() {
        return Err(PlanError::Extent { found, address, needed });
    }
    if bytes < needed { Err(PlanError::Room { found, needed }) } else { Ok(()) }
}
