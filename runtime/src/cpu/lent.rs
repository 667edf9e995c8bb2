//! Creates workspaces in memory lent by the caller.

use super::memory;
use crate::error::PlanError;
use crate::operator::Operator;
use crate::plan::{Execution, Plan};
use crate::workspace::{Memory, Workspace};
use elsa_core::plan::ChooseError;

impl<O: Operator> Plan<O> {
    /// Creates a workspace in the caller's memory. The memory must have at least [`Plan::workspace_bytes`] bytes, and
    /// may have any alignment. The workspace occupies the first [`Plan::workspace_bytes`] bytes and sets them to zero;
    /// later bytes stay unchanged.
    ///
    /// # Errors
    /// Returns an error if the memory is null, is too short or extends beyond the address space. Also returns an error
    /// if the plan computes on a GPU.
    ///
    /// # Safety
    /// - *lent*: `memory` is writable for `bytes` bytes, and nothing else uses it until the workspace is dropped.
    pub unsafe fn workspace_in(&self, memory: *mut u8, bytes: usize) -> Result<Workspace<O>, PlanError> {
        let (Execution::Cpu(_), needed) = (&self.execution, self.workspace_bytes()) else {
            return Err(PlanError::OnDevice);
        };
        check_lent(memory, bytes, needed)?;
        // SAFETY: the caller guarantees the clause *lent*.
        let memory = unsafe { memory::Memory::lent(memory, bytes, needed) };
        Ok(Workspace::of(Memory::Cpu(memory.ok_or(ChooseError::Memory { needed })?)))
    }
}

/// Checks the caller's memory for a workspace of `needed` bytes.
///
/// # Errors
/// Returns an error if the memory is null, is too short, or extends beyond the address space.
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
