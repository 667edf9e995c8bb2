//! A task of a division: attention over the pairs of queries and keys that it owns, as states.
//!
//! # The formula
//!
//! For every query of the task the state `(m, S, W)` over the keys that it meets there ([`Task::keys_of`]), after the
//! problem's own rules: causality, windows, lengths and masks hold by the places of tokens in the original sequence. The
//! states of all tasks of a tree merge into those of the whole ([`TaskMerge`]).
//!
//! # The loop
//!
//! ```text
//! for each query run
//!     for each range of keys that it meets, and of which it attends some
//!         compute the states of the run over the range       one call of a plan, all batches and heads
//!         push them onto the merge tree                      elsa_core::scan::stack
//!     the root of the tree is the state of the run's rows
//! ```
//!
//! A call has the [`Chunk`] of its query run and key range. Tiles that the task does not own are never called, nor those that
//! causality, windows or lengths exclude as a whole. The paper adds `exp` without a maximum, or rebuilds its denominator as
//! `exp(lse)`, which overflows singles from scores of 88.7 on; states have a maximum of their own.
//!
//! Everything is allocated when the plan is made: plans and one workspace, states for each level of the deepest tree, and room
//! for the largest tile of a mask.

mod error;
mod mask;
mod merge;
mod states;

pub use error::TaskError;
pub use merge::TaskMerge;
pub use states::RowStates;

use super::options::PlanOptions;
use super::plan::{Plan, Workspace};
use crate::attention::bound::Reason;
use crate::backend::Backend;
use crate::engine::Engine;
use elsa_core::argument::ArgumentError;
use elsa_core::attention::{Chunk, Inputs, Lengths, MaskView, Outputs, Problem, Spec, StateOut};
use elsa_core::dtype::Elements;
use elsa_core::quorum::{Division, Span, Task, TaskPath};
use elsa_core::scan::stack::MergeStack;
use elsa_core::view::{Layout, View};
use mask::Tile;

/// Whose tokens the tensors of a task's problem hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// All of the whole.
    Whole,
    /// The task's own, in the order in which the task holds them, also along the axes of a mask that are not broadcast.
    Gathered {
        /// Query tokens of the whole.
        queries: usize,
        /// Key tokens of the whole.
        keys: usize,
    },
}

/// A task with every decision that does not depend on data, and all memory that its runs need.
#[derive(Debug)]
pub struct TaskPlan {
    problem: Problem,
    held: Held,
    /// Query and key tokens of the whole.
    totals: [usize; 2],
    task: Task,
    plans: Vec<Plan>,
    /// For each query run its calls: the keys, and the number of the plan.
    calls: Vec<(Span, Vec<(Span, usize)>)>,
    workspace: Option<Workspace>,
    slots: Vec<RowStates>,
    tile: Option<Tile>,
}

/// What a run of a task did.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskReport {
    /// Calls of plans.
    pub calls: usize,
    /// Calls that causality, windows or lengths made unnecessary.
    pub skipped: usize,
    /// Pairs of a query and a key of the task, for one head.
    pub pairs: u128,
    /// The back end of the last call; that of the plan if there was none.
    pub backend: Option<Backend>,
    /// Name of its kernel.
    pub kernel: Option<&'static str>,
    /// Bytes that were copied between host and GPU.
    pub copied: usize,
    /// Why the CPU computed instead of a GPU, in the first call in which it did.
    pub fallback: Option<Reason>,
}

impl TaskPlan {
    /// Plans task `path` of `division` for `problem`, whose tensors hold the tokens that `held` says. Key lengths are those of
    /// the whole.
    ///
    /// # Errors
    /// Returns an error if the path is not one of the division's, if the tensors do not have the task's tokens, if the problem
    /// has what tasks do not take (a past, a present, packed sequences, windows of a picture, a bias), if a plan cannot be made,
    /// or if memory is not available.
    pub fn new(
        engine: &Engine,
        problem: &Problem,
        division: &Division,
        path: &TaskPath,
        held: Held,
        options: &PlanOptions,
    ) -> Result<TaskPlan, TaskError> {
        let spec = problem.spec();
        refuse_what_tasks_do_not_take(spec)?;
        let tokens = [spec.query.tokens(), spec.key.tokens()];
        let totals = match held {
            Held::Whole => tokens,
            Held::Gathered { queries, keys } => [queries, keys],
        };
        let task = Task::new(division, path, totals[0], totals[1])?;
        if held != Held::Whole {
            for (argument, found, allowed) in
                [("q", tokens[0], task.query_tokens()), ("k", tokens[1], task.key_tokens())]
            {
                if found != allowed {
                    let fault =
                        ArgumentError::Mismatch { argument, axis: "tokens", found, allowed, of: "the task" };
                    return Err(fault.into());
                }
            }
        }
        let mut plan = TaskPlan {
            problem: *problem,
            held,
            totals,
            task,
            plans: Vec::new(),
            calls: Vec::new(),
            workspace: None,
            slots: Vec::new(),
            tile: None,
        };
        plan.prepare(engine, options)?;
        Ok(plan)
    }

