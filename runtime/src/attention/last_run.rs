//! The certificate of the last run in a workspace.

use super::certify::Ran;
use super::operator::{Attention, Bound, DeviceBound, Workspace};
use super::run_memory::RunMemory;
use super::traversed::Traversed;
use crate::bound::Calls;
use crate::error::RunError;
use crate::workspace::Memory;
use elsa_core::attention::certified::Certified;

/// Returns the part of a workspace's memory in which a run worked.
fn memory_of<'w>(memory: &'w mut Memory, ran: &Ran) -> Option<RunMemory<'w>> {
    match memory {
        Memory::Gpu { gpu: Ok(gpu), .. } if ran.on_gpu() => Some(RunMemory::Gpu(gpu)),
        Memory::Cpu(cpu) | Memory::Gpu { standby: Some(cpu), .. } if !ran.on_gpu() => {
            Some(RunMemory::Cpu(cpu))
        }
        _ => None,
    }
}

/// Returns the same part for a bound call.
fn memory_of_call<'w>(calls: &'w mut Calls<'_, Attention>, ran: &Ran) -> Option<RunMemory<'w>> {
    match calls {
        Calls::Gpu { gpu, .. } if ran.on_gpu() => Some(RunMemory::Gpu(gpu.workspace())),
        Calls::Cpu(cpu) | Calls::Gpu { standby: Some(cpu), .. } if !ran.on_gpu() => {
            Some(RunMemory::Cpu(cpu.memory()))
        }
        _ => None,
    }
}

impl Workspace {
    /// Returns the certificate of the last run in this workspace: a bound of the error of its answer, from the plan's
    /// arithmetic and from measurements of its tensors. Waits for the run, if it is pending on a GPU. On the CPU it allocates
    /// nothing.
    ///
    /// # Errors
    /// Returns an error if the last run was of a plan without [`PlanOptions::certify`](crate::PlanOptions::certify), if it
    /// failed, if there was none, or if the GPU fails.
    pub fn certified(&mut self) -> Result<Certified<'_>, RunError> {
        let ran = self.ran.as_ref().ok_or(RunError::NoRun)?;
        ran.certified(memory_of(&mut self.memory, ran).ok_or(RunError::NoRun)?)
    }

    /// Reports the keys that the last run in this workspace skipped, and the rows that it recomputed. Waits for the run, if
    /// it is pending on a GPU. It allocates nothing.
    ///
    /// # Errors
    /// Returns an error if the last run was of a plan without [`PlanOptions::error_budget`](crate::PlanOptions::error_budget)
    /// and with the exact schedule, if it failed, or if there was none.
    pub fn traversed(&mut self) -> Result<Traversed<'_>, RunError> {
        let ran = self.ran.as_ref().ok_or(RunError::Exact)?;
        let recorded = ran.recorded().ok_or(RunError::Exact)?;
        recorded.traversed(memory_of(&mut self.memory, ran).ok_or(RunError::Exact)?)
    }
}

impl Bound<'_> {
    /// Reports the skipped keys of the last run; see [`Workspace::traversed`].
    ///
    /// # Errors
    /// The same as [`Workspace::traversed`].
    pub fn traversed(&mut self) -> Result<Traversed<'_>, RunError> {
        let ran = self.ran.as_ref().ok_or(RunError::Exact)?;
        let recorded = ran.recorded().ok_or(RunError::Exact)?;
        recorded.traversed(memory_of_call(&mut self.calls, ran).ok_or(RunError::Exact)?)
    }

    /// Returns the certificate of the last run; see [`Workspace::certified`].
    ///
    /// # Errors
    /// The same as [`Workspace::certified`].
    pub fn certified(&mut self) -> Result<Certified<'_>, RunError> {
        let ran = self.ran.as_ref().ok_or(RunError::NoRun)?;
        ran.certified(memory_of_call(&mut self.calls, ran).ok_or(RunError::NoRun)?)
    }
}

impl DeviceBound<'_> {
    /// Returns the certificate of the last run, which it waits for; see [`Workspace::certified`].
    ///
    /// # Errors
    /// The same as [`Workspace::certified`].
    pub fn certified(&mut self) -> Result<Certified<'_>, RunError> {
        let ran = self.ran.as_ref().ok_or(RunError::NoRun)?;
        ran.certified(RunMemory::Gpu(self.call.workspace()))
    }
}
