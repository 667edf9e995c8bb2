//! Counts the keys skipped by runs with an error budget, or with a schedule other than the exact one.

use super::cpu::plan::CpuPlan;
use super::cuda::plan::GpuPlan;
use super::run_memory::RunMemory;
use crate::cpu::memory::Memory;
use crate::cuda::workspace::GpuWorkspace;
use crate::error::RunError;
use elsa_core::attention::traversal::{Report, Schedule, Shares, Tile, share};
use elsa_core::room::Span;
use elsa_core::state::NaturalState;
use elsa_kernels::cuda::attention::WithinCounts;

/// Skipped keys and recomputed rows of a run with a [`Schedule`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traversed<'a> {
    /// The schedule of the run.
    pub schedule: Schedule,
    /// Size of the tiles whose rows decide together: query rows (the last tile of a sequence may have fewer) and keys
    /// per block.
    pub tile: Tile,
    /// Counters of the run.
    pub report: Report,
    /// `true` if the report counts how often a reference moved and how often the schedule needed a row's largest score
    /// in a block. A GPU does not count them, and reports zeros.
    pub counts_moves: bool,
    /// Summary, over all rows, of `D / (S + D)`: the share of a row's weights that was skipped.
    pub shares: Shares,
    /// The sum `D` of skipped weights for every row, `[batch, heads, queries]`, in the units of
    /// [`StateOut::s`](elsa_core::attention::StateOut::s). It merges in the same way as `S`.
    pub d: &'a [f32],
    /// Upper bound of `D / (S + D)` for every row, `[batch, heads, queries]`; zero for rows that belong to no sequence.
    pub share: &'a [f32],
}

/// Location of the counters of a run.
#[derive(Clone, Debug)]
pub enum Recorded {
    /// Counters in the memory of the CPU's workspace.
    Cpu(OnCpu),
    /// Counters in the memory of the GPU's workspace.
    Gpu(OnGpu),
}

/// Location of the counters of a run on the CPU.
#[derive(Clone, Debug)]
pub struct OnCpu {
    schedule: Schedule,
    tile: Tile,
    /// Counters of the first worker. `stride` is the distance to the counters of the next worker, in f32 values.
    counts: Span,
    stride: usize,
    workers: usize,
    left_out: Span,
}

/// Location of the counters of a run on a GPU.
#[derive(Clone, Debug)]
pub struct OnGpu {
    schedule: Schedule,
    tile: Tile,
    /// Offset of the counters in the workspace, in bytes.
    at: usize,
    /// Number of thread blocks that write counters.
    blocks: usize,
    rows: usize,
    /// Largest number of additions between a weight and a sum.
    into_s: usize,
}

impl Recorded {
    /// Returns the location of the counters for runs of `plan`; `None` if the plan has the exact schedule.
    pub fn of_cpu(plan: &CpuPlan) -> Option<Recorded> {
        let (choice, layout) = (&plan.choice, &plan.layout);
        (!choice.schedule.is_exact()).then(|| {
            Recorded::Cpu(OnCpu {
                schedule: choice.schedule,
                tile: choice.decides(),
                counts: layout.counts,
                stride: layout.worker_stride,
                workers: choice.workers,
                left_out: layout.left_out,
            })
        })
    }

    /// Returns the location of the counters for runs of `plan`; `None` if the plan has no error budget.
    pub fn of_gpu(plan: &GpuPlan) -> Option<Recorded> {
        let choice = &plan.choice;
        choice.error_budget.map(|budget| {
            Recorded::Gpu(OnGpu {
                schedule: Schedule::within(budget),
                tile: Tile { rows: choice.kernel.rows, keys: choice.kernel.keys },
                at: plan.layout.left_out.start,
                blocks: choice.counting,
                rows: choice.rows,
                into_s: choice.longest_path(true).into_s,
            })
        })
    }

