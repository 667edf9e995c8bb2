//! Computes the backward pass of a task. The results are the task's shares of the gradients of the complete problem,
//! computed from the tokens of the task.
//!
//! # The formula
//!
//! The sums are those of [`elsa_core::attention::backward`], restricted to the pairs of queries and keys that the task
//! owns. For each row, two numbers represent all keys that the task does not have: the row's log-sum-exp (or reference
//! and sum) over all keys, and `D_i = ⟨do_i, o_i⟩`, where `o_i` is the row's output. Both numbers come from the merged
//! states of the forward pass. So tasks exchange no keys, and their shares need no common denominator: they are added
//! ([`GradientMerge`](super::GradientMerge)).
//!
//! # The loop
//!
//! ```text
//! for each query run
//!     for each range of keys that is paired with the run, if a query of the run attends one of them
//!         compute the gradients of the tile         one call of a plan, all batches and heads
//!         add them to the task's shares
//! ```
//!
//! # The order of additions, and the error
//!
//! The gradients of calls are added one after another: by query run and, within a run, by key range, in the task's
//! order. In addition to the additions within calls, an element of a query's gradient takes part in at most one
//! addition per key range of its run. An element of a key's gradient takes part in at most one addition per query run
//! (commonly three to five additions). [`BackwardTaskPlan::structure`] counts these additions. The tree over the tasks
//! adds [`GradientMerge::additions`](super::GradientMerge::additions) more. Every sum is f32. The error of an element,
//! relative to the sum of the terms' absolute values over all tasks, is bounded as for a single call with all these
//! additions.

use super::calls::{Calls, TaskTokens, from, of_tokens, push};
use super::gradients::{GradientSizes, TaskGradients};
use super::states::room;
use crate::attention::backward::{BackwardPlan, BackwardPlanOptions, BackwardWorkspace};
use crate::cpu::pool::Crew;
use crate::engine::Engine;
use crate::error::{PlanError, RunError};
use crate::report::Report;
use elsa_core::argument::ArgumentError;
use elsa_core::attention::backward::{
    BackwardInputs, BackwardProblem, BackwardSpec, Gradients, Statistics, Structure,
};
use elsa_core::attention::{Inputs, Problem};
use elsa_core::quorum::{Division, Task, TaskPath};
use elsa_core::view::{Layout, View};

/// A plan for the backward pass of a task: every decision that does not depend on data, and all memory that runs need.
#[derive(Debug)]
pub struct BackwardTaskPlan {
    problem: BackwardProblem,
    calls: Calls,
    /// The plans of the calls, one for each shape.
    plans: Vec<BackwardPlan>,
    workspace: Option<BackwardWorkspace>,
    /// Backward problem that has only the tokens of the task. Its gradients have the shapes of the task's shares.
    shares: BackwardProblem,
    /// Room for the gradients of one call.
    part: TaskGradients,
    /// Statistics of the rows of a query run: log-sum-exp, or references and sums.
    rows: [Vec<f32>; 2],
}

/// Report of a run of a task's backward pass.
#[derive(Clone, Debug, PartialEq)]
pub struct BackwardTaskReport {
    /// Number of executed calls, each of which is a run of one of the plans.
    pub calls: usize,
    /// Number of calls that were not executed, because causality, windows or lengths exclude all their query-key pairs.
    pub skipped: usize,
    /// Number of query-key pairs per head that the task owns.
    pub pairs: u128,
    /// Report of the last call; `None` if no call was made.
    pub last_report: Option<Report>,
}

