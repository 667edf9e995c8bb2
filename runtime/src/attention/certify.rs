//! Certificates of runs: what a workspace remembers of its last run, and what that run measured.

use super::cpu::plan::CpuWorkspace;
use super::cuda::workspace::GpuWorkspace;
use super::plan::{Memory, Plan, Workspace};
use crate::backend::Backend;
use crate::error::CertifyError;
use elsa_core::attention::Problem;
use elsa_core::attention::certificate::Certificate;
use elsa_core::attention::certified::Certified;
use elsa_core::attention::measured::{Flags, MEASURED, Measured};
use elsa_core::attention::plan::Span;

/// Where the records of a run are.
#[derive(Clone, Copy, Debug)]
pub(super) enum Records {
    /// One, in the memory of the CPU's workspace.
    Cpu(Span),
    /// In the memory of the GPU's workspace: offset in bytes, how many, and f32 values from one to the next.
    Gpu { at: usize, count: usize, stride: usize },
}

/// The last run in a workspace, if its plan certifies.
#[derive(Clone, Debug)]
pub(super) struct Ran {
    problem: Problem,
    certificate: Certificate,
    records: Records,
    fallback: bool,
}

/// The memory that a run worked in.
pub(super) enum Worked<'w> {
    Cpu(&'w mut CpuWorkspace),
    Gpu(&'w mut GpuWorkspace),
}

impl Plan {
    /// What a workspace remembers of a run of this plan on `backend`; `None` if the plan does not certify. States pass through
    /// memory, which makes no path of additions longer, so that one certificate serves runs with and without them.
    pub(super) fn ran(&self, backend: Backend, fallback: bool) -> Option<Ran> {
        let records = self.records(backend)?;
        let certificate = self.certificate_of(backend);
        Some(Ran { problem: self.problem, certificate, records, fallback })
    }

    /// Where runs on `backend` keep their records.
    fn records(&self, backend: Backend) -> Option<Records> {
        match backend {
            Backend::Cpu(_) => {
                let cpu = self.execution.cpu().filter(|cpu| cpu.choice.certify)?;
                Some(Records::Cpu(cpu.layout.measured))
            }
            Backend::Cuda => {
                let gpu = self.execution.gpu()?;
                let (count, stride) = (gpu.choice.records, gpu.choice.record_stride());
                (count > 0).then_some(Records::Gpu { at: gpu.layout.records.start, count, stride })
            }
        }
    }
}

impl Ran {
    /// Whether a GPU ran.
    pub fn on_gpu(&self) -> bool {
        matches!(self.records, Records::Gpu { .. })
    }

    /// The certificate of the run, whose records lie in `worked`. Waits for the run, if it is pending on a GPU.
    ///
    /// # Errors
    /// Returns an error if the device fails, or if the memory is not that of the run.
    pub fn certified<'w>(&self, worked: Worked<'w>) -> Result<Certified<'w>, CertifyError> {
        let record = match (self.records, worked) {
            (Records::Cpu(span), Worked::Cpu(workspace)) => workspace.record(span),
            (Records::Gpu { at, count, stride }, Worked::Gpu(workspace)) => {
                Some(workspace.fetch_records(at, count, stride)?)
            }
            _ => None,
        };
        let record = record.and_then(|record| record.split_first_chunk::<MEASURED>());
        let (first, channels) = record.ok_or(CertifyError::NoRun)?;
        let channels = channels.get(..self.problem.value_dim()).unwrap_or(channels);
        let mut measured = Measured::of(&self.problem, first, channels);
        measured.flags = measured.flags.with(Flags::FALLBACK, self.fallback);
        Ok(Certified::new(&self.problem, self.certificate, measured, channels))
    }
}

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
        let worked = match (&mut self.memory, ran.records) {
            (Memory::Cpu(cpu) | Memory::Gpu { standby: Some(cpu), .. }, Records::Cpu(_)) => Worked::Cpu(cpu),
            (Memory::Gpu { gpu: Ok(gpu), .. }, Records::Gpu { .. }) => Worked::Gpu(gpu),
            _ => return Err(CertifyError::NoRun),
        };
        ran.certified(worked)
    }
}