    /// Makes the plans of all calls, and everything that they need.
    fn prepare(&mut self, engine: &Engine, options: &PlanOptions) -> Result<(), TaskError> {
        let (mut most_rows, mut most_slots, mut largest_tile) = (0, 0, 0);
        for run in self.task.queries() {
            let queries = run.span();
            let mut calls = Vec::new();
            for keys in self.task.keys_of(run) {
                let shape = |plan: &&Plan| {
                    let spec = plan.problem().spec();
                    (spec.query.tokens(), spec.key.tokens()) == (queries.tokens, keys.tokens)
                };
                let at = match self.plans.iter().position(|plan| shape(&plan)) {
                    Some(at) => at,
                    None => {
                        let problem = self.part(queries.tokens, keys.tokens)?;
                        largest_tile = largest_tile.max(problem.spec().mask.map_or(0, |mask| mask.extent()));
                        push(&mut self.plans, engine.plan(&problem, options)?)?;
                        self.plans.len() - 1
                    }
                };
                push(&mut calls, (keys, at))?;
            }
            if !calls.is_empty() {
                most_rows = most_rows.max(queries.tokens);
                most_slots = most_slots.max(MergeStack::capacity(calls.len()));
            }
            push(&mut self.calls, (queries, calls))?;
        }
        if !self.plans.is_empty() {
            let plans: Vec<&Plan> = self.plans.iter().collect();
            self.workspace = Some(Workspace::shared(&plans)?);
        }
        let sequences = self.problem.spec().query.batch() * self.problem.heads();
        for _ in 0..most_slots {
            self.slots.push(RowStates::empty(sequences * most_rows, self.problem.value_dim())?);
        }
        if let Some(mask) = &self.problem.spec().mask {
            self.tile = Some(Tile::with_capacity(mask.kind(), largest_tile)?);
        }
        Ok(())
    }

    /// The problem of `queries` query tokens and `keys` keys, in the memory of the task's tensors.
    fn part(&self, queries: usize, keys: usize) -> Result<Problem, ArgumentError> {
        let spec = self.problem.spec();
        let part = |argument, view: &View, tokens| {
            let [b, h, _, d] = view.shape();
            View::new(argument, [b, h, tokens, d], view.strides())
        };
        let [b, h, _, _] = spec.query.shape();
        let output = View::dense("out", Layout::Bhnd, &[b, h, queries, spec.value.dim()], None)?;
        let mask = match &spec.mask {
            Some(mask) => {
                let [mb, mh, mq, mk] = mask.shape();
                let axis = |whole, part| if whole == 1 { 1 } else { part };
                Some(MaskView::dense(mask.kind(), &[mb, mh, axis(mq, queries), axis(mk, keys)])?)
            }
            None => None,
        };
        let (query, key) = (part("q", &spec.query, queries)?, part("k", &spec.key, keys)?);
        let value = part("v", &spec.value, keys)?;
        Spec { query, key, value, output, mask, ..*spec }.check()
    }

    /// The task: its runs and which of them meet.
    #[must_use]
    pub fn task(&self) -> &Task {
        &self.task
    }

    /// The plans of the calls, one for each shape.
    #[must_use]
    pub fn plans(&self) -> &[Plan] {
        &self.plans
    }

    /// Query and key tokens of the whole.
    #[must_use]
    pub const fn totals(&self) -> [usize; 2] {
        self.totals
    }

    /// Size of the workspace in bytes.
    #[must_use]
    pub fn workspace_bytes(&self) -> usize {
        self.plans.iter().map(Plan::state_workspace_bytes).max().unwrap_or(0)
    }

    /// Computes the states of the task's queries into `states`: m and S `[batch, heads, queries]`, W `[batch, heads, queries,
    /// d_v]`, with the queries of the task in its order. Allocates nothing of the size of a tensor. The bits do not depend
    /// on the number of threads, nor on what the tensors hold besides the task's tokens.
    ///
    /// # Errors
    /// Returns an error if the data do not match the problem; nothing is written then. Or if a run fails.
    pub fn run(&mut self, inputs: &Inputs<'_>, states: StateOut<'_>) -> Result<TaskReport, TaskError> {
        let whole = Chunk { key_total: self.totals[1], query_total: self.totals[0], ..Chunk::default() };
        let lengths = Lengths { chunk: Some(whole), ..inputs.lengths };
        Inputs { lengths, ..*inputs }.check(&self.problem)?;
        let (rows, dim) = (self.rows(), self.problem.value_dim());
        for (argument, found, allowed) in [
            ("state_m", states.m.len(), rows),
            ("state_s", states.s.len(), rows),
            ("state_w", states.w.len(), rows.saturating_mul(dim)),
        ] {
            if found != allowed {
                let (axis, of) = ("elements", "the task");
                return Err(ArgumentError::Mismatch { argument, axis, found, allowed, of }.into());
            }
        }
        states.m.fill(f32::NEG_INFINITY);
        states.s.fill(0.0);
        states.w.fill(0.0);
        let mut report = TaskReport {
            calls: 0,
            skipped: 0,
            pairs: self.task.pair_count(),
            backend: self.plans.first().map(Plan::backend),
            kernel: self.plans.first().map(Plan::kernel),
            copied: 0,
            fallback: None,
        };
        for run in 0..self.calls.len() {
            self.run_queries(run, inputs, &mut report)?;
            let (span, calls) = &self.calls[run];
            let Some(root) = self.slots.first().filter(|_| !calls.is_empty()) else { continue };
            root.scatter(*span, self.task.query_tokens(), (&mut *states.m, &mut *states.s, &mut *states.w));
        }
        Ok(report)
    }

