//! Computes a task of a division: attention over the pairs of queries and keys that the task owns, with states as
//! results.
//!
//! # The formula
//!
//! For every query of the task, the result is the state `(m, S, W)` over the keys that the task pairs with it
//! ([`Task::keys_of`]). The rules of the problem apply: causality, windows, lengths and masks refer to the positions of
//! tokens in the original sequence. The states of all tasks of a tree merge into those of the complete problem
//! ([`TaskMerge`]).
//!
//! # The loop
//!
//! ```text
//! for each query run
//!     for each range of keys that is paired with the run, if a query of the run attends one of them
//!         compute the states of the run over the range       one call of a plan, all batches and heads
//!         push them onto the merge tree                      elsa_core::scan::stack
//!     the root of the tree is the state of the run's rows
//! ```
//!
//! A call has the [`Chunk`] of its query run and key range. Two kinds of tiles are not computed: those that the task
//! does not own, and those that causality, windows or lengths exclude completely. The paper adds `exp` without
//! subtracting a maximum, or recomputes its denominator as `exp(lse)`. Both overflow f32 for scores of 88.7 or more.
//! Here every state has its own maximum.
//!
//! Everything is allocated when the plan is made: plans and one workspace, states for each level of the deepest tree,
//! and room for the largest tile of a mask.

mod backward;
mod calls;
mod gradients;
mod mask;
mod merge;
mod states;

pub use backward::{BackwardTaskPlan, BackwardTaskReport};
pub use calls::TaskTokens;
pub use gradients::{GradientMerge, GradientSizes, TaskGradients};
pub use merge::TaskMerge;
pub use states::RowStates;

use super::operator::{Plan, Workspace};
use super::options::PlanOptions;
use crate::backend::Backend;
use crate::cpu::pool::Crew;
use crate::engine::Engine;
use crate::error::{PlanError, RunError};
use crate::report::Reason;
use calls::{Calls, push};
use elsa_core::argument::ArgumentError;
use elsa_core::attention::{Inputs, Outputs, Problem, StateOut};
use elsa_core::quorum::{Division, Run, Task, TaskPath};
use elsa_core::scan::stack::MergeStack;
use states::{of_rows, spread};

/// A plan for a task: every decision that does not depend on data, and all memory that runs need.
///
/// ```
/// # use elsa_core::{attention::{Inputs, Spec, StateOut}, dtype::DType, quorum::Division, view::View};
/// # use elsa_runtime::{Engine, EngineOptions, PlanOptions, RowStates, TaskMerge, TaskPlan, TaskTokens};
/// let view = View::bhnd("q", [1, 1, 21, 4])?;
/// let problem = Spec::new(DType::F32, view, view, view, view).check()?;
/// let x = vec![0.5f32; view.count()];
/// let (engine, options) = (Engine::new(&EngineOptions::default())?, PlanOptions::default());
///
/// let division = Division::new(&[7])?;
/// let mut merge = TaskMerge::new(1, 21, 4, 7)?;
/// for number in 0..division.tasks() { // each task could run on another board
///     let path = division.path(number)?;
///     let mut task = TaskPlan::new(&engine, &problem, &division, &path, TaskTokens::Whole, &options)?;
///     let mut states = RowStates::empty(task.task().query_tokens(), 4)?;
///     let out = StateOut { m: &mut states.m, s: &mut states.s, w: &mut states.w };
///     task.run(&Inputs::new(&x[..], &x[..], &x[..]), out)?;
///     merge.push(task.task().queries(), &states)?;
/// }
/// let mut y = vec![0.0f32; view.count()];
/// merge.finish().output(&view, &mut (&mut y[..]).into());
/// assert!((y[0] - 0.5).abs() < 1e-6);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TaskPlan {
    calls: Calls,
    /// The plans of the calls, one for each shape.
    plans: Vec<Plan>,
    workspace: Option<Workspace>,
    slots: Vec<RowStates>,
}

