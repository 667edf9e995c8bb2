//! The backward plan, its workspace, and a bound call.

use super::context::Context;
use super::walk;
use crate::backend::Backend;
use crate::cpu::memory::{Memory, write_list};
use crate::engine::{Engine, Fallback};
use crate::error::{BindError, PlanError, RunError};
use crate::workspace::allocate_on_host;
use elsa_core::attention::Sequence;
use elsa_core::attention::backward::{
    BackwardChoice, BackwardInputs, BackwardLayout, BackwardOptions, BackwardProblem, Gradients, choose,
};
use elsa_core::attention::plan::ChooseError;
use elsa_kernels::attention::backward::BackwardKernel;
use elsa_kernels::registry;

/// Options of a backward plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackwardPlanOptions {
    /// Largest workspace, in bytes; `None` is unlimited. A small one has the keys of a head divided into fewer parts, which
    /// changes the order of additions and so the last bits.
    pub budget: Option<usize>,
    /// Whether all threads take part, however small the problem. This changes no bit.
    pub all_workers: bool,
}

/// A backward problem with every decision that does not depend on pointers. Created by [`Engine::backward_plan`].
#[derive(Clone, Debug)]
pub struct BackwardPlan {
    pub(crate) engine: Engine,
    problem: BackwardProblem,
    kernel: &'static BackwardKernel,
    choice: BackwardChoice,
    layout: BackwardLayout,
}

impl Engine {
    /// Creates a plan for the gradients of `problem`. They are computed by the CPU. An engine whose GPU computes has its
    /// CPU compute them, as [`BackwardReport::instead_of`] says.
    ///
    /// The forward pass writes the output and, of every row, the state or the log-sum-exp; the backward pass reads them.
    ///
    /// ```
    /// use elsa_core::attention::backward::{BackwardInputs, BackwardProblem, Gradients, Statistics};
    /// use elsa_core::attention::{Inputs, Outputs, Spec, StateOut};
    /// use elsa_core::{dtype::{DType, Elements, ElementsMut}, view::{Layout, View}};
    /// use elsa_runtime::{BackwardPlanOptions, Engine, EngineOptions, PlanOptions};
    ///
    /// let (tokens, dim) = (3, 4);
    /// let q: Vec<f32> = (0..tokens * dim).map(|x| (x % 5) as f32 - 2.0).collect();
    /// let view = View::dense("q", Layout::Bhnd, &[tokens, dim], None)?;
    /// let problem = Spec::new(DType::F32, view, view, view, view).check()?;
    /// let engine = Engine::new(&EngineOptions::default())?;
    ///
    /// let (mut y, mut m, mut s, mut w) = (vec![0.0; 12], [0.0; 3], [0.0; 3], [0.0; 12]);
    /// let inputs = Inputs::new(Elements::F32(&q), Elements::F32(&q), Elements::F32(&q));
    /// let plan = engine.plan(&problem, &PlanOptions::default())?;
    /// let mut outputs = Outputs::new(ElementsMut::F32(&mut y));
    /// outputs.state = Some(StateOut { m: &mut m, s: &mut s, w: &mut w });
    /// plan.bind(inputs, outputs, &mut plan.workspace()?)?.run()?;
    ///
    /// // The gradient of the sum of all outputs: each value gets as much as all queries attend to it.
    /// let upstream = [1.0f32; 12];
    /// let (mut dq, mut dk, mut dv) = (vec![0.0; 12], vec![0.0; 12], vec![0.0; 12]);
    /// let backward = engine.backward_plan(&BackwardProblem::new(&problem)?, &BackwardPlanOptions::default())?;
    /// let inputs = BackwardInputs {
    ///     forward: inputs,
    ///     output: Elements::F32(&y),
    ///     upstream: Elements::F32(&upstream),
    ///     statistics: Statistics::State { m: &m, s: &s },
    /// };
    /// let gradients = Gradients { query: &mut dq, key: &mut dk, value: &mut dv };
    /// backward.bind(inputs, gradients, &mut backward.workspace()?)?.run()?;
    /// assert!((dv.iter().sum::<f32>() - 12.0).abs() < 1e-4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the smallest workspace exceeds the budget or overflows. With [`Fallback::Fail`] also if a GPU
    /// computes, which has no backward pass.
    pub fn backward_plan(
        &self,
        problem: &BackwardProblem,
        options: &BackwardPlanOptions,
    ) -> Result<BackwardPlan, PlanError> {
        if self.gpu().is_some() && self.fallback() == Fallback::Fail {
            return Err(PlanError::NoBackward);
        }
        let kernel = registry::backward_of(self.cpu()).ok_or(ChooseError::NoKernel)?;
        let BackwardPlanOptions { budget, all_workers } = *options;
        let options = BackwardOptions { budget, workers: self.threads(), all_workers };
        let (choice, layout) = choose(problem, &kernel.spec, &options)?;
        Ok(BackwardPlan { engine: self.clone(), problem: *problem, kernel, choice, layout })
    }
}

