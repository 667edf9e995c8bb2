//! Creates attention plans, and describes them.

use super::cpu::plan::{CpuPlan, chooser_options};
use super::cuda::plan::{GpuPlan, choices};
use super::operator::Plan;
use super::options::PlanOptions;
use crate::backend::Backend;
use crate::cuda::gpu::Gpu;
use crate::engine::Engine;
use crate::error::{PlanError, RunError};
use crate::plan::{DevicePlan, Execution};
use crate::report::Report;
use elsa_core::attention::certificate::Certificate;
use elsa_core::attention::plan::{CpuChoice, GpuChoice, GpuOptions, Method, TensorCores, cpu_alternatives};
use elsa_core::attention::{Inputs, Outputs, Problem};
use elsa_kernels::registry;
use std::sync::Arc;

impl Engine {
    /// Returns the name of the CPU attention kernel that accepts any number of queries.
    #[must_use]
    pub fn kernel(&self) -> &'static str {
        registry::attention_for_any(self.cpu()).map_or(self.cpu().name(), |kernel| kernel.spec.name)
    }

    /// Creates a plan for `problem`: makes every decision that depends on the shape, and loads the GPU kernels. With
    /// [`Fallback::Cpu`](crate::Fallback::Cpu), a plan for the GPU also contains a standby plan for the CPU, which
    /// computes the calls that the GPU does not support.
    ///
    /// # Errors
    /// Returns an error if an option is not supported, or if every variant of the plan exceeds the budget. With
    /// [`Fallback::Fail`](crate::Fallback::Fail), also returns an error if the GPU fails, or does not support the
    /// problem or the schedule.
    pub fn plan(&self, problem: &Problem, options: &PlanOptions) -> Result<Plan, PlanError> {
        let schedule = options.traversal()?;
        let gpu = |device: &Arc<Gpu>| match options.method {
            _ if !schedule.is_exact() => match schedule.budget().filter(|_| !schedule.gate) {
                error_budget @ Some(_) => {
                    GpuPlan::new(device, problem, GpuOptions { error_budget, ..gpu_options(options) })
                }
                None => Err(PlanError::NotOnGpu { operator: "schedule but the exact one" }),
            },
            Method::Elsa => self.plan_gpu(device, problem, options),
            Method::Math => GpuPlan::math(device, problem, gpu_options(options)),
        };
        Plan::new(self, problem, gpu, || Ok(CpuPlan::new(self, problem, options, schedule)?))
    }

    /// Computes one call with default options. For repeated calls of a shape, a plan ([`Engine::plan`]) is faster,
    /// since its runs allocate nothing.
    ///
    /// ```
    /// # use elsa_core::{attention::{Inputs, Outputs, Spec}, dtype::DType, view::View};
    /// # use elsa_runtime::{Engine, EngineOptions};
    /// let view = View::bhnd("q", [1, 2, 5, 8])?;
    /// let (x, mut y) = (vec![0.5f32; view.count()], vec![0.0f32; view.count()]);
    /// let problem = Spec::new(DType::F32, view, view, view, view).check()?;
    /// let engine = Engine::new(&EngineOptions::default())?;
    /// engine.attention(&problem, Inputs::new(&x[..], &x[..], &x[..]), Outputs::new(&mut y[..]))?;
    /// assert!((y[0] - 0.5).abs() < 1e-6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`Engine::plan`], [`Plan::workspace`], [`Plan::bind`] and [`Bound::run`](crate::Bound::run).
    pub fn attention(
        &self,
        problem: &Problem,
        inputs: Inputs<'_>,
        outputs: Outputs<'_>,
    ) -> Result<Report, RunError> {
        let plan = self.plan(problem, &PlanOptions::default())?;
        let mut workspace = plan.workspace()?;
        plan.bind(inputs, outputs, &mut workspace)?.run()
    }
}

/// Returns the options for the GPU's chooser.
fn gpu_options(options: &PlanOptions) -> GpuOptions {
    let PlanOptions { budget, half_scores, tensor_cores, certify, division, .. } = *options;
    GpuOptions { budget, half_scores, tensor_cores, certify, division, error_budget: None }
}

