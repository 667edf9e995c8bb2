//! Fits a streamed run into memory: finds a plan that fits the budget, and tries smaller plans if the system refuses
//! memory.
//!
//! The search is the same as on a GPU ([`guard`](crate::attention::guard)). A task is the smallest part by which a unit
//! can shrink. If a unit has several sequences, this part is one sequence. If it has one sequence but several heads,
//! the part is one head, or one group of heads that share a key head. If it has only one head, the part is one query
//! tile. If this makes too many tasks, a task consists of several such parts. Removing a task shrinks the unit. A finer
//! division halves first the segments per chunk, and then the task. After the finest division, the search tries fewer
//! workers and narrower tiles. Kernel, block and segment stay the same, so the bits of the output do not change.

use super::error::StreamError;
use super::memory::{StreamMemory, allocated};
use super::plan::{StreamOptions, StreamPlan};
use super::run::StreamReport;
use crate::attention::guard::{Attempt, Guard, Limits, MOST_TASKS, StreamFit};
use crate::cpu::limits::available_memory;
use crate::engine::Engine;
use crate::error::PlanError;
use crate::stream::{RowSink, RowSource};
use elsa_core::attention::Operand;
use elsa_core::attention::plan::{Part, StreamChoice, StreamOptions as Wanted};
use elsa_core::attention::{Lengths, Problem};
use elsa_core::plan::ChooseError;

/// A streamed run whose memory is allocated, created by [`Engine::fit_stream`].
#[derive(Debug)]
pub struct FittedStream {
    plan: StreamPlan,
    memory: StreamMemory,
    fit: StreamFit,
    /// `true` if a run has written measurements to this memory.
    measured: bool,
}

impl FittedStream {
    /// Returns the plan. Its division fits into the memory that the system granted.
    #[must_use]
    pub fn plan(&self) -> &StreamPlan {
        &self.plan
    }

    /// Returns the numbers of tasks that fit into memory, and the number of attempts for which memory was refused.
    #[must_use]
    pub fn fit(&self) -> StreamFit {
        self.fit
    }

    /// Runs like [`StreamPlan::run`], but uses the memory that has been allocated. If the plan certifies, each run after
    /// the first one allocates its memory again.
    ///
    /// # Errors
    /// Returns the errors of [`StreamPlan::run`]. Errors caused by refused memory are possible only in a repeated run
    /// of a plan that certifies.
    pub fn run(
        &mut self,
        lengths: &Lengths<'_>,
        source: &mut (impl RowSource<Operand> + Send),
        sink: &mut impl RowSink<Operand>,
        from: usize,
    ) -> Result<StreamReport, StreamError> {
        let measures = self.plan.choice().cpu.certify;
        if measures && std::mem::replace(&mut self.measured, true) {
            // The record in the old memory contains the measurements of earlier runs.
            self.memory = StreamMemory::new(&self.plan)?;
        }
        self.plan.run_in(&mut self.memory, lengths, source, sink, from)
    }
}

/// A search for a plan.
struct Search<'a> {
    engine: &'a Engine,
    problem: &'a Problem,
    wanted: Wanted,
    /// Initial number of query tiles per task.
    task: usize,
}

impl Engine {
    /// Plans like [`Engine::stream`], and allocates all memory of the run. If the system refuses memory, tries again
    /// with fewer resident rows, then with shorter chunks, fewer threads and narrower tiles. The bits of the output do
    /// not change. A resumed run ([`StreamOptions::sizes`]) must use the sizes of the run that it resumes, and fails if
    /// they do not fit.
    ///
    /// # Errors
    /// Returns the errors of [`Engine::stream`]. If the system refuses even the smallest plan, returns
    /// [`StreamError::Memory`] with the number of bytes that this plan needs.
    pub fn fit_stream(
        &self,
        problem: &Problem,
        options: &StreamOptions,
    ) -> Result<FittedStream, StreamError> {
        let wanted = self.wanted(problem, options)?;
        let plan = self.planned(problem, &wanted)?;
        let task = task_tiles(problem, plan.choice());
        Search { engine: self, problem, wanted, task }.run(plan)
    }
}