/// Report of a task's run.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskReport {
    /// Number of executed calls, each of which is a run of one of the plans.
    pub calls: usize,
    /// Number of calls that were not executed, because causality, windows or lengths exclude all their query-key pairs.
    pub skipped: usize,
    /// Number of query-key pairs per head that the task owns.
    pub pairs: u128,
    /// Back end of the last call; the plan's back end if no call was made.
    pub backend: Option<Backend>,
    /// Name of the attention kernel on that back end.
    pub kernel: Option<&'static str>,
    /// Number of bytes copied between host and GPU.
    pub copied: usize,
    /// Reason for the first fallback from GPU to CPU; `None` if there was no fallback.
    pub fallback: Option<Reason>,
}

impl TaskPlan {
    /// Plans the task at `path` in `division`. `held` specifies which tokens the problem's tensors contain. Key lengths
    /// refer to the complete sequences.
    ///
    /// # Errors
    /// Returns an error if `division` does not have the path, if the tensors do not have the task's tokens, if the
    /// problem has features that tasks do not support (a past, a present, packed sequences, windows of a picture, a
    /// bias), if the options have an error budget or a schedule other than the exact one (the states of these runs
    /// contain one more sum), if a plan cannot be made, or if memory is not available.
    pub fn new(
        engine: &Engine,
        problem: &Problem,
        division: &Division,
        path: &TaskPath,
        held: TaskTokens,
        options: &PlanOptions,
    ) -> Result<TaskPlan, PlanError> {
        if !options.traversal()?.is_exact() {
            let argument = if options.error_budget.is_some() { "error_budget" } else { "schedule" };
            return Err(ArgumentError::Conflict { argument, other: "a task" }.into());
        }
        let calls = Calls::new(problem, division, path, held)?;
        let mut plan = TaskPlan { calls, plans: Vec::new(), workspace: None, slots: Vec::new() };
        plan.prepare(engine, options)?;
        Ok(plan)
    }

    /// Creates the plans of all calls, the workspace and the slots for states.
    fn prepare(&mut self, engine: &Engine, options: &PlanOptions) -> Result<(), PlanError> {
        for problem in self.calls.shapes() {
            push(&mut self.plans, engine.plan(problem, options)?)?;
        }
        if !self.plans.is_empty() {
            let plans: Vec<&Plan> = self.plans.iter().collect();
            self.workspace = Some(Workspace::shared(&plans)?);
        }
        let runs = || self.calls.runs().iter().filter(|(_, calls)| !calls.is_empty());
        let most_rows = runs().map(|(queries, _)| queries.tokens).max().unwrap_or(0);
        let most_slots = runs().map(|(_, calls)| MergeStack::capacity(calls.len())).max().unwrap_or(0);
        let problem = self.problem();
        let rows = problem.spec().query.batch() * problem.heads() * most_rows;
        for _ in 0..most_slots {
            self.slots.push(RowStates::empty(rows, self.problem().value_dim())?);
        }
        Ok(())
    }

    /// Returns the problem of the task's tensors.
    #[must_use]
    pub fn problem(&self) -> &Problem {
        self.calls.problem()
    }

    /// Returns the task, which contains its runs of queries and keys and states which runs are paired.
    #[must_use]
    pub fn task(&self) -> &Task {
        self.calls.task()
    }

    /// Returns the plans of the calls, one for each shape.
    #[must_use]
    pub fn plans(&self) -> &[Plan] {
        &self.plans
    }

    /// Returns the numbers of query and key tokens in the complete problem.
    #[must_use]
    pub const fn totals(&self) -> [usize; 2] {
        self.calls.totals()
    }

    /// Returns the size of the workspace in bytes.
    #[must_use]
    pub fn workspace_bytes(&self) -> usize {
        self.plans.iter().map(Plan::state_workspace_bytes).max().unwrap_or(0)
    }

