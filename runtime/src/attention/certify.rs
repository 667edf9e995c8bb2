//! Certificates of runs. A certificate is derived from the workspace's record of its last run and from the measurements
//! of that run.

use super::refusals::{Refusals, RefusedBlocks};
use super::run_memory::RunMemory;
use super::traversed::{Recorded, Traversed};
use crate::cuda::workspace::GpuWorkspace;
use crate::error::{DeviceError, RunError};
use elsa_core::attention::Problem;
use elsa_core::attention::certificate::Certificate;
use elsa_core::attention::measured::{Flags, MEASURED, Measured, larger};
use elsa_core::attention::run_certificate::RunCertificate;
use elsa_core::room::Span;

/// Location of the records in which a run leaves its measurements.
#[derive(Clone, Copy, Debug)]
pub enum Records {
    /// One record, in the memory of the CPU's workspace.
    Cpu(Span),
    /// Records in the memory of the GPU's workspace: offset in bytes, number of records, and distance from one record
    /// to the next in f32 values.
    Gpu { at: usize, count: usize, stride: usize },
}

/// Record of the last run in a workspace. The record is kept if the plan of the run certifies, has a schedule other than
/// the exact one, or is on Tensor Cores.
#[derive(Clone, Debug)]
pub struct RunRecord {
    problem: Problem,
    certificate: Certificate,
    records: Option<Records>,
    recorded: Option<Recorded>,
    refusals: Option<Refusals>,
    fallback: bool,
}

impl RunRecord {
    /// Creates the record of a run of `problem`. `certificate` describes the execution of the run.
    pub fn new(
        problem: &Problem,
        certificate: Certificate,
        records: Option<Records>,
        recorded: Option<Recorded>,
        fallback: bool,
    ) -> RunRecord {
        RunRecord { problem: *problem, certificate, records, recorded, refusals: None, fallback }
    }

    /// Adds the location of the words of a run on Tensor Cores.
    pub fn refusing(self, refusals: Option<Refusals>) -> RunRecord {
        RunRecord { refusals, ..self }
    }

    /// Counts the blocks of rows that the run refused on Tensor Cores; `None` if it was not on Tensor Cores. Waits if the
    /// run is still pending.
    ///
    /// # Errors
    /// Returns the errors of [`Refusals::count`], and an error if there is no memory.
    pub fn refused_blocks(&self, memory: Option<RunMemory<'_>>) -> Result<Option<RefusedBlocks>, RunError> {
        let count = |refusals: Refusals| refusals.count(memory.ok_or(RunError::NoRun)?);
        self.refusals.map(count).transpose()
    }

    /// Reads the counters of the run from its memory. The schedule of the run must differ from the exact one.
    ///
    /// # Errors
    /// Returns an error if there are no counters, if the memory does not belong to the run, or if the device fails.
    pub fn traversed<'w>(&self, memory: Option<RunMemory<'w>>) -> Result<Traversed<'w>, RunError> {
        let (recorded, memory) = self.recorded.as_ref().zip(memory).ok_or(RunError::Exact)?;
        recorded.traversed(memory)
    }

    /// Returns `true` if the run was on a GPU.
    pub fn on_gpu(&self) -> bool {
        self.refusals.is_some()
            || matches!(self.records, Some(Records::Gpu { .. }))
            || self.recorded.as_ref().is_some_and(Recorded::on_gpu)
    }

    /// Returns the certificate of the run. The measurements of the run are in `memory`. Waits if the run is still
    /// pending on a GPU.
    ///
    /// # Errors
    /// Returns an error if the device fails, or if the memory does not belong to the run.
    pub fn certificate<'w>(&self, mut memory: RunMemory<'w>) -> Result<RunCertificate<'w>, RunError> {
        let traversed = match (&self.records, &self.recorded) {
            (Some(_), Some(recorded)) => {
                let Traversed { schedule, report, shares, .. } = recorded.traversed(memory.again())?;
                Some((schedule, report, shares))
            }
            _ => None,
        };
        let record = match (self.records, memory) {
            (Some(Records::Cpu(span)), RunMemory::Cpu(workspace)) => workspace.record(span),
            (Some(Records::Gpu { at, count, stride }), RunMemory::Gpu(workspace)) => {
                Some(joined(workspace, at, count, stride)?)
            }
            _ => None,
        };
        let certificate =
            record.and_then(|record| certificate(&self.problem, self.certificate, record, self.fallback));
        let certificate = certificate.ok_or(RunError::NoRun)?;
        Ok(match traversed {
            Some((schedule, report, shares)) => {
                certificate.traversed(&self.problem, &schedule, &report, &shares)
            }
            None => certificate,
        })
    }
}

/// Merges `count` measurement records into one. The first record starts at byte offset `at`, and each record is
/// `stride` values long.
fn joined(
    workspace: &mut GpuWorkspace,
    at: usize,
    count: usize,
    stride: usize,
) -> Result<&[f32], DeviceError> {
    let records = workspace.fetch(at, count.saturating_mul(stride))?;
    let (first, rest) = records.split_at_mut(stride.min(records.len()));
    for record in rest.chunks_exact(stride) {
        first.iter_mut().zip(record).for_each(|(a, b)| *a = larger(*a, *b));
    }
    Ok(first)
}

/// Returns the certificate of a run that left `record`; `None` if `record` is too short.
pub(super) fn certificate<'r>(
    problem: &Problem,
    certificate: Certificate,
    record: &'r [f32],
    fallback: bool,
) -> Option<RunCertificate<'r>> {
    let (first, channels) = record.split_first_chunk::<MEASURED>()?;
    let channels = channels.get(..problem.value_dim()).unwrap_or(channels);
    let mut measured = Measured::of(problem, first, channels);
    measured.flags = measured.flags.with(Flags::FALLBACK, fallback);
    Some(RunCertificate::new(problem, certificate, measured, channels))
}
