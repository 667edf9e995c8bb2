//! The CPU plan: what is decided and allocated once per shape.

use crate::cpu::memory::Memory;
use crate::engine::Engine;
use crate::linear::options::LinearPlanOptions;
use elsa_core::linear::plan::{Choice, ChooseError, Layout, Options, Rooms, choose};
use elsa_core::linear::{Problem, Sequence};
use elsa_kernels::linear::{Kernel, head_room, strip_room};
use elsa_kernels::registry;

/// A plan for the CPU.
#[derive(Clone, Debug)]
pub struct CpuPlan {
    pub kernel: &'static Kernel,
    pub choice: Choice,
    pub layout: Layout,
}

/// What the kernel needs for a choice.
fn rooms(c: &Choice) -> Rooms {
    Rooms {
        head: head_room(c.chunk, c.rows, c.readers, c.gates, c.rule.is_delta(), c.pass),
        strip: strip_room(c.pass, c.strips.wide),
    }
}

impl CpuPlan {
    /// Creates a plan with the kernel of the engine's instruction set.
    ///
    /// # Errors
    /// Returns an error if an option is not supported, or if every form of the plan exceeds the budget.
    pub fn new(
        engine: &Engine,
        problem: &Problem,
        options: &LinearPlanOptions,
    ) -> Result<CpuPlan, ChooseError> {
        let kernel = registry::linear_of(engine.cpu()).ok_or(ChooseError::NoKernel)?;
        let LinearPlanOptions { form, chunk, parts, budget, all_workers } = *options;
        let options = Options { form, chunk, parts, budget, workers: engine.threads(), all_workers };
        let (choice, layout) = choose(problem, &kernel.spec, engine.profile(), &options, rooms)?;
        Ok(CpuPlan { kernel, choice, layout })
    }
}

/// The memory in which the runs of a plan work. A workspace serves one run at a time.
#[derive(Debug)]
pub struct CpuWorkspace {
    pub memory: Memory,
    /// The bound sequences.
    pub sequences: Vec<Sequence>,
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

    /// A workspace in the caller's memory.
    ///
    /// # Errors
    /// Returns an error if the memory is too short, or if the table cannot be allocated.
    ///
    /// # Safety
    /// - *lent*, of [`Memory::lent`].
    pub unsafe fn lent(
        plan: &CpuPlan,
        problem: &Problem,
        memory: *mut u8,
        bytes: usize,
    ) -> Result<CpuWorkspace, ChooseError> {
        // SAFETY: *lent*.
        let memory = unsafe { Memory::lent(memory, bytes, plan.layout.floats()) };
        let workspace = memory.and_then(|memory| CpuWorkspace::new(memory, problem.sequences()));
        workspace.ok_or(ChooseError::Memory { needed: plan.layout.bytes() })
    }

    fn new(memory: Memory, sequences: usize) -> Option<CpuWorkspace> {
        let mut table = Vec::new();
        table.try_reserve_exact(sequences).ok()?;
        Some(CpuWorkspace { memory, sequences: table })
    }

    /// Number of bytes of memory and table.
    pub fn bytes(&self) -> usize {
        self.memory.len() * size_of::<f32>() + self.sequences.capacity() * size_of::<Sequence>()
    }

    /// Number of sequences for which the table has room.
    pub fn room(&self) -> usize {
        self.sequences.capacity()
    }
}
