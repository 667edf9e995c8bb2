//! The certificate of the last run in a workspace.

use super::certify::{Records, Worked};
use super::operator::{Bound, DeviceBound, Workspace};
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
            (Memory::Cpu(cpu) | Memory::Gpu { standby: Some(cpu), .. }, Records::Cpu(_)) => Worked::Cpu(cpu),
            (Memory::Gpu { gpu: Ok(gpu), .. }, Records::Gpu { .. }) => Worked::Gpu(gpu),
            _ => return Err(CertifyError::NoRun),
        };
        ran.certified(worked)
    }
}

impl Bound<'_> {
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