impl BackwardTaskPlan {
    /// Plans the backward pass of the task at `path` in `division`. `held` specifies which tokens the problem's tensors
    /// contain. Key lengths refer to the complete sequences.
    ///
    /// # Errors
    /// Returns an error if `division` does not have the path, if the tensors do not have the task's tokens, if the
    /// problem has features that tasks do not support (packed sequences, windows of a picture, a bias), if a plan
    /// cannot be made, or if memory is not available.
    pub fn new(
        engine: &Engine,
        problem: &BackwardProblem,
        division: &Division,
        path: &TaskPath,
        held: TaskTokens,
        options: &BackwardPlanOptions,
    ) -> Result<BackwardTaskPlan, PlanError> {
        let calls = Calls::new(problem.forward(), division, path, held)?;
        let mut plans = Vec::new();
        for shape in calls.shapes() {
            push(&mut plans, engine.backward_plan(&part(problem, shape)?, options)?)?;
        }
        let workspace = match &plans[..] {
            [] => None,
            plans => {
                let mut all = Vec::new();
                plans.iter().try_for_each(|plan| push(&mut all, plan))?;
                Some(BackwardWorkspace::shared(&all)?)
            }
        };
        let task = calls.task();
        let shares = part(problem, &calls.part(task.query_tokens(), task.key_tokens())?)?;
        let most = |tokens: fn(&Problem) -> usize| calls.shapes().iter().map(tokens).max().unwrap_or(0);
        let sizes = GradientSizes {
            queries: most(|shape| shape.spec().query.tokens()),
            keys: most(|shape| shape.spec().key.tokens()),
            ..GradientSizes::of_problem(problem.forward())
        };
        let part = TaskGradients::zeros(&sizes)?;
        let count = sizes.query_sequences.saturating_mul(sizes.queries);
        let rows = [room(count)?, room(count)?];
        Ok(BackwardTaskPlan { problem: *problem, calls, plans, workspace, shares, part, rows })
    }

    /// Returns the backward problem of the task's tensors.
    #[must_use]
    pub const fn problem(&self) -> &BackwardProblem {
        &self.problem
    }

    /// Returns a backward problem whose gradients have the views of the task's shares, which are dense.
    #[must_use]
    pub const fn shares(&self) -> &BackwardProblem {
        &self.shares
    }

    /// Returns the task, which contains its runs of queries and keys and states which runs are paired.
    #[must_use]
    pub fn task(&self) -> &Task {
        self.calls.task()
    }

    /// Returns the plans of the calls, one for each shape.
    #[must_use]
    pub fn plans(&self) -> &[BackwardPlan] {
        &self.plans
    }

    /// Returns the numbers of query and key tokens in the complete problem.
    #[must_use]
    pub const fn totals(&self) -> [usize; 2] {
        self.calls.totals()
    }

    /// Returns the sizes of the task's shares.
    #[must_use]
    pub fn sizes(&self) -> GradientSizes {
        GradientSizes::of_problem(self.problem.forward()).of(self.task())
    }

    /// Returns the size of the workspace in bytes.
    #[must_use]
    pub fn workspace_bytes(&self) -> usize {
        self.plans.iter().map(BackwardPlan::workspace_bytes).max().unwrap_or(0)
    }

    /// Returns the structure from which the error bound of the shares is computed; `None` if the task has no calls.
    /// `forward` must be at least the number of additions through which a weight passes on its way into a sum of the
    /// forward pass.
    #[must_use]
    pub fn structure(&self, forward: usize) -> Option<Structure> {
        let softcap = self.problem.forward().spec().softcap;
        let of = |plan: &BackwardPlan| plan.choice().structure(forward, softcap);
        let mut structure = self.plans.iter().map(of).max_by_key(|structure| structure.additions)?;
        let ranges = self.calls.runs().iter().map(|(_, calls)| calls.len());
        structure.additions += ranges.max().unwrap_or(0).max(self.calls.runs().len());
        Some(structure)
    }

