//! Plans of series, their workspaces, and bound calls.

use super::convolution::{Convolution, ConvolutionOptions};
use super::operator::{Place, SeriesOperator};
use super::recurrence::{Recurrence, RecurrenceOptions};
use super::selective::{Selective, SelectiveOptions};
use super::spectrum::Transforms;
use crate::backend::Backend;
use crate::cpu::memory::Memory;
use crate::engine::{Engine, Fallback};
use crate::error::{BindError, PlanError, RunError, WarmError};
use crate::report::{Reason, Report};
use crate::workspace::check_lent;
use elsa_core::attention::plan::ChooseError;
use elsa_core::series::convolution::Method;
use elsa_core::series::plan::{
    Options, SeriesChoice, SeriesLayout, choose_convolution, choose_recurrence, choose_selective, method,
};
use elsa_core::series::{convolution, recurrence, selective};
use elsa_kernels::registry;
use elsa_kernels::series::SeriesKernel;
use std::marker::PhantomData;
use std::sync::Arc;

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
    /// Why a GPU does not compute, if one was to.
    refusal: Option<Arc<PlanError>>,
}

/// A plan of a recurrence of first order.
pub type RecurrencePlan = SeriesPlan<Recurrence>;
/// A plan of a selective scan.
pub type SelectivePlan = SeriesPlan<Selective>;
/// A plan of a causal convolution.
pub type ConvolutionPlan = SeriesPlan<Convolution>;
/// The memory in which the runs of plans of recurrences work.
pub type RecurrenceWorkspace = SeriesWorkspace<Recurrence>;
/// The memory in which the runs of plans of selective scans work.
pub type SelectiveWorkspace = SeriesWorkspace<Selective>;
/// The memory in which the runs of plans of convolutions work.
pub type ConvolutionWorkspace = SeriesWorkspace<Convolution>;

impl Engine {
    /// The kernels of series of the engine's CPU, and why no GPU computes.
    fn series_kernel(
        &self,
        operator: &'static str,
    ) -> Result<(&'static SeriesKernel, Option<Arc<PlanError>>), PlanError> {
        let refusal = match (self.gpu(), self.fallback()) {
            (Some(_), Fallback::Fail) => return Err(PlanError::NotOnGpu { operator }),
            (Some(_), Fallback::Cpu) => Some(PlanError::NotOnGpu { operator }),
            (None, _) => self.absence().cloned().map(PlanError::Device),
        };
        let kernel = registry::series_of(self.cpu()).ok_or(ChooseError::NoKernel)?;
        Ok((kernel, refusal.map(Arc::new)))
    }

    /// Creates a plan for a recurrence of first order, `h_t = a_t h_{t−1} + b_t` per channel. The CPU computes it, also for an
    /// engine whose GPU computes, as [`Report::fallback`] says.
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
        let (kernel, refusal) = self.series_kernel("recurrence")?;
        let RecurrenceOptions { budget, all_workers, parts } = *options;
        let options = Options { budget, workers: self.threads(), all_workers, parts };
        let (choice, layout) = choose_recurrence(problem, &kernel.spec, &options)?;
        let operator = Recurrence { problem: *problem };
        Ok(SeriesPlan { engine: self.clone(), operator, kernel, choice, layout, refusal })
    }

    /// Creates a plan for a selective scan, as Mamba has it. The CPU computes it, also for an engine whose GPU computes, as
    /// [`Report::fallback`] says.
    ///
    /// # Errors
    /// Returns an error if the smallest workspace exceeds the budget or overflows. With [`Fallback::Fail`] also if a GPU
    /// computes, which does not have this operator.
    pub fn selective_plan(
        &self,
        problem: &selective::Problem,
        options: &SelectiveOptions,
    ) -> Result<SelectivePlan, PlanError> {
        let (kernel, refusal) = self.series_kernel("selective")?;
        let SelectiveOptions { budget, all_workers } = *options;
        let options = Options { budget, workers: self.threads(), all_workers, parts: None };
        let (choice, layout) = choose_selective(problem, &kernel.spec, &options)?;
        let operator = Selective { problem: *problem };
        Ok(SeriesPlan { engine: self.clone(), operator, kernel, choice, layout, refusal })
    }

    /// Creates a plan for a causal convolution of each channel, which linear attention with a relative decay is. The CPU
    /// computes it, also for an engine whose GPU computes, as [`Report::fallback`] says.
    ///
    /// # Errors
    /// Returns an error if the smallest workspace exceeds the budget or overflows. With [`Fallback::Fail`] also if a GPU
    /// computes, which does not have this operator.
    pub fn convolution_plan(
        &self,
        problem: &convolution::Problem,
        options: &ConvolutionOptions,
    ) -> Result<ConvolutionPlan, PlanError> {
        let (kernel, refusal) = self.series_kernel("convolution")?;
        let by = options.method.unwrap_or_else(|| method(problem, &kernel.spec));
        let transforms = match by {
            Method::Direct => None,
            Method::Fft => {
                let length = convolution::fft_length(problem.tokens(), problem.taps());
                let needed = length.saturating_mul(Transforms::BYTES);
                Some(Transforms::new(length).ok_or(ChooseError::Memory { needed })?)
            }
        };
        let ConvolutionOptions { budget, all_workers, .. } = *options;
        let options = Options { budget, workers: self.threads(), all_workers, parts: None };
        let scratch = transforms.as_ref().map_or(0, Transforms::scratch);
        let (choice, layout) = choose_convolution(problem, &kernel.spec, &options, by, scratch)?;
        let operator = Convolution { problem: *problem, transforms };
        Ok(SeriesPlan { engine: self.clone(), operator, kernel, choice, layout, refusal })
    }
}

