//! What runs with an error budget, or by a schedule other than the exact one, left out.

use super::cpu::plan::{CpuPlan, CpuWorkspace};
use crate::error::CertifyError;
use elsa_core::attention::plan::Span;
use elsa_core::attention::traversal::{Report, Schedule, Shares, Tile};

/// What a run by a [`Schedule`] left out, and what it computed again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traversed<'a> {
    /// The schedule.
    pub schedule: Schedule,
    /// Query rows that decided together, but for the last ones of a sequence, and keys of a block.
    pub tile: Tile,
    /// The counts.
    pub report: Report,
    /// The shares `D / (S + D)` of the weights that the rows left out, in summary.
    pub shares: Shares,
    /// The sum `D` of every row, `[batch, heads, queries]`, in the units of
    /// [`StateOut::s`](elsa_core::attention::StateOut::s), with which it merges.
    pub d: &'a [f32],
    /// An upper bound of `D / (S + D)` of every row, `[batch, heads, queries]`; zero of rows that belong to no sequence.
    pub share: &'a [f32],
}

/// Where a run on the CPU left what it counted.
#[derive(Clone, Debug)]
pub struct Recorded {
    schedule: Schedule,
    tile: Tile,
    /// Counts of the first worker, and numbers from one worker to the next.
    counts: Span,
    stride: usize,
    workers: usize,
    left_out: Span,
}

impl Recorded {
    /// Of runs of `plan`; `None` if its schedule is the exact one.
    pub fn of(plan: &CpuPlan) -> Option<Recorded> {
        let (choice, layout) = (&plan.choice, &plan.layout);
        (!choice.schedule.is_exact()).then(|| Recorded {
            schedule: choice.schedule,
            tile: choice.decides(),
            counts: layout.counts,
            stride: layout.worker_stride,
            workers: choice.workers,
            left_out: layout.left_out,
        })
    }

    /// What the run left in its workspace.
    ///
    /// # Errors
    /// Returns an error if the memory is not that of the run.
    pub fn traversed<'w>(&self, workspace: &'w mut CpuWorkspace) -> Result<Traversed<'w>, CertifyError> {
        let mut report = Report::default();
        for worker in 0..self.workers {
            let start = self.counts.start + worker * self.stride;
            let counted = workspace.counted(Span { start, ..self.counts });
            report.add(&counted.ok_or(CertifyError::Exact)?);
        }
        let left_out = workspace.record(self.left_out).ok_or(CertifyError::Exact)?;
        let (d, share) = left_out.split_at(left_out.len() / 2);
        let rows = report.accepted + report.recomputed;
        let shares = Shares::of(share, rows);
        // In the order of the rows, whoever computed them.
        report.worst_share = shares.worst;
        report.share_sum = shares.mean * rows as f64;
        Ok(Traversed { schedule: self.schedule, tile: self.tile, report, shares, d, share })
    }
}
