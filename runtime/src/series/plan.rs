//! Plans of series, their workspaces, and bound calls.

use super::convolution::{Convolution, ConvolutionOptions};
use super::operator::{Place, SeriesOperator};
use super::recurrence::{Recurrence, RecurrenceOptions};
use super::selective::{Selective, SelectiveOptions};
use super::spectrum::Transforms;
use crate::backend::Backend;
use crate::cpu::memory::Memory;
use crate::engine::{Engine, Fallback};
use crate::error::{BindError, PlanError, RunError};
use elsa_core::attention::plan::ChooseError;
use elsa_core::series::convolution::Method;
use elsa_core::series::plan::{
    Options, SeriesChoice, SeriesLayout, choose_convolution, choose_recurrence, choose_selective, method,
};
use elsa_core::series::{convolution, recurrence, selective};
use elsa_kernels::registry;
use elsa_kernels::series::SeriesKernel;

/// A problem of an operator that treats every channel by itself, with every decision that does not depend on pointers.
/// Created by [`Engine::recurrence_plan`], [`Engine::selective_plan`] and [`Engine::convolution_plan`].
///
/// The bits of a run do not depend on the number of threads, on the sequences beside one in a batch, or on the repetition.
#[derive(Clone, Debug)]
pub struct SeriesPlan<O> {
    engine: Engine,
    operator: O,
    kernel: &'static SeriesKernel,
    choice: SeriesChoice,
    layout: SeriesLayout,
}

/// A plan of a recurrence of first order.
pub type RecurrencePlan = SeriesPlan<Recurrence>;
/// A plan of a selective scan.
pub type SelectivePlan = SeriesPlan<Selective>;
/// A plan of a causal convolution.
pub type ConvolutionPlan = SeriesPlan<Convolution>;

impl Engine {
    /// The kernels of series of the engine's CPU.
    fn series_kernel(&self, operator: &'static str) -> Result<&'static SeriesKernel, PlanError> {
        if self.gpu().is_some() && self.fallback() == Fallback::Fail {
            return Err(PlanError::NotOnGpu { operator });
        }
        Ok(registry::series_of(self.cpu()).ok_or(ChooseError::NoKernel)?)
    }

    /// Creates a plan for a recurrence of first order, `h_t = a_t h_{t−1} + b_t` per channel. The CPU computes it, also for an
    /// engine whose GPU computes, as [`SeriesReport::instead_of`] says.
    ///
    /// ```
    /// use elsa_core::dtype::{Elements, ElementsMut};
    /// use elsa_core::series::{Series, recurrence::{Inputs, Outputs, Spec}};
    /// use elsa_runtime::{Engine, EngineOptions, RecurrenceOptions};
    ///
    /// // One sequence, four tokens, one channel.
    /// let series = Series::tokens_first("b", [1, 4, 1])?;
    /// let problem = Spec::new(series, series, series).check()?;
    /// let engine = Engine::new(&EngineOptions::default())?;
    /// let plan = engine.recurrence_plan(&problem, &RecurrenceOptions::default())?;
    ///
    /// let (a, b, mut h) = ([0.5; 4], [1.0, 2.0, 3.0, 4.0], [0.0; 4]);
    /// let inputs = Inputs { a: Elements::F32(&a), b: Elements::F32(&b), past_state: None };
    /// let outputs = Outputs { out: Some(ElementsMut::F32(&mut h)), present_state: None };
    /// plan.bind(inputs, outputs, &mut plan.workspace()?)?.run()?;
    /// assert_eq!(h, [1.0, 2.5, 4.25, 6.125]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the parts are out of bounds, or if the smallest workspace exceeds the budget or overflows. With
    /// [`Fallback::Fail`] also if a GPU computes, which does not have this operator.
    pub fn recurrence_plan(
        &self,
        problem: &recurrence::Problem,
        options: &RecurrenceOptions,
    ) -> Result<RecurrencePlan, PlanError> {
        let kernel = self.series_kernel("recurrence")?;
        let RecurrenceOptions { budget, all_workers, parts } = *options;
        let options = Options { budget, workers: self.threads(), all_workers, parts };
        let (choice, layout) = choose_recurrence(problem, &kernel.spec, &options)?;
        let operator = Recurrence { problem: *problem };
        Ok(SeriesPlan { engine: self.clone(), operator, kernel, choice, layout })
    }

    /// Creates a plan for a selective scan, as Mamba has it. The CPU computes it, also for an engine whose GPU computes, as
    /// [`SeriesReport::instead_of`] says.
    ///
    /// # Errors
    /// Returns an error if the smallest workspace exceeds the budget or overflows. With [`Fallback::Fail`] also if a GPU
    /// computes, which does not have this operator.
    pub fn selective_plan(
        &self,
        problem: &selective::Problem,
        options: &SelectiveOptions,
    ) -> Result<SelectivePlan, PlanError> {
        let kernel = self.series_kernel("selective")?;
        let SelectiveOptions { budget, all_workers } = *options;
        let options = Options { budget, workers: self.threads(), all_workers, parts: None };
        let (choice, layout) = choose_selective(problem, &kernel.spec, &options)?;
        let operator = Selective { problem: *problem };
        Ok(SeriesPlan { engine: self.clone(), operator, kernel, choice, layout })
    }

    /// Creates a plan for a causal convolution of each channel, which linear attention with a relative decay is. The CPU
    /// computes it, also for an engine whose GPU computes, as [`SeriesReport::instead_of`] says.
    ///
    /// # Errors
    /// Returns an error if the smallest workspace exceeds the budget or overflows. With [`Fallback::Fail`] also if a GPU
    /// computes, which does not have this operator.
    pub fn convolution_plan(
        &self,
        problem: &convolution::Problem,
        options: &ConvolutionOptions,
    ) -> Result<ConvolutionPlan, PlanError> {
        let kernel = self.series_kernel("convolution")?;
        let by = options.method.unwrap_or_else(|| method(problem, &kernel.spec));
        let transforms = match by {
            Method::Direct => None,
            Method::Fft => Some(Transforms::new(convolution::fft_length(problem.tokens(), problem.taps()))),
        };
        let ConvolutionOptions { budget, all_workers, .. } = *options;
        let options = Options { budget, workers: self.threads(), all_workers, parts: None };
        let scratch = transforms.as_ref().map_or(0, Transforms::scratch);
        let (choice, layout) = choose_convolution(problem, &kernel.spec, &options, by, scratch)?;
        let operator = Convolution { problem: *problem, transforms };
        Ok(SeriesPlan { engine: self.clone(), operator, kernel, choice, layout })
    }
}

/// The memory in which the runs of a plan of series work. A workspace serves one run at a time.
#[derive(Debug)]
pub struct SeriesWorkspace {
    memory: Memory,
}

/// A plan of series with the tensors of a call, created by [`SeriesPlan::bind`]. It may run any number of times; each run
/// reads the past states anew.
#[derive(Debug)]
pub struct SeriesBound<'a, O: SeriesOperator + 'a> {
    plan: &'a SeriesPlan<O>,
    call: O::Call<'a>,
    base: *mut f32,
}

// SAFETY: the workspace is borrowed exclusively, and nobody uses the address but a run, which needs the value exclusively.
unsafe impl<'a, O: SeriesOperator + Sync + 'a> Send for SeriesBound<'a, O> where O::Call<'a>: Send {}
// SAFETY: a shared reference gives no access to the workspace.
unsafe impl<'a, O: SeriesOperator + Sync + 'a> Sync for SeriesBound<'a, O> where O::Call<'a>: Sync {}

/// What a run of a plan of series did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeriesReport {
    /// The back end that computed.
    pub backend: Backend,
    /// Number of threads that shared the work.
    pub workers: usize,
    /// The back end of the engine, if it does not have the operator and the CPU computed in its place.
    pub instead_of: Option<Backend>,
}

