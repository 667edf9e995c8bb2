//! The plan for the CPU: everything that is decided once per shape.

use crate::engine::Engine;
use crate::linear::options::LinearPlanOptions;
use elsa_core::linear::Problem;
use elsa_core::linear::plan::{Choice, Options, Rooms, WorkspaceLayout, choose};
use elsa_core::plan::ChooseError;
use elsa_kernels::linear::{Kernel, head_room, strip_room};
use elsa_kernels::registry;

/// A plan for the CPU.
#[derive(Clone, Debug)]
pub struct CpuPlan {
    pub kernel: &'static Kernel,
    pub choice: Choice,
    pub layout: WorkspaceLayout,
}

/// Returns the sizes of the scratch regions that the kernel needs for the decisions `c`.
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
    /// Returns an error if an option is not supported, or if every variant of the plan exceeds the budget.
    pub fn new(
        engine: &Engine,
        problem: &Problem,
        options: &LinearPlanOptions,
    ) -> Result<CpuPlan, ChooseError> {
        let kernel = registry::linear_of(engine.cpu()).ok_or(ChooseError::AbsentKernel)?;
        let LinearPlanOptions { form, chunk, parts, whole, budget, all_workers } = *options;
        let options = Options { form, chunk, parts, whole, budget, workers: engine.threads(), all_workers };
        let (choice, layout) = choose(problem, &kernel.spec, engine.profile(), &options, rooms)?;
        Ok(CpuPlan { kernel, choice, layout })
    }
}