/// The memory in which the runs of a backward plan work. A workspace serves one run at a time.
#[derive(Debug)]
pub struct BackwardWorkspace {
    memory: Memory,
}

impl BackwardWorkspace {
    /// Allocates a workspace that serves each of `plans`.
    ///
    /// # Errors
    /// Returns an error if the memory is not available.
    pub fn shared(plans: &[BackwardPlan]) -> Result<BackwardWorkspace, PlanError> {
        let most = plans.iter().map(BackwardPlan::workspace_bytes).max().unwrap_or(0);
        Ok(BackwardWorkspace { memory: allocate_on_host(most)? })
    }
}

/// A backward plan with the tensors of a call, created by [`BackwardPlan::bind`]. It may run any number of times.
#[derive(Debug)]
pub struct BackwardBound<'a> {
    context: Context<'a>,
    plan: &'a BackwardPlan,
    sequences: &'a [Sequence],
}

/// What a backward run did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackwardReport {
    /// The back end that computed.
    pub backend: Backend,
    /// Number of threads that shared the work.
    pub workers: usize,
    /// The back end of the engine, if it has no backward pass and the CPU computed in its place.
    pub instead_of: Option<Backend>,
}

impl BackwardPlan {
    /// The problem of the plan.
    #[must_use]
    pub fn problem(&self) -> &BackwardProblem {
        &self.problem
    }

    /// The division of the work.
    #[must_use]
    pub fn choice(&self) -> &BackwardChoice {
        &self.choice
    }

    /// Name of the kernel.
    #[must_use]
    pub fn kernel(&self) -> &'static str {
        self.kernel.spec.name
    }

    /// Size of the workspace in bytes.
    #[must_use]
    pub fn workspace_bytes(&self) -> usize {
        self.layout.bytes()
    }

    /// Allocates a workspace.
    ///
    /// # Errors
    /// Returns an error if the memory is not available.
    pub fn workspace(&self) -> Result<BackwardWorkspace, PlanError> {
        BackwardWorkspace::shared(std::slice::from_ref(self))
    }

    /// Binds the tensors of a call. Checks them against the problem, writes no gradient and allocates nothing.
    ///
    /// # Errors
    /// Returns an error if the data do not match the problem, or if the workspace belongs to another plan.
    pub fn bind<'a>(
        &'a self,
        inputs: BackwardInputs<'a>,
        gradients: Gradients<'a>,
        workspace: &'a mut BackwardWorkspace,
    ) -> Result<BackwardBound<'a>, BindError> {
        inputs.check(&self.problem)?;
        gradients.check(&self.problem)?;
        let count = self.problem.forward().sequences();
        let (base, room) = workspace.memory.lines();
        if room < self.layout.total {
            return Err(BindError::Room { found: workspace.memory.bytes(), needed: self.layout.bytes() });
        }
        let sequence = |index| self.problem.forward().sequence(&inputs.forward.lengths, index);
        // SAFETY: *room*: the memory has the layout, whose span has room for as many sequences, and is borrowed exclusively.
        let sequences = unsafe { write_list(base, self.layout.sequences, count, sequence) };
        let context =
            Context::new(&self.problem, self.kernel, &self.choice, &self.layout, inputs, gradients, base);
        Ok(BackwardBound { context, plan: self, sequences })
    }
}

impl BackwardBound<'_> {
    /// Computes the gradients and waits for them. Allocates nothing. The bits do not depend on the number of threads, the
    /// batch or the repetition.
    ///
    /// # Errors
    /// Returns an error if a worker panicked, or if the call was cancelled
    /// ([`Engine::cancel`](crate::Engine::cancel)). The gradients are then incomplete.
    pub fn run(&mut self) -> Result<BackwardReport, RunError> {
        let BackwardPlan { engine, choice, problem, .. } = self.plan;
        let (c, sequences, crew) = (&self.context, self.sequences, engine.pool().begin());
        let (heads, kv_heads) = (problem.forward().heads(), problem.forward().kv_heads());
        // Parts come last: those of a causal problem have less and less to do.
        let tasks = choice.parts * sequences.len() * kv_heads;
        crew.divide(choice.workers, tasks, &|worker, number| {
            let (part, rest) = (number / (sequences.len() * kv_heads), number % (sequences.len() * kv_heads));
            let task = walk::Task { sequence: &sequences[rest / kv_heads], kv_head: rest % kv_heads, part };
            // SAFETY: `Context::new` established the invariants. The pool gives each task to one worker, and each worker
            // has its own number. A task writes the gradients of its keys, and those of the queries of its part.
            unsafe { walk::part(c, &task, worker, &crew) }
        })?;
        crew.divide(choice.workers, sequences.len() * heads, &|_, number| {
            // SAFETY: as above; all parts are done, and each pair of sequence and head is one item.
            unsafe { walk::join(c, &sequences[number / heads], number % heads) }
        })?;
        let instead_of = engine.gpu().map(|_| Backend::Cuda);
        let workers = choice.workers.min(engine.threads());
        Ok(BackwardReport { backend: Backend::Cpu(engine.cpu()), workers, instead_of })
    }
}
