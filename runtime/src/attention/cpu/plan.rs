//! The CPU plan: everything that is decided and allocated once per shape.

use super::context::views_of;
use crate::attention::options::PlanOptions;
use crate::engine::Engine;
use elsa_core::attention::certificate::Executed;
use elsa_core::attention::plan::{CpuChoice, Options, WorkspaceLayout, choose};
use elsa_core::attention::traversal::{Schedule, scalar};
use elsa_core::attention::{Operands, Problem};
use elsa_core::plan::ChooseError;
use elsa_core::view::View;
use elsa_kernels::attention::Kernel;
use elsa_kernels::registry;
use std::sync::Arc;

/// A plan for the CPU.
#[derive(Clone, Debug)]
pub struct CpuPlan {
    pub kernel: &'static Kernel,
    pub choice: CpuChoice,
    pub layout: WorkspaceLayout,
    /// Structure of the schedule if the scalar implementation runs it; `None` if the kernel runs the plan.
    pub traverses: Option<Executed>,
    /// Views of the tensors of a call. They are on the heap, because plans are moved on the stack of the caller.
    pub views: Arc<Operands<View>>,
}

impl CpuPlan {
    /// Creates a plan with the kernels of the engine's instruction set and the schedule of the options.
    ///
    /// # Errors
    /// Returns an error if an option is not supported, or if every variant of the plan exceeds the memory budget.
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
        Ok(CpuPlan { kernel, choice, layout, traverses, views: views_of(problem) })
    }

    /// Returns the structure and the arithmetic of a run. The certificate and the error bounds of the run are computed
    /// from them.
    pub fn executed(&self) -> Executed {
        self.traverses.unwrap_or_else(|| self.choice.executed())
    }
}