impl Engine {
    /// Creates a plan for the GPU, with the division in the options. If the options have no division, the tuned file or
    /// the chooser selects one.
    fn plan_gpu(
        &self,
        gpu: &Arc<Gpu>,
        problem: &Problem,
        options: &PlanOptions,
    ) -> Result<GpuPlan, PlanError> {
        let own = gpu_options(options);
        if own.tensor_cores != TensorCores::Off
            && own.division.is_none()
            && let Some(plan) = GpuPlan::on_tensor_cores(gpu, problem, &own)?
        {
            return Ok(plan);
        }
        let tuned = self.tuned().and_then(|file| file.contents.as_ref().ok());
        let tuned = tuned.and_then(|tuned| tuned.division(problem, options.half_scores));
        if let (None, Some(division)) = (own.division, tuned) {
            match GpuPlan::new(gpu, problem, GpuOptions { division: Some(division), ..own }) {
                // The chooser may support a problem that the tuned kernels do not.
                Err(PlanError::Refused(e)) => log::debug!("the tuned division is not used: {e}"),
                planned => return planned,
            }
        }
        GpuPlan::new(gpu, problem, own)
    }

    /// Returns the choices for `problem` that a measurement on the CPU may compare, as values of
    /// [`PlanOptions::cpu_division`] ([`CpuChoice::division`]). The chooser's own choice is not among them. The list is
    /// empty if a GPU computes.
    ///
    /// # Errors
    /// Returns an error if the chooser rejects the problem or the options.
    pub fn cpu_divisions(
        &self,
        problem: &Problem,
        options: &PlanOptions,
    ) -> Result<Vec<CpuChoice>, PlanError> {
        if self.gpu().is_some() {
            return Ok(Vec::new());
        }
        let options = chooser_options(self, problem, options, options.traversal()?);
        let kernels: Vec<_> = registry::attention_of(self.cpu()).map(|kernel| &kernel.spec).collect();
        Ok(cpu_alternatives(problem, self.profile(), kernels.iter().copied(), &options)?.collect())
    }

    /// Returns the choices for `problem` that a measurement on the GPU may compare, as values of
    /// [`PlanOptions::division`]. The chooser's own choice comes first. Choices with other sizes of row blocks and with
    /// other numbers of splits follow. The list is empty if the CPU computes.
    ///
    /// # Errors
    /// Returns an error if the GPU does not support the problem, or if every variant of the plan exceeds the budget.
    pub fn divisions(&self, problem: &Problem, options: &PlanOptions) -> Result<Vec<GpuChoice>, PlanError> {
        let error_budget =
            options.traversal().ok().filter(|schedule| !schedule.gate).and_then(|schedule| schedule.budget());
        let options = GpuOptions { error_budget, ..gpu_options(options) };
        let Some(gpu) = self.gpu() else { return Ok(Vec::new()) };
        Ok(choices(gpu, problem, &options)?)
    }
}

impl Plan {
    /// Returns the choice for the CPU, which may compute or be on standby; `None` for a GPU plan without fallback.
    #[must_use]
    pub fn choice(&self) -> Option<&CpuChoice> {
        self.execution.cpu().map(|cpu| &cpu.choice)
    }

    /// Returns the choice for the GPU; `None` if the CPU computes.
    #[must_use]
    pub fn gpu_choice(&self) -> Option<&GpuChoice> {
        self.execution.gpu().map(|gpu| &gpu.choice)
    }

    /// Returns `true` if runs on `backend` compute on Tensor Cores. The [`Report`](crate::Report) of a run contains the run's
    /// back end. A guard may refuse blocks of rows ([`Workspace::refused_blocks`](crate::Workspace::refused_blocks)).
    #[must_use]
    pub fn on_tensor_cores(&self, backend: Backend) -> bool {
        matches!(self.of(backend), DevicePlan::Gpu(gpu) if gpu.split.is_some())
    }

    /// Returns the error certificate of runs on the plan's main back end, [`Plan::backend`].
    #[must_use]
    pub fn certificate(&self) -> Certificate {
        self.certificate_of(self.backend())
    }

    /// Returns the error certificate of runs on `backend`. The [`Report`](crate::Report) of a run contains the run's
    /// back end.
    #[must_use]
    pub fn certificate_of(&self, backend: Backend) -> Certificate {
        let executed = match self.of(backend) {
            DevicePlan::Cpu(cpu) => cpu.executed(),
            DevicePlan::Gpu(gpu) => gpu.executed(),
        };
        Certificate::new(self.problem.spec().dtype, self.problem.keys(), executed)
    }

    /// Returns the size in bytes of a workspace that also has room for calls that output states or have no output
    /// tensor. On a GPU, this size is larger than [`Plan::workspace_bytes`] if the keys are not divided.
    #[must_use]
    pub fn state_workspace_bytes(&self) -> usize {
        match &self.execution {
            Execution::Cpu(cpu) => cpu.layout.bytes(),
            Execution::Gpu { gpu, .. } => gpu.bytes_with_states(),
        }
    }
}
