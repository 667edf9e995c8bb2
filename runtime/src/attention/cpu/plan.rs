//! The CPU plan: everything that is decided and allocated once per shape.

use crate::attention::options::PlanOptions;
use crate::engine::Engine;
use elsa_core::attention::certificate::Executed;
use elsa_core::attention::plan::{CpuChoice, Method, Options, WorkspaceLayout, choose};
use elsa_core::attention::traversal::{Schedule, scalar};
use elsa_core::attention::{Operand, Operands, Problem};
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
        let options = chooser_options(engine, problem, options, schedule);
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

/// Returns the options for the CPU's chooser. A division is that of the options; without one, it is that of the tuned
/// file, if the options leave block and workers to the chooser and no GPU computes.
pub fn chooser_options(
    engine: &Engine,
    problem: &Problem,
    options: &PlanOptions,
    schedule: Schedule,
) -> Options {
    let own = Options {
        method: options.method,
        block: options.block,
        budget: options.budget,
        workers: engine.threads(),
        all_workers: options.all_workers,
        certify: options.certify,
        schedule,
        division: options.cpu_division,
    };
    let defaults = Options::default();
    let left = (own.method, own.block, own.all_workers, own.division)
        == (Method::Elsa, defaults.block, false, None)
        && schedule.is_exact()
        && engine.gpu().is_none();
    let tuned = engine.tuned().filter(|_| left).and_then(|file| file.contents.as_ref().ok());
    Options { division: own.division.or(tuned.and_then(|tuned| tuned.cpu_division(problem))), ..own }
}

/// Returns the view of an operand in memory. Also supports operands with one f32 value or `d_v` f32 values per query
/// row. For masks and biases, whose views are of other types, the returned view is empty.
fn view_of(problem: &Problem, operand: Operand) -> View {
    let dim = match operand {
        Operand::LogSumExp | Operand::StateReference | Operand::StateSum => 1,
        Operand::StateWeighted => problem.value_dim(),
        _ => return problem.memory(operand).and_then(|memory| memory.view).unwrap_or_default(),
    };
    let [batch, heads, queries, _] = problem.spec().output.shape();
    let strides = [heads * queries * dim, queries * dim, dim, 1];
    // The view has no more elements than that of the output, which has been checked.
    View::new(operand.argument(), [batch, heads, queries, dim], strides).unwrap_or_default()
}

/// Returns the views of all operands, for a plan.
pub fn views_of(problem: &Problem) -> Arc<Operands<View>> {
    Arc::new(Operands::from_fn(|operand| view_of(problem, operand)))
}
