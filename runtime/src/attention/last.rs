//! The certificate of the last run in a workspace.

use super::certify::{Ran, Records, Worked};
use super::operator::{Bound, DeviceBound, Workspace};
use super::traversed::Traversed;
use crate::bound::Calls;
use crate::error::CertifyError;
use crate::workspace::Memory;
use elsa_core::attention::certified::Certified;

impl Workspace {
    /// The certificate of the last run in this workspace: how wrong its answer may be, from the plan's arithmetic and from
    /// what the run measured of its tensors. Waits for the run, if it is pending on a GPU. On the CPU it allocates
    /// nothing.
    ///
    /// # Errors
    /// Returns an error if the last run was of a plan without [`PlanOptions::certify`](crate::PlanOptions::certify), if it
    /// failed, if there was none, or if the GPU fails.
    pub fn certified(&mut self) -> Result<Certified<'_>, CertifyError> {
        let ran = self.ran.as_ref().ok_or(CertifyError::NoRun)?;
        let worked = match (&mut self.memory, ran.records()) {
            (Memory::Cpu(cpu) | Memory::Gpu { standby: Some(cpu), .. }, Some(Records::Cpu(_))) => {
                Worked::Cpu(cpu)
            }
            (Memory::Gpu { gpu: Ok(gpu), .. }, Some(Records::Gpu { .. })) => Worked::Gpu(gpu),
            _ => return Err(CertifyError::NoRun),
        };
        ran.certified(worked)
    }

    /// What the last run in this workspace left out, and what it computed again. It allocates nothing.
    ///
    /// # Errors
    /// Returns an error if the last run was of a plan without [`PlanOptions::error_budget`](crate::PlanOptions::error_budget)
    /// and with the exact schedule, if it failed, or if there was none.
    pub fn traversed(&mut self) -> Result<Traversed<'_>, CertifyError> {
        let recorded = self.ran.as_ref().and_then(Ran::recorded).ok_or(CertifyError::Exact)?;
        match &mut self.memory {
            Memory::Cpu(cpu) | Memory::Gpu { standby: Some(cpu), .. } => recorded.traversed(cpu),
            Memory::Gpu { standby: None, .. } => Err(CertifyError::Exact),
        }
    }
}

impl Bound<'_> {
    /// What the last run left out; see [`Workspace::traversed`].
    ///
    /// # Errors
    /// The same as [`Workspace::traversed`].
    pub fn traversed(&mut self) -> Result<Traversed<'_>, CertifyError> {
        let recorded = self.ran.as_ref().and_then(Ran::recorded).ok_or(CertifyError::Exact)?;
        match &mut self.calls {
            Calls::Cpu(cpu) | Calls::Gpu { standby: Some(cpu), .. } => recorded.traversed(cpu.workspace()),
            Calls::Gpu { standby: None, .. } => Err(CertifyError::Exact),
        }
    }

    /// The certificate of the last run; see [`Workspace::certified`].
    ///
    /// # Errors
    /// The same as [`Workspace::certified`].
    pub fn certified(&mut self) -> Result<Certified<'_>, CertifyError> {
        let ran = self.ran.as_ref().ok_or(CertifyError::NoRun)?;
        let worked = match &mut self.calls {
            Calls::Gpu { gpu, .. } if ran.on_gpu() => Worked::Gpu(gpu.workspace()),
            Calls::Cpu(cpu) | Calls::Gpu { standby: Some(cpu), .. } => Worked::Cpu(cpu.workspace()),
            Calls::Gpu { standby: None, .. } => return Err(CertifyError::NoRun),
        };
        ran.certified(worked)
    }
}

impl DeviceBound<'_> {
    /// The certificate of the last run, which it waits for; see [`Workspace::certified`].
    ///
    /// # Errors
    /// The same as [`Workspace::certified`].
    pub fn certified(&mut self) -> Result<Certified<'_>, CertifyError> {
        let ran = self.ran.as_ref().ok_or(CertifyError::NoRun)?;
        ran.certified(Worked::Gpu(self.call.workspace()))
    }
}