    /// Number of rows of the task: batch, heads and queries.
    fn rows(&self) -> usize {
        self.problem.spec().query.batch() * self.problem.heads() * self.task.query_tokens()
    }

    /// Computes the states of a query run into the first slot.
    fn run_queries(
        &mut self,
        run: usize,
        inputs: &Inputs<'_>,
        report: &mut TaskReport,
    ) -> Result<(), TaskError> {
        let (queries, calls) = &self.calls[run];
        let spec = *self.problem.spec();
        let rows = spec.query.batch() * self.problem.heads() * queries.tokens;
        let slots = &mut self.slots;
        let mut stack = MergeStack::default();
        for (number, (keys, plan)) in calls.iter().enumerate() {
            let chunk = Chunk {
                key_offset: keys.start,
                key_total: self.totals[1],
                query_offset: queries.start,
                query_total: self.totals[0],
            };
            let lengths = Lengths { chunk: Some(chunk), ..inputs.lengths };
            let plan = &self.plans[*plan];
            if !attends(plan.problem(), &lengths) {
                report.skipped += 1;
                continue;
            }
            let place = |span: &Span| match self.held {
                Held::Whole => span.start,
                Held::Gathered { .. } => span.offset,
            };
            let mask = match (&spec.mask, inputs.mask, &mut self.tile) {
                (Some(view), Some(elements), Some(tile)) => Some(tile.cut(
                    view,
                    elements,
                    place(queries)..place(queries) + queries.tokens,
                    place(keys)..place(keys) + keys.tokens,
                )),
                _ => None,
            };
            let from = |data, view: View, span| tail(data, view.row(0, 0, place(span)));
            let inputs = Inputs {
                query: from(inputs.query, spec.query, queries),
                key: from(inputs.key, spec.key, keys),
                value: from(inputs.value, spec.value, keys),
                mask,
                lengths,
                ..*inputs
            };
            let slot = stack.push(number, |slot| merge(slots, slot, rows));
            let (Some(states), Some(workspace)) = (slots.get_mut(slot), &mut self.workspace) else {
                continue;
            };
            let done = plan.bind(inputs, Outputs::states(states.first(rows)), workspace)?.run()?;
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

/// Adds an entry to a list.
///
/// # Errors
/// Memory that the system refuses.
fn push<T>(list: &mut Vec<T>, entry: T) -> Result<(), TaskError> {
    let bytes = list.len().saturating_add(1).saturating_mul(size_of::<T>());
    list.try_reserve(1).map_err(|_| TaskError::Memory { bytes })?;
    list.push(entry);
    Ok(())
}

/// Refuses what a problem may have and a task does not take.
fn refuse_what_tasks_do_not_take(spec: &Spec) -> Result<(), ArgumentError> {
    let given = [
        (spec.past_key.is_some(), "past_k"),
        (spec.present_key.is_some(), "present_k"),
        (spec.present_value.is_some(), "present_v"),
        (spec.packed.is_some(), "cu_seqlens_q"),
        (spec.windows.is_some(), "windows"),
        (spec.bias.is_some(), "bias"),
    ];
    match given.into_iter().find(|(given, _)| *given) {
        Some((_, other)) => Err(ArgumentError::Conflict { argument: "task", other }),
        None => Ok(()),
    }
}

/// Whether some row of some sequence may attend a key of the call.
fn attends(problem: &Problem, lengths: &Lengths<'_>) -> bool {
    (0..problem.sequences()).any(|index| {
        let sequence = problem.sequence(lengths, index);
        !sequence.ranges(0..sequence.queries).0.is_empty()
    })
}

/// The elements from `from` on; none beyond the end.
fn tail(data: Elements<'_>, from: usize) -> Elements<'_> {
    match data {
        Elements::F32(x) => Elements::F32(x.get(from..).unwrap_or_default()),
        Elements::F16(x) => Elements::F16(x.get(from..).unwrap_or_default()),
        Elements::Bf16(x) => Elements::Bf16(x.get(from..).unwrap_or_default()),
    }
}

/// Merges slot `slot + 1` into `slot`, the first `rows` rows.
fn merge(slots: &mut [RowStates], slot: usize, rows: usize) {
    if let Some([earlier, later]) = slots.get_mut(slot..slot + 2) {
        earlier.merge(later, rows);
    }
}