    /// Computes the states of the task's queries and writes them to `states`, with the queries in the task's order. The
    /// shape of `m` and `S` is `[batch, heads, queries]`, and that of `W` is `[batch, heads, queries, d_v]`. Makes no
    /// allocation whose size grows with the tensors. The bits depend neither on the number of threads nor on other
    /// tokens in the tensors.
    ///
    /// # Errors
    /// Returns an error and writes nothing if the data do not match the problem. If a run fails or is cancelled
    /// ([`Engine::cancel`]), returns an error and leaves the states incomplete.
    pub fn run(&mut self, inputs: &Inputs<'_>, states: StateOut<'_>) -> Result<TaskReport, RunError> {
        Inputs { lengths: self.calls.lengths(inputs.lengths), ..*inputs }.check(self.problem())?;
        let found = [states.m.len(), states.s.len(), states.w.len()];
        of_rows(found, self.rows(), self.problem().value_dim(), "the task")?;
        states.m.fill(f32::NEG_INFINITY);
        states.s.fill(0.0);
        states.w.fill(0.0);
        let mut report = TaskReport {
            calls: 0,
            skipped: 0,
            pairs: self.task().pair_count(),
            backend: self.plans.first().map(Plan::backend),
            kernel: self.plans.first().map(Plan::kernel),
            copied: 0,
            fallback: None,
        };
        let Some(engine) = self.plans.first().map(|plan| plan.engine.clone()) else { return Ok(report) };
        let crew = engine.pool().begin();
        for run in 0..self.calls.runs().len() {
            self.run_queries(run, inputs, &crew, &mut report)?;
            let (span, calls) = &self.calls.runs()[run];
            let Some(root) = self.slots.first().filter(|_| !calls.is_empty()) else { continue };
            root.scatter(*span, self.task().query_tokens(), (&mut *states.m, &mut *states.s, &mut *states.w));
        }
        Ok(report)
    }

    /// Copies states of the task's queries to their rows in the states of the complete problem, `[batch, heads, queries]`.
    /// All other rows become empty, which is neutral in a merge. `states` are `[m, S, W]` in the layout of
    /// [`TaskPlan::run`].
    ///
    /// # Errors
    /// Returns an error and writes nothing if an array does not have the number of elements of its rows.
    pub fn spread(&self, states: [&[f32]; 3], whole: StateOut<'_>) -> Result<(), ArgumentError> {
        let (dim, tokens) = (self.problem().value_dim(), self.totals()[0]);
        let sequences = self.problem().spec().query.batch() * self.problem().heads();
        of_rows(states.map(<[f32]>::len), self.rows(), dim, "the task")?;
        let found = [whole.m.len(), whole.s.len(), whole.w.len()];
        of_rows(found, sequences.saturating_mul(tokens), dim, "the complete problem")?;
        spread(self.task().queries().iter().map(Run::span), [sequences, tokens, dim], states, whole);
        Ok(())
    }

    /// Returns the number of rows of the task: batch × heads × queries.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.problem().spec().query.batch() * self.problem().heads() * self.task().query_tokens()
    }

    /// Computes the states of a query run and writes them to the first slot.
    fn run_queries(
        &mut self,
        run: usize,
        inputs: &Inputs<'_>,
        crew: &Crew<'_>,
        report: &mut TaskReport,
    ) -> Result<(), RunError> {
        let (queries, count) = (self.calls.runs()[run].0, self.calls.runs()[run].1.len());
        let rows = self.problem().spec().query.batch() * self.problem().heads() * queries.tokens;
        let slots = &mut self.slots;
        let mut stack = MergeStack::default();
        for number in 0..count {
            crew.check()?;
            let call = self.calls.runs()[run].1[number];
            let plan = &self.plans[call.shape];
            let Some(inputs) = self.calls.inputs(inputs, &queries, call) else {
                report.skipped += 1;
                continue;
            };
            let slot = stack.push(number, |slot| merge(slots, slot, rows));
            let (Some(states), Some(workspace)) = (slots.get_mut(slot), &mut self.workspace) else {
                continue;
            };
            let done = plan.run(inputs, Outputs::states(states.first(rows)), workspace)?;
            report.calls += 1;
            (report.backend, report.kernel) = (Some(done.backend), Some(plan.kernel_of(done.backend)));
            report.copied += done.copied;
            report.fallback = report.fallback.take().or(done.fallback);
        }
        if !stack.finish(|slot| merge(slots, slot, rows))
            && let Some(root) = slots.first_mut()
        {
            root.clear();
        }
        Ok(())
    }
}

/// Merges the first `rows` rows of slot `slot + 1` into slot `slot`.
fn merge(slots: &mut [RowStates], slot: usize, rows: usize) {
    if let Some([earlier, later]) = slots.get_mut(slot..slot + 2) {
        earlier.merge(later, rows);
    }
}
