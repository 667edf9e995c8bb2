//! Counts the keys skipped by runs with an error budget, or with a schedule other than the exact one.

use super::cpu::plan::CpuPlan;
use super::cuda::plan::GpuPlan;
use super::run_memory::RunMemory;
use crate::cpu::memory::Memory;
use crate::cuda::workspace::GpuWorkspace;
use crate::error::RunError;
use elsa_core::attention::traversal::{Schedule, Shares, TileSize, TraversalReport, share};
use elsa_core::room::Span;
use elsa_core::state::NaturalState;
use elsa_kernels::cuda::attention::WithinCounts;

/// Skipped keys and recomputed rows of a run with an error budget, or with a schedule other than the exact one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traversed<'a> {
    /// The schedule of the run.
    pub schedule: Schedule,
    /// Size of the tiles whose rows decide together whether to skip a key block: number of query rows (the last tile of
    /// a sequence may have fewer), and number of keys per block.
    pub tile: TileSize,
    /// Counters of the run.
    pub report: TraversalReport,
    /// `true` if the run counted how often a reference moved, and how often the schedule needed a row's largest score
    /// in a block. A GPU does not count these events: the two counts in `report` are then zero.
    pub counts_moves: bool,
    /// Summary, over all rows, of `D / (S + D)`: the share of a row's weights that was skipped.
    pub shares: Shares,
    /// The sum `D` of skipped weights for every row, `[batch, heads, queries]`, in the units of
    /// [`StateOut::s`](elsa_core::attention::StateOut::s). It merges in the same way as `S`.
    pub d: &'a [f32],
    /// Upper bound of `D / (S + D)` for every row, `[batch, heads, queries]`. The bound is zero for rows that belong to
    /// no sequence.
    pub share: &'a [f32],
}

/// Location of the counters of a run with a schedule other than the exact one.
#[derive(Clone, Debug)]
pub struct Recorded {
    schedule: Schedule,
    tile: TileSize,
    at: At,
}

/// Location of counters in a workspace.
#[derive(Clone, Debug)]
enum At {
    /// In a CPU workspace. `counts` is the span of the first worker's counters, and `stride` is the distance in f32
    /// values between the counters of consecutive workers.
    Cpu { counts: Span, stride: usize, workers: usize, left_out: Span },
    /// In a GPU workspace. From byte `start` on, the device memory contains the counters of `blocks` thread blocks,
    /// then the states of `rows` rows. A weight takes part in at most `into_s` of the additions that form its row's
    /// sum.
    Gpu { start: usize, blocks: usize, rows: usize, into_s: usize },
}

impl Recorded {
    /// Returns the location of the counters for runs of `plan`; `None` if the plan has the exact schedule.
    pub fn of_cpu(plan: &CpuPlan) -> Option<Recorded> {
        let (choice, layout) = (&plan.choice, &plan.layout);
        (!choice.schedule.is_exact()).then(|| Recorded {
            schedule: choice.schedule,
            tile: choice.decides(),
            at: At::Cpu {
                counts: layout.counts,
                stride: layout.worker_stride,
                workers: choice.workers,
                left_out: layout.left_out,
            },
        })
    }

    /// Returns the location of the counters for runs of `plan`; `None` if the plan has no error budget.
    pub fn of_gpu(plan: &GpuPlan) -> Option<Recorded> {
        let choice = &plan.choice;
        choice.error_budget.map(|budget| Recorded {
            schedule: Schedule::within(budget),
            tile: TileSize { rows: choice.kernel.rows, keys: choice.kernel.keys },
            at: At::Gpu {
                start: plan.layout.left_out.start,
                blocks: choice.counting,
                rows: choice.rows,
                into_s: choice.longest_path(true).into_s,
            },
        })
    }

    /// Returns `true` if the run was on a GPU.
    pub fn on_gpu(&self) -> bool {
        matches!(self.at, At::Gpu { .. })
    }

    /// Reads the counters that the run left in its memory. Waits if the run is still pending on a GPU.
    ///
    /// # Errors
    /// Returns an error if the memory does not belong to the run, or if the device fails.
    pub fn traversed<'w>(&self, memory: RunMemory<'w>) -> Result<Traversed<'w>, RunError> {
        let (mut report, d, share) = match (&self.at, memory) {
            (&At::Cpu { counts, stride, workers, left_out }, RunMemory::Cpu(memory)) => {
                let mut report = TraversalReport::default();
                for worker in 0..workers {
                    let start = counts.start + worker * stride;
                    report.add(&counted(memory, Span { start, ..counts }).ok_or(RunError::Exact)?);
                }
                let left_out = memory.record(left_out).ok_or(RunError::Exact)?;
                let (d, share) = left_out.split_at(left_out.len() / 2);
                (report, d, share)
            }
            (&At::Gpu { start, blocks, rows, into_s }, RunMemory::Gpu(workspace)) => {
                on_gpu(workspace, start, blocks, rows, into_s)?
            }
            _ => return Err(RunError::Exact),
        };
        let rows = report.accepted + report.recomputed;
        let shares = Shares::of(share, rows);
        // These are computed in the order of the rows, so they do not depend on which worker computed a row.
        report.worst_share = shares.worst;
        report.share_sum = shares.mean * rows as f64;
        let Recorded { schedule, tile, .. } = *self;
        Ok(Traversed { schedule, tile, report, counts_moves: !self.on_gpu(), shares, d, share })
    }
}

/// Reads the counters of a worker at `span`; `None` if the memory does not contain the span.
fn counted(memory: &mut Memory, span: Span) -> Option<TraversalReport> {
    let counts = memory.record(span)?;
    let fits = size_of_val(counts) >= size_of::<TraversalReport>()
        && counts.as_ptr().cast::<TraversalReport>().is_aligned();
    // SAFETY: the values have the size and the alignment of a report, for which any bits are valid.
    fits.then(|| unsafe { counts.as_ptr().cast::<TraversalReport>().read() })
}

/// Reads the counters at [`At::Gpu`]: the report, and the skipped sum and the skipped share of each row.
fn on_gpu(
    workspace: &mut GpuWorkspace,
    start: usize,
    blocks: usize,
    rows: usize,
    into_s: usize,
) -> Result<(TraversalReport, &[f32], &[f32]), RunError> {
    const WORDS: usize = size_of::<WithinCounts>() / size_of::<f32>();
    let counted = blocks * WORDS;
    let found = workspace.fetch(start, counted + 3 * rows)?;
    let (counts, finished) = found.split_at_mut(counted);
    let mut report = TraversalReport { accepted: rows as u64, ..TraversalReport::default() };
    for block in counts.chunks_exact(WORDS) {
        let [met, skipped, rows] = [0, 1, 2].map(|at| u64::from(block[at].to_bits()));
        report.blocks += met;
        report.skipped_blocks += skipped;
        report.row_blocks += met * rows;
        report.skipped_row_blocks += skipped * rows;
    }
    // The loop overwrites each reference with the row's skipped share, and converts the skipped sum to natural units.
    let (m, rest) = finished.split_at_mut(rows);
    let (s, d) = rest.split_at_mut(rows);
    for ((m, s), d) in m.iter_mut().zip(s).zip(&mut *d) {
        // A NaN poisons a row regardless of its skipped weights.
        let lost = if s.is_nan() { 0.0 } else { *d };
        let natural = NaturalState::of(*m, *s, 1.0, false);
        *d = if lost == 0.0 { 0.0 } else { natural.w(lost) };
        *m = if lost == 0.0 { 0.0 } else { (share(*s, lost, into_s) as f32).next_up().min(1.0) };
    }
    Ok((report, &*d, &*m))
}
