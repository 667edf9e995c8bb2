//! Plans linear attention, and reports the properties of such plans.

use super::cpu::plan::CpuPlan;
use super::cuda::LinearGpuChoice;
use super::cuda::plan::GpuPlan;
use super::operator::LinearPlan;
use super::options::LinearPlanOptions;
use crate::backend::Backend;
use crate::engine::Engine;
use crate::error::{PlanError, RunError};
use crate::plan::DevicePlan;
use crate::report::Report;
use elsa_core::linear::bound::Executed;
use elsa_core::linear::plan::Choice;
use elsa_core::linear::{Form, Inputs, Outputs, Problem};

/// The order of operations in a run of linear attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearDivision {
    /// The form of the computation.
    pub form: Form,
    /// Number of tokens per chunk.
    pub chunk: usize,
    /// Largest number of parts that are computed in parallel in one sequence.
    pub parts: usize,
}

impl Engine {
    /// Creates a plan of linear attention: decides everything that depends on the shape. With
    /// [`Fallback::Cpu`](crate::Fallback::Cpu) a plan for the GPU contains a standby plan for the CPU, and the CPU
    /// computes calls that the GPU does not support.
    ///
    /// # Errors
    /// Returns an error if an option is not supported, or if the smallest workspace exceeds the budget. With
    /// [`Fallback::Fail`](crate::Fallback::Fail), also returns an error if the GPU fails, or does not support the
    /// problem or an option.
    pub fn linear_plan(
        &self,
        problem: &Problem,
        options: &LinearPlanOptions,
    ) -> Result<LinearPlan, PlanError> {
        let cpu = || Ok(CpuPlan::new(self, problem, options)?);
        LinearPlan::new(self, problem, |gpu| GpuPlan::new(gpu, problem, options), cpu)
    }

    /// Plans and computes one call with default options. Programs that repeat a shape should create a plan instead
    /// ([`Engine::linear_plan`]); its runs are faster and allocate nothing.
    ///
    /// ```
    /// # use elsa_core::{dtype::{DType, Elements}, linear::{Inputs, Outputs, Rule, Spec}, view::View};
    /// # use elsa_runtime::{Engine, EngineOptions};
    /// // One head of size one: h_t = h_{t−1} / 2 + v_t.
    /// let view = View::bhnd("q", [1, 1, 4, 1])?;
    /// let problem = Spec::new(DType::F32, view, view, view, view).rule(Rule::Gated).decay(view).check()?;
    ///
    /// let (ones, v, decay) = ([1.0f32; 4], [1.0f32, 2.0, 3.0, 4.0], [0.5f32.ln(); 4]);
    /// let mut inputs = Inputs::new(&ones[..], &ones[..], &v[..]);
    /// inputs.decay = Some(Elements::F32(&decay));
    /// let mut y = [0.0f32; 4];
    /// Engine::new(&EngineOptions::default())?.linear(&problem, inputs, Outputs::new(&mut y[..]))?;
    /// for (y, expected) in y.iter().zip([1.0, 2.5, 4.25, 6.125]) {
    ///     assert!((y - expected).abs() < 1e-5);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`Engine::linear_plan`], and errors from creating a workspace, binding and running.
    pub fn linear(
        &self,
        problem: &Problem,
        inputs: Inputs<'_>,
        outputs: Outputs<'_>,
    ) -> Result<Report, RunError> {
        let plan = self.linear_plan(problem, &LinearPlanOptions::default())?;
        let mut workspace = plan.workspace()?;
        plan.run(inputs, outputs, &mut workspace)
    }
}

impl LinearPlan {
    /// Returns the chooser's decisions for the CPU, if the CPU computes or if the plan has a standby plan for the CPU.
    /// Returns `None` for a GPU plan without a standby plan.
    #[must_use]
    pub fn choice(&self) -> Option<&Choice> {
        self.execution.cpu().map(|cpu| &cpu.choice)
    }

    /// Returns the order of operations for runs on `backend`. A run states its back end in its
    /// [`Report`](crate::Report).
    #[must_use]
    pub fn division_of(&self, backend: Backend) -> LinearDivision {
        match self.of(backend) {
            DevicePlan::Cpu(cpu) => {
                let Choice { form, chunk, parts, .. } = cpu.choice;
                LinearDivision { form, chunk, parts }
            }
            DevicePlan::Gpu(gpu) => {
                let LinearGpuChoice { form, chunk, parts, .. } = gpu.choice;
                LinearDivision { form, chunk, parts }
            }
        }
    }

    /// Returns the properties that determine the error bound of a run on `backend` over a sequence of `tokens` tokens.
    #[must_use]
    pub fn executed_of(&self, backend: Backend, tokens: usize) -> Executed {
        match self.of(backend) {
            DevicePlan::Cpu(cpu) => cpu.choice.executed(&self.problem, tokens),
            DevicePlan::Gpu(gpu) => gpu.choice.executed(&self.problem, tokens),
        }
    }

    /// Returns the chooser's decisions for the GPU; `None` if the CPU computes.
    #[must_use]
    pub fn gpu_choice(&self) -> Option<&LinearGpuChoice> {
        self.execution.gpu().map(|gpu| &gpu.choice)
    }
}