/// The memory in which the runs of plans of an operator work. A workspace serves one run at a time.
#[derive(Debug)]
pub struct SeriesWorkspace<O> {
    memory: Memory,
    of: PhantomData<fn(O)>,
}

impl<O> SeriesWorkspace<O> {
    /// Allocates one workspace for several plans, as large as the most demanding of them needs. Runs of any of them may use
    /// it, one at a time.
    ///
    /// # Errors
    /// Returns an error if there is no plan, or if the memory is not available.
    pub fn shared(plans: &[&SeriesPlan<O>]) -> Result<SeriesWorkspace<O>, PlanError> {
        let layouts = plans.iter().map(|plan| &plan.layout);
        let layout = layouts.max_by_key(|layout| layout.floats()).ok_or(PlanError::NoPlan)?;
        let memory = Memory::allocate(layout.floats());
        let memory = memory.ok_or(ChooseError::Memory { needed: layout.bytes() })?;
        Ok(SeriesWorkspace { memory, of: PhantomData })
    }
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

    /// The back end that computes.
    #[must_use]
    pub fn backend(&self) -> Backend {
        Backend::Cpu(self.engine.cpu())
    }

    /// Why a GPU does not compute: the requested one is missing, or it does not have the operator. `None` if there is none and
    /// none was requested.
    #[must_use]
    pub fn refusal(&self) -> Option<&PlanError> {
        self.refusal.as_deref()
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

    /// Bytes of device memory that hold copies of host tensors during a run; zero, since the CPU computes.
    #[must_use]
    pub fn staging_bytes(&self) -> usize {
        0
    }

    /// Allocates a workspace.
    ///
    /// # Errors
    /// Returns an error if the memory is not available.
    pub fn workspace(&self) -> Result<SeriesWorkspace<O>, PlanError> {
        SeriesWorkspace::shared(&[self])
    }

    /// Creates a workspace in the caller's memory, of at least [`SeriesPlan::workspace_bytes`] bytes and any alignment. The
    /// workspace is the first [`SeriesPlan::workspace_bytes`] bytes, which are set to zero; the rest is left alone.
    ///
    /// # Errors
    /// Returns an error if the memory is null, too short, or longer than memory can be.
    ///
    /// # Safety
    /// - *lent*: `memory` is writable for `bytes` bytes, and nobody else uses it until the workspace is dropped.
    pub unsafe fn workspace_in(
        &self,
        memory: *mut u8,
        bytes: usize,
    ) -> Result<SeriesWorkspace<O>, PlanError> {
        let needed = self.workspace_bytes();
        check_lent(memory, bytes, needed)?;
        // SAFETY: *lent*.
        let memory = unsafe { Memory::lent(memory, bytes, self.layout.floats()) };
        Ok(SeriesWorkspace { memory: memory.ok_or(ChooseError::Memory { needed })?, of: PhantomData })
    }

    /// Wakes every worker, and touches what the workspace needs, so that the first run in it takes what later ones take. No
    /// tensor is used; a run allocates nothing in any case.
    ///
    /// # Errors
    /// Returns an error if a worker panicked, or if the workspace is too small, because it is another plan's.
    pub fn warm(&self, workspace: &mut SeriesWorkspace<O>) -> Result<(), WarmError> {
        let base = self.place(workspace)?;
        // SAFETY: as many values as the layout has lie there (`place`), and the workspace is borrowed exclusively. A run writes
        // what it reads there.
        unsafe { base.write_bytes(0, self.layout.total) };
        Ok(self.engine.pool().run(self.engine.threads(), &|_| ())?)
    }

    /// Where a workspace begins, which has room for the layout.
    fn place(&self, workspace: &mut SeriesWorkspace<O>) -> Result<*mut f32, BindError> {
        let (base, room) = workspace.memory.lines();
        if room < self.layout.total {
            return Err(BindError::Room {
                found: workspace.memory.len() * size_of::<f32>(),
                needed: self.layout.bytes(),
            });
        }
        Ok(base)
    }

    /// Binds the tensors of a call. Checks them against the problem, writes no output and allocates nothing.
    ///
    /// # Errors
    /// Returns an error if the data do not match the problem, or if the workspace is too small, because it is another plan's.
    pub fn bind<'a>(
        &'a self,
        inputs: O::Inputs<'a>,
        outputs: O::Outputs<'a>,
        workspace: &'a mut SeriesWorkspace<O>,
    ) -> Result<SeriesBound<'a, O>, BindError> {
        let call = self.operator.call(inputs, outputs)?;
        let base = self.place(workspace)?;
        Ok(SeriesBound { plan: self, call, base })
    }
}

impl<O: SeriesOperator> SeriesBound<'_, O> {
    /// Computes the outputs and waits for them. Allocates nothing.
    ///
    /// # Errors
    /// Returns an error if a worker panicked. The outputs are then incomplete.
    pub fn run(&mut self) -> Result<Report, RunError> {
        let SeriesPlan { engine, kernel, choice, layout, refusal, .. } = self.plan;
        let place = Place { kernel, choice, layout, base: self.base };
        // SAFETY: the engine's CPU has the instruction set of its kernel. The workspace has room for the layout from its first
        // line on (`bind`), is initialised, and is borrowed exclusively.
        unsafe { O::run(&self.call, &place, engine.pool())? };
        let workers = choice.workers.min(engine.threads());
        let (backend, fallback) = (self.plan.backend(), refusal.clone().map(Reason::Plan));
        Ok(Report { backend, workers, copied: 0, fallback })
    }
}