    /// Reads the counters that the run left in its memory. Waits if the run is still pending on a GPU.
    ///
    /// # Errors
    /// Returns an error if the memory does not belong to the run, or if the device fails.
    pub fn traversed<'w>(&self, memory: RunMemory<'w>) -> Result<Traversed<'w>, RunError> {
        match (self, memory) {
            (Recorded::Cpu(on), RunMemory::Cpu(workspace)) => on.traversed(workspace),
            (Recorded::Gpu(on), RunMemory::Gpu(workspace)) => on.traversed(workspace),
            _ => Err(RunError::Exact),
        }
    }
}

/// Reads the counters of a worker at `span`; `None` if the memory does not contain the span.
fn counted(memory: &mut Memory, span: Span) -> Option<Report> {
    let counts = memory.record(span)?;
    let fits = size_of_val(counts) >= size_of::<Report>() && counts.as_ptr().cast::<Report>().is_aligned();
    // SAFETY: the values have the size and the alignment of a report, for which any bits are valid.
    fits.then(|| unsafe { counts.as_ptr().cast::<Report>().read() })
}

impl OnCpu {
    fn traversed<'w>(&self, memory: &'w mut Memory) -> Result<Traversed<'w>, RunError> {
        let mut report = Report::default();
        for worker in 0..self.workers {
            let start = self.counts.start + worker * self.stride;
            let counted = counted(memory, Span { start, ..self.counts });
            report.add(&counted.ok_or(RunError::Exact)?);
        }
        let left_out = memory.record(self.left_out).ok_or(RunError::Exact)?;
        let (d, share) = left_out.split_at(left_out.len() / 2);
        Ok(traversed(self.schedule, self.tile, report, d, share, true))
    }
}

impl OnGpu {
    fn traversed<'w>(&self, workspace: &'w mut GpuWorkspace) -> Result<Traversed<'w>, RunError> {
        const WORDS: usize = size_of::<WithinCounts>() / size_of::<f32>();
        let counted = self.blocks * WORDS;
        let found = workspace.fetch(self.at, counted + 3 * self.rows)?;
        let (counts, finished) = found.split_at_mut(counted);
        let mut report = Report { accepted: self.rows as u64, ..Report::default() };
        for block in counts.chunks_exact(WORDS) {
            let [met, skipped, rows] = [0, 1, 2].map(|at| u64::from(block[at].to_bits()));
            report.blocks += met;
            report.skipped_blocks += skipped;
            report.row_blocks += met * rows;
            report.skipped_row_blocks += skipped * rows;
        }
        // The loop overwrites each reference with the row's skipped share, and converts the skipped sum to natural
        // units.
        let (m, rest) = finished.split_at_mut(self.rows);
        let (s, d) = rest.split_at_mut(self.rows);
        for ((m, s), d) in m.iter_mut().zip(s).zip(&mut *d) {
            // A NaN poisons a row regardless of its skipped weights.
            let lost = if s.is_nan() { 0.0 } else { *d };
            let natural = NaturalState::of(*m, *s, 1.0, false);
            *d = if lost == 0.0 { 0.0 } else { natural.w(lost) };
            *m = if lost == 0.0 { 0.0 } else { (share(*s, lost, self.into_s) as f32).next_up().min(1.0) };
        }
        Ok(traversed(self.schedule, self.tile, report, d, m, false))
    }
}

/// Summarises the skipped shares of all rows.
fn traversed<'w>(
    schedule: Schedule,
    tile: Tile,
    mut report: Report,
    d: &'w [f32],
    share: &'w [f32],
    counts_moves: bool,
) -> Traversed<'w> {
    let rows = report.accepted + report.recomputed;
    let shares = Shares::of(share, rows);
    // These are computed in the order of the rows, so they do not depend on which worker computed a row.
    report.worst_share = shares.worst;
    report.share_sum = shares.mean * rows as f64;
    Traversed { schedule, tile, report, counts_moves, shares, d, share }
}