/// Returns the number of query tiles per task for units of the size that `choice` contains.
fn task_tiles(problem: &Problem, choice: &StreamChoice) -> usize {
    let StreamChoice { sequences, heads, tiles, .. } = *choice;
    let group = problem.group();
    let (least, count) = match (sequences, heads) {
        (2.., _) => (heads.saturating_mul(tiles), sequences),
        (_, heads) if heads > group => (group.saturating_mul(tiles), heads / group.max(1)),
        (_, 2..) => (tiles, heads),
        _ => (1, tiles),
    };
    least.saturating_mul(count.div_ceil(MOST_TASKS)).max(1)
}

impl Search<'_> {
    fn run(&self, first: StreamPlan) -> Result<FittedStream, StreamError> {
        let choice = *first.choice();
        let (tiles, segment) = (choice.cpu.resident.max(1), choice.cpu.segment.max(1));
        let limits = Limits { queries: tiles, unit: 1, tile: segment };
        let (tasks, splits) = (tiles.div_ceil(self.task), choice.chunk / segment);
        let mut guard = Guard::new(limits, self.task, tasks, segment, splits);
        let mut plan = first;
        while let Some(attempt) = guard.next() {
            match StreamMemory::new(&plan) {
                Ok(memory) => {
                    let more = if attempt.calibrates { self.more(&plan) } else { 0 };
                    if !guard.grant(more) {
                        return Ok(self.fitted(plan, memory, attempt.rows, guard.refused()));
                    }
                    // The memory of one task is freed before the memory of several tasks is allocated.
                    drop(memory);
                }
                Err(e @ StreamError::Memory { .. }) => {
                    log::debug!("{attempt:?}: {e}");
                    guard.refuse();
                    if self.wanted.sizes.is_some() {
                        return Err(e);
                    }
                }
                Err(e) => return Err(e),
            }
            if let Some(next) = guard.next() {
                plan = self.engine.planned(self.problem, &self.divided(&next, segment))?;
            }
        }
        self.smallest(plan, guard.refused())
    }

    /// Converts an attempt into a request for the planner.
    fn divided(&self, attempt: &Attempt, segment: usize) -> Wanted {
        Wanted { resident: attempt.resident(), segments: attempt.keys() / segment, ..self.wanted }
    }

    /// Returns the number of tasks for which there is memory in addition to the single task of `plan`. This number
    /// depends on the size of a task, and on the unused part of the budget and of the system's memory.
    fn more(&self, plan: &StreamPlan) -> usize {
        let account = plan.account();
        let shared = account.of(Part::Keys).saturating_add(account.of(Part::Workspace));
        let task = allocated(account).saturating_sub(shared);
        let within = self.wanted.limits.on_host().saturating_sub(account.host());
        let system = available_memory().map_or(usize::MAX, |available| available.bytes as usize);
        within.min(system).checked_div(task).unwrap_or(0)
    }

    /// Tries plans that are smaller than the plan of the finest division, one after another. Each plan is smaller than
    /// the plan before it.
    fn smallest(&self, mut plan: StreamPlan, mut refused: usize) -> Result<FittedStream, StreamError> {
        loop {
            let mut wanted = Wanted { resident: 1, segments: 1, ..self.wanted };
            wanted.limits.host = plan.account().host().saturating_sub(1);
            wanted.limits.device = None;
            plan = match self.engine.planned(self.problem, &wanted) {
                Ok(plan) => plan,
                Err(PlanError::Refused(ChooseError::HostBudget { .. })) => {
                    return Err(StreamError::Memory { bytes: allocated(plan.account()) });
                }
                Err(e) => return Err(e.into()),
            };
            match StreamMemory::new(&plan) {
                Ok(memory) => return Ok(self.fitted(plan, memory, 1, refused)),
                Err(StreamError::Memory { .. }) => refused += 1,
                Err(e) => return Err(e),
            }
        }
    }

    /// Returns the result of the search: `plan` with its memory, and with tasks of `rows` tiles.
    fn fitted(&self, plan: StreamPlan, memory: StreamMemory, rows: usize, refused: usize) -> FittedStream {
        let choice = plan.choice();
        let n_cap = choice.cpu.resident.div_ceil(rows.max(1));
        let fit = StreamFit {
            n_cap,
            n_parallel: choice.cpu.workers.min(n_cap),
            task_rows: plan.resident_rows().div_ceil(n_cap.max(1)),
            refused,
        };
        FittedStream { plan, memory, fit, measured: false }
    }
}
