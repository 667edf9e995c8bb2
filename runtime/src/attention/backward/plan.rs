//! Creates backward plans, and reports their properties.

use super::cpu::CpuPlan;
use super::operator::BackwardPlan;
use crate::engine::Engine;
use crate::error::PlanError;
use crate::plan::{Execution, Plan};
use elsa_core::attention::backward::{BackwardChoice, BackwardOptions, BackwardProblem, choose};
use elsa_core::plan::ChooseError;
use elsa_core::setters;
use elsa_kernels::registry;

/// Options of a backward plan.
///
/// ```
/// # use elsa_runtime::BackwardPlanOptions;
/// let options = BackwardPlanOptions::default().budget(64 << 20);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackwardPlanOptions {
    /// Largest workspace, in bytes; `None` sets no limit. With a small budget, the keys of a head are divided into
    /// fewer parts. This changes the order of additions, and therefore the last bits of the gradients.
    pub budget: Option<usize>,
    /// `true` if all threads take part even in a small problem. The bits of the result do not change.
    pub all_workers: bool,
}

setters! {
    BackwardPlanOptions:
    all_workers: bool;
    optional budget: usize,
}

impl Engine {
    /// Creates a plan for the gradients of `problem`. The CPU computes them, even on an engine whose forward pass runs
    /// on a GPU; the report of a run then names this fallback.
    ///
    /// The backward pass reads what the forward pass wrote: the output, and the state or the log-sum-exp of every row.
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
    /// plan.run(inputs, outputs, &mut plan.workspace()?)?;
    ///
    /// // The gradient of the sum of all outputs: the gradient of a value is the total weight that the queries give it.
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
    /// backward.run(inputs, gradients, &mut backward.workspace()?)?;
    /// assert!((dv.iter().sum::<f32>() - 12.0).abs() < 1e-4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the smallest workspace exceeds the budget or its size overflows. With
    /// [`Fallback::Fail`](crate::Fallback::Fail), also returns an error if the engine computes on a GPU, which has no
    /// backward pass.
    pub fn backward_plan(
        &self,
        problem: &BackwardProblem,
        options: &BackwardPlanOptions,
    ) -> Result<BackwardPlan, PlanError> {
        let cpu = || {
            let kernel = registry::backward_of(self.cpu()).ok_or(ChooseError::AbsentKernel)?;
            let BackwardPlanOptions { budget, all_workers } = *options;
            let options = BackwardOptions { budget, workers: self.threads(), all_workers };
            let (choice, layout) = choose(problem, &kernel.spec, &options)?;
            Ok(CpuPlan { kernel, choice, layout })
        };
        Plan::new(self, problem, |_| Err(PlanError::NotOnGpu { operator: "backward pass" }), cpu)
    }
}

impl BackwardPlan {
    /// Returns how the work is divided.
    #[must_use]
    pub fn choice(&self) -> &BackwardChoice {
        match &self.execution {
            Execution::Cpu(cpu) => &cpu.choice,
            Execution::Gpu { gpu, .. } => gpu.absurd(),
        }
    }
}
