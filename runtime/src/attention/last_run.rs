//! The certificate and the other facts of the last run in a workspace.

use super::certify::RunRecord;
use super::operator::{Attention, Bound, DeviceBound, Workspace};
use super::refusals::RefusedBlocks;
use super::run_memory::RunMemory;
use super::traversed::Traversed;
use crate::bound::Calls;
use crate::error::RunError;
use crate::workspace::Memory;
use elsa_core::attention::run_certificate::RunCertificate;

/// Returns the memory that the workspace has on the back end that computed the run; `None` if it has no memory there.
fn memory_of<'w>(memory: &'w mut Memory, record: &RunRecord) -> Option<RunMemory<'w>> {
    match memory {
        Memory::Gpu { gpu: Ok(gpu), .. } if record.on_gpu() => Some(RunMemory::Gpu(gpu)),
        Memory::Cpu(cpu) | Memory::Gpu { standby: Some(cpu), .. } if !record.on_gpu() => {
            Some(RunMemory::Cpu(cpu))
        }
        _ => None,
    }
}

/// Returns the memory that the bound call has on the back end that computed the run; `None` if it has no memory there.
fn memory_of_call<'w>(calls: &'w mut Calls<'_, Attention>, record: &RunRecord) -> Option<RunMemory<'w>> {
    match calls {
        Calls::Gpu { gpu, .. } if record.on_gpu() => Some(RunMemory::Gpu(gpu.workspace())),
        Calls::Cpu(cpu) | Calls::Gpu { standby: Some(cpu), .. } if !record.on_gpu() => {
            Some(RunMemory::Cpu(cpu.memory()))
        }
        _ => None,
    }
}

impl Workspace {
    /// Returns the certificate of the last run in this workspace: a bound on the error of the run's output. The bound
    /// is computed from the plan's arithmetic and from measurements of the run's tensors. Waits if the run is still
    /// pending on a GPU. On the CPU, allocates nothing.
    ///
    /// # Errors
    /// Returns an error if the plan of the last run did not have [`PlanOptions::certify`](crate::PlanOptions::certify),
    /// if the run failed, if there was no run, or if the GPU fails.
    pub fn certificate(&mut self) -> Result<RunCertificate<'_>, RunError> {
        let record = self.record.as_ref().ok_or(RunError::NoRun)?;
        record.certificate(memory_of(&mut self.memory, record).ok_or(RunError::NoRun)?)
    }

    /// Reports the keys that the last run in this workspace skipped, and the rows that it recomputed. Waits if the run
    /// is still pending on a GPU. Allocates nothing.
    ///
    /// # Errors
    /// Returns an error if the plan of the last run had the exact schedule and no
    /// [`PlanOptions::error_budget`](crate::PlanOptions::error_budget), if the run failed, or if there was no run.
    pub fn traversed(&mut self) -> Result<Traversed<'_>, RunError> {
        let record = self.record.as_ref().ok_or(RunError::Exact)?;
        record.traversed(memory_of(&mut self.memory, record))
    }

    /// Counts the blocks of rows that the last run in this workspace refused on Tensor Cores, so that f32 products computed
    /// them. Returns `None` if the last run was not on Tensor Cores, if it failed, or if there was no run. Waits if the run is
    /// still pending. The first call allocates host memory, and only calls of this function read the device's memory.
    ///
    /// # Errors
    /// Returns an error if the GPU fails, or if host memory is not available.
    pub fn refused_blocks(&mut self) -> Result<Option<RefusedBlocks>, RunError> {
        let Some(record) = self.record.as_ref() else { return Ok(None) };
        record.refused_blocks(memory_of(&mut self.memory, record))
    }
}

impl Bound<'_> {
    /// Reports the skipped keys of the last run; see [`Workspace::traversed`].
    ///
    /// # Errors
    /// Returns the errors of [`Workspace::traversed`].
    pub fn traversed(&mut self) -> Result<Traversed<'_>, RunError> {
        let record = self.record.as_ref().ok_or(RunError::Exact)?;
        record.traversed(memory_of_call(&mut self.calls, record))
    }

    /// Counts the blocks of rows that the last run refused on Tensor Cores; see [`Workspace::refused_blocks`].
    ///
    /// # Errors
    /// Returns the errors of [`Workspace::refused_blocks`].
    pub fn refused_blocks(&mut self) -> Result<Option<RefusedBlocks>, RunError> {
        let Some(record) = self.record.as_ref() else { return Ok(None) };
        record.refused_blocks(memory_of_call(&mut self.calls, record))
    }

    /// Returns the certificate of the last run; see [`Workspace::certificate`].
    ///
    /// # Errors
    /// Returns the errors of [`Workspace::certificate`].
    pub fn certificate(&mut self) -> Result<RunCertificate<'_>, RunError> {
        let record = self.record.as_ref().ok_or(RunError::NoRun)?;
        record.certificate(memory_of_call(&mut self.calls, record).ok_or(RunError::NoRun)?)
    }
}

impl DeviceBound<'_> {
    /// Waits for the last run and returns its certificate; see [`Workspace::certificate`].
    ///
    /// # Errors
    /// Returns the errors of [`Workspace::certificate`].
    pub fn certificate(&mut self) -> Result<RunCertificate<'_>, RunError> {
        let record = self.record.as_ref().ok_or(RunError::NoRun)?;
        record.certificate(RunMemory::Gpu(self.call.workspace()))
    }

    /// Waits for the last run and counts the blocks of rows that it refused on Tensor Cores; see
    /// [`Workspace::refused_blocks`].
    ///
    /// # Errors
    /// Returns the errors of [`Workspace::refused_blocks`].
    pub fn refused_blocks(&mut self) -> Result<Option<RefusedBlocks>, RunError> {
        let Some(record) = self.record.as_ref() else { return Ok(None) };
        record.refused_blocks(Some(RunMemory::Gpu(self.call.workspace())))
    }
}
