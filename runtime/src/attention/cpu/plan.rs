//! The CPU plan: what is decided and allocated once per shape.

use crate::attention::options::PlanOptions;
use crate::cpu::memory::Memory;
use crate::engine::Engine;
use elsa_core::attention::certificate::Executed;
use elsa_core::attention::plan::{ChooseError, CpuChoice, Options, Span, WorkspaceLayout, choose};
use elsa_core::attention::traversal::{Report, Schedule, scalar};
use elsa_core::attention::{Problem, Sequence};
use elsa_kernels::attention::Kernel;
use elsa_kernels::registry;

/// A plan for the CPU.
#[derive(Clone, Debug)]
pub struct CpuPlan {
    pub kernel: &'static Kernel,
    pub choice: CpuChoice,
    pub layout: WorkspaceLayout,
    /// What the scalar run of a schedule executes; `None` where the kernel runs.
    pub traverses: Option<Executed>,
}

impl CpuPlan {
    /// Creates a plan with the kernels of the engine's instruction set. The schedule is that of the options.
    ///
    /// # Errors
    /// Returns an error if an option is not supported, or if every form of the plan exceeds the budget.
    pub fn new(
        engine: &Engine,
        problem: &Problem,
        options: &PlanOptions,
        schedule: Schedule,
    ) -> Result<CpuPlan, ChooseError> {
        let options = Options {
            method: options.method,
            block: options.block,
            budget: options.budget,
            workers: engine.threads(),
            all_workers: options.all_workers,
            certify: options.certify,
            schedule,
        };
        let kernels = || registry::attention_of(engine.cpu());
        let choice = choose(problem, engine.profile(), kernels().map(|kernel| &kernel.spec), &options)?;
        let kernel = kernels().nth(choice.candidate).ok_or(ChooseError::NoKernel)?;
        let layout = WorkspaceLayout::of(&choice).ok_or(ChooseError::Memory { needed: usize::MAX })?;
        let traverses =
            choice.traverses().then(|| scalar::executed(problem, &choice.schedule, choice.decides()));
        Ok(CpuPlan { kernel, choice, layout, traverses })
    }

    /// The structure and the arithmetic that a run executes, for its certificate and its error bounds.
    pub fn executed(&self) -> Executed {
        self.traverses.unwrap_or_else(|| self.choice.executed())
    }

    /// Creates a workspace in the caller's memory.
    ///
    /// # Errors
    /// Returns an error if the memory is too short, or if the tables cannot be allocated.
    ///
    /// # Safety
    /// - *lent*, of [`Memory::lent`].
    pub unsafe fn workspace_in(
        &self,
        problem: &Problem,
        memory: *mut u8,
        bytes: usize,
    ) -> Result<CpuWorkspace, ChooseError> {
        // SAFETY: *lent*.
        let memory = unsafe { Memory::lent(memory, bytes, self.layout.floats()) };
        let workspace = memory.and_then(|memory| CpuWorkspace::new(memory, problem.sequences()));
        workspace.ok_or(ChooseError::Memory { needed: self.layout.bytes() })
    }
}

/// The memory in which the runs of a plan work. A workspace serves one run at a time.
#[derive(Debug)]
pub struct CpuWorkspace {
    pub memory: Memory,
    /// The geometry of the bound sequences.
    pub sequences: Vec<Sequence>,
    /// First task of each sequence, then the number of tasks.
    pub tasks: Vec<usize>,
}

impl CpuWorkspace {
    /// Allocates a workspace that serves each of the plans. Returns `None` if there is no plan.
    ///
    /// # Errors
    /// Returns an error if the memory is not available.
    pub fn of<'a>(
        plans: impl Iterator<Item = (&'a CpuPlan, &'a Problem)> + Clone,
    ) -> Result<Option<CpuWorkspace>, ChooseError> {
        let sequences = plans.clone().map(|(_, problem)| problem.sequences()).max();
        let largest = plans.map(|(plan, _)| &plan.layout).max_by_key(|layout| layout.floats());
        let Some((layout, sequences)) = largest.zip(sequences) else { return Ok(None) };
        let workspace =
            Memory::allocate(layout.floats()).and_then(|memory| CpuWorkspace::new(memory, sequences));
        workspace.map(Some).ok_or(ChooseError::Memory { needed: layout.bytes() })
    }

    fn new(memory: Memory, sequences: usize) -> Option<CpuWorkspace> {
        let mut table = Vec::new();
        table.try_reserve_exact(sequences).ok()?;
        let mut tasks = Vec::new();
        tasks.try_reserve_exact(sequences.checked_add(1)?).ok()?;
        Some(CpuWorkspace { memory, sequences: table, tasks })
    }

    /// Numbers of the memory, counted from its first line; `None` if it does not have them.
    pub fn record(&mut self, span: Span) -> Option<&[f32]> {
        let (base, room) = self.memory.lines();
        let end = span.start.checked_add(span.len)?;
        // SAFETY: the memory has `room` initialized values from `base` on, and is borrowed exclusively.
        (end <= room).then(|| unsafe { std::slice::from_raw_parts(base.add(span.start), span.len) })
    }

    /// What a worker counted of a schedule; `span` is that of the worker's counts. `None` if the memory does not have it.
    pub fn counted(&mut self, span: Span) -> Option<Report> {
        let counts = self.record(span)?;
        let fits =
            size_of_val(counts) >= size_of::<Report>() && counts.as_ptr().cast::<Report>().is_aligned();
        // SAFETY: the numbers hold a report, of which any bits are one, and are aligned to it.
        fits.then(|| unsafe { counts.as_ptr().cast::<Report>().read() })
    }

    /// Number of bytes of memory and tables.
    pub fn bytes(&self) -> usize {
        self.memory.len() * size_of::<f32>()
            + self.sequences.capacity() * size_of::<Sequence>()
            + self.tasks.capacity() * size_of::<usize>()
    }

    /// Number of sequences for which the tables have room.
    pub fn room(&self) -> usize {
        self.sequences.capacity().min(self.tasks.capacity().saturating_sub(1))
    }
}