impl<O: SeriesOperator> SeriesPlan<O> {
    /// The problem of the plan.
    #[must_use]
    pub fn problem(&self) -> &O::Problem {
        self.operator.problem()
    }

    /// The division of the work.
    #[must_use]
    pub fn choice(&self) -> &SeriesChoice {
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
    pub fn workspace(&self) -> Result<SeriesWorkspace, PlanError> {
        let memory = Memory::allocate(self.layout.floats());
        let needed = self.workspace_bytes();
        Ok(SeriesWorkspace { memory: memory.ok_or(ChooseError::Memory { needed })? })
    }

    /// Binds the tensors of a call. Checks them against the problem, writes no output and allocates nothing.
    ///
    /// # Errors
    /// Returns an error if the data do not match the problem, or if the workspace is too small, because it is another plan's.
    pub fn bind<'a>(
        &'a self,
        inputs: O::Inputs<'a>,
        outputs: O::Outputs<'a>,
        workspace: &'a mut SeriesWorkspace,
    ) -> Result<SeriesBound<'a, O>, BindError> {
        let call = self.operator.call(inputs, outputs)?;
        let (base, room) = workspace.memory.lines();
        if room < self.layout.total {
            return Err(BindError::Room {
                found: workspace.memory.len() * size_of::<f32>(),
                needed: self.layout.bytes(),
            });
        }
        Ok(SeriesBound { plan: self, call, base })
    }
}

impl<O: SeriesOperator> SeriesBound<'_, O> {
    /// Computes the outputs and waits for them. Allocates nothing.
    ///
    /// # Errors
    /// Returns an error if a worker panicked. The outputs are then incomplete.
    pub fn run(&mut self) -> Result<SeriesReport, RunError> {
        let SeriesPlan { engine, kernel, choice, layout, .. } = self.plan;
        let place = Place { kernel, choice, layout, base: self.base };
        // SAFETY: the engine's CPU has the instruction set of its kernel. The workspace has room for the layout from its first
        // line on (`bind`), is initialised, and is borrowed exclusively.
        unsafe { O::run(&self.call, &place, engine.pool())? };
        let instead_of = engine.gpu().map(|_| Backend::Cuda);
        let workers = choice.workers.min(engine.threads());
        Ok(SeriesReport { backend: Backend::Cpu(engine.cpu()), workers, instead_of })
    }
}