    /// Computes the task's shares of the gradients and writes them to `shares` in dense order: `[batch, heads, queries,
    /// d]` for queries, `[batch, kv_heads, keys, d]` for keys and `[batch, kv_heads, keys, d_v]` for values, with the
    /// task's tokens in the task's order. The output, the upstream gradient and the statistics must be those of the
    /// complete attention, for the queries in the problem's tensors. Allocates nothing. The bits depend neither on the
    /// number of threads nor on other tokens in the tensors.
    ///
    /// # Errors
    /// Returns an error and writes nothing if the data do not match the problem, or if the shares do not have the sizes
    /// of the task. If a run fails or is cancelled ([`Engine::cancel`]), returns an error and leaves the shares
    /// incomplete.
    pub fn run(
        &mut self,
        inputs: &BackwardInputs<'_>,
        shares: Gradients<'_>,
    ) -> Result<BackwardTaskReport, RunError> {
        let lengths = self.calls.lengths(inputs.forward.lengths);
        let whole = Inputs { lengths, ..inputs.forward };
        BackwardInputs { forward: whole, ..*inputs }.check(&self.problem)?;
        let Gradients { query, key, value } = shares;
        let spec = self.shares.spec();
        for (argument, view, found) in [
            ("d_q", &spec.query, query.len()),
            ("d_k", &spec.key, key.len()),
            ("d_v", &spec.value, value.len()),
        ] {
            let allowed = view.count();
            if found != allowed {
                let (axis, of) = ("elements", "the task");
                return Err(ArgumentError::Mismatch { argument, axis, found, allowed, of }.into());
            }
        }
        query.fill(0.0);
        key.fill(0.0);
        value.fill(0.0);
        let mut shares = Gradients { query, key, value };
        let pairs = self.task().pair_count();
        let mut report = BackwardTaskReport { calls: 0, skipped: 0, pairs, last_report: None };
        let Some(engine) = self.plans.first().map(|plan| plan.engine.clone()) else { return Ok(report) };
        let crew = engine.pool().begin();
        for run in 0..self.calls.runs().len() {
            self.run_queries(run, inputs, &mut shares, &crew, &mut report)?;
        }
        Ok(report)
    }

    /// Executes the calls of a query run, and adds their gradients to the shares.
    fn run_queries(
        &mut self,
        run: usize,
        inputs: &BackwardInputs<'_>,
        shares: &mut Gradients<'_>,
        crew: &Crew<'_>,
        report: &mut BackwardTaskReport,
    ) -> Result<(), RunError> {
        let (queries, count) = (self.calls.runs()[run].0, self.calls.runs()[run].1.len());
        if count == 0 {
            return Ok(());
        }
        let view = self.problem.forward().spec().output;
        let row = self.calls.place(&queries);
        let output = from(inputs.output, &view, row);
        let upstream = from(inputs.upstream, &self.problem.spec().upstream, row);
        let [first, second] = &mut self.rows;
        let cut = |to: &mut Vec<f32>, rows: &[f32]| {
            to.clear();
            for sequence in rows.chunks_exact(view.tokens().max(1)) {
                to.extend_from_slice(sequence.get(row..row + queries.tokens).unwrap_or_default());
            }
        };
        let statistics = match inputs.statistics {
            Statistics::LogSumExp(lse) => {
                cut(first, lse);
                Statistics::LogSumExp(first)
            }
            Statistics::State { m, s } => {
                cut(first, m);
                cut(second, s);
                Statistics::State { m: first, s: second }
            }
        };
        for number in 0..count {
            crew.check()?;
            let call = self.calls.runs()[run].1[number];
            let plan = &self.plans[call.shape];
            let Some(forward) = self.calls.inputs(&inputs.forward, &queries, call) else {
                report.skipped += 1;
                continue;
            };
            let Some(workspace) = &mut self.workspace else { continue };
            let of_call = BackwardInputs { forward, output, upstream, statistics };
            report.last_report = Some(plan.run(of_call, self.part.borrow(), workspace)?);
            report.calls += 1;
            let at = [queries.offset, call.keys.offset];
            shares.add(&self.shares, &self.part.borrow(), plan.problem(), at)?;
        }
        Ok(())
    }
}

/// Returns the backward problem of a call, or of the task's shares. Output and upstream gradient have the strides of
/// the task's tensors; the gradients are dense.
fn part(whole: &BackwardProblem, of: &Problem) -> Result<BackwardProblem, ArgumentError> {
    let spec = of.spec();
    let dense = |argument, view: &View| View::dense(argument, Layout::Bhnd, &view.shape(), None);
    let queries = spec.query.tokens();
    let output = of_tokens("out", &whole.forward().spec().output, queries)?;
    let problem = spec.output(output).check()?;
    let upstream = of_tokens("d_out", &whole.spec().upstream, queries)?;
    let (query, key) = (dense("d_q", &spec.query)?, dense("d_k", &spec.key)?);
    BackwardSpec { upstream, query, key, value: dense("d_v", &spec.value)? }.check(&problem)
}
