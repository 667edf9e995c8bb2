//! Plans recurrences, selective scans and convolutions, and reports the properties of such plans.

use super::cpu::plan::{CpuPlan, kernel};
use super::cpu::{OnCpu, Transforms};
use super::cuda::plan::{GpuPlan, OnGpu};
use super::cuda::{self, SeriesGpuChoice};
use super::operators::{ConvolutionPlan, RecurrencePlan, SelectivePlan};
use super::options::{ConvolutionOptions, RecurrenceOptions, SelectiveOptions};
use crate::backend::Backend;
use crate::engine::Engine;
use crate::error::PlanError;
use crate::operator::Operator;
use crate::plan::{DevicePlan, Plan};
use elsa_core::plan::ChooseError;
use elsa_core::series::bound::Precision;
use elsa_core::series::convolution::{self, Method};
use elsa_core::series::plan::{
    Options, SeriesChoice, choose_convolution, choose_recurrence, choose_selective, method,
};
use elsa_core::series::{recurrence, selective};
use elsa_kernels::cuda::series::PRECISION;

/// Properties of a run that determine its error bound and its bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SeriesDivision {
    /// Number of parts into which the tokens are divided; one for a single pass.
    pub parts: usize,
    /// Method of a convolution; irrelevant for other operators.
    pub method: Method,
    /// Length of the transforms of a convolution by FFT; zero for other methods and other operators.
    pub fft_length: usize,
    /// Accuracy of the elementary functions in the kernel.
    pub precision: Precision,
}

impl Engine {
    /// Creates a plan for a recurrence of first order, `h_t = a_t h_{t−1} + b_t` per channel. With
    /// [`Fallback::Cpu`](crate::Fallback::Cpu) a plan for the GPU contains a standby plan for the CPU.
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
    /// plan.run(inputs, outputs, &mut plan.workspace()?)?;
    /// assert_eq!(h, [1.0, 2.5, 4.25, 6.125]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the number of parts is outside its allowed range, or if the smallest workspace exceeds the
    /// budget or overflows. With [`Fallback::Fail`](crate::Fallback::Fail), also returns an error if a size exceeds the
    /// limits of the GPU's kernel, or if the GPU fails.
    pub fn recurrence_plan(
        &self,
        problem: &recurrence::Problem,
        options: &RecurrenceOptions,
    ) -> Result<RecurrencePlan, PlanError> {
        let cpu = || {
            let kernel = kernel(self)?;
            let RecurrenceOptions { budget, all_workers, parts } = *options;
            let options = Options { budget, workers: self.threads(), all_workers, parts };
            Ok(CpuPlan::new(kernel, choose_recurrence(problem, &kernel.spec, &options)?, None))
        };
        Plan::new(
            self,
            problem,
            |gpu| GpuPlan::new(gpu, cuda::choose_recurrence(problem, gpu.profile().sms, options)?),
            cpu,
        )
    }

    /// Creates a plan for a selective scan, as in Mamba. With [`Fallback::Cpu`](crate::Fallback::Cpu) a plan for the
    /// GPU contains a standby plan for the CPU. The GPU does not support problems with more than 128 state values per
    /// channel, so the CPU computes these problems.
    ///
    /// # Errors
    /// Returns an error if the smallest workspace exceeds the budget or overflows. With
    /// [`Fallback::Fail`](crate::Fallback::Fail), also returns an error if a size exceeds the limits of the GPU's
    /// kernel, or if the GPU fails.
    pub fn selective_plan(
        &self,
        problem: &selective::Problem,
        options: &SelectiveOptions,
    ) -> Result<SelectivePlan, PlanError> {
        let SelectiveOptions { budget, all_workers, .. } = *options;
        let cpu = || {
            let kernel = kernel(self)?;
            let options = Options { budget, workers: self.threads(), all_workers, parts: None };
            Ok(CpuPlan::new(kernel, choose_selective(problem, &kernel.spec, &options)?, None))
        };
        Plan::new(
            self,
            problem,
            |gpu| GpuPlan::new(gpu, cuda::choose_selective(problem, gpu.profile().sms, options)?),
            cpu,
        )
    }

    /// Creates a plan for a causal convolution of each channel. Such a convolution is linear attention with a relative
    /// decay. With [`Fallback::Cpu`](crate::Fallback::Cpu) a plan for the GPU contains a standby plan for the CPU. The
    /// GPU does not support the FFT, so with a GPU and a standby plan, the CPU computes two kinds of convolutions:
    /// those for which the options request the FFT, and those with more than 16,384 weights per token for which the
    /// options request no method. For these numbers of weights, the FFT on the CPU is faster.
    ///
    /// # Errors
    /// Returns an error if the smallest workspace exceeds the budget or overflows. With
    /// [`Fallback::Fail`](crate::Fallback::Fail), also returns an error if the GPU fails or does not support the
    /// convolution.
    pub fn convolution_plan(
        &self,
        problem: &convolution::Problem,
        options: &ConvolutionOptions,
    ) -> Result<ConvolutionPlan, PlanError> {
        let cpu = || {
            let kernel = kernel(self)?;
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
            let chosen = choose_convolution(problem, &kernel.spec, &options, by, scratch)?;
            Ok(CpuPlan::new(kernel, chosen, transforms))
        };
        Plan::new(
            self,
            problem,
            |gpu| match options.method {
                Some(Method::Fft) => Err(PlanError::NotOnGpu { operator: "convolution by FFT" }),
                _ => GpuPlan::new(gpu, cuda::choose_convolution(problem, options)?),
            },
            cpu,
        )
    }
}

impl<O, P> Plan<O>
where
    P: OnCpu + OnGpu,
    O: Operator<Problem = P, Cpu = CpuPlan<P>, Gpu = GpuPlan<P>>,
{
    /// Returns the properties that determine the error bound and the bits of runs on `backend`. A run states its back
    /// end in its [`Report`](crate::Report).
    #[must_use]
    pub fn division_of(&self, backend: Backend) -> SeriesDivision {
        match self.of(backend) {
            DevicePlan::Cpu(cpu) => {
                let SeriesChoice { parts, method, fft_length, kernel, .. } = cpu.choice;
                SeriesDivision { parts, method, fft_length, precision: kernel.precision }
            }
            DevicePlan::Gpu(gpu) => SeriesDivision {
                parts: gpu.choice.parts,
                method: Method::Direct,
                fft_length: 0,
                precision: PRECISION,
            },
        }
    }

    /// Returns the chooser's decisions for the CPU, if the CPU computes or if the plan has a standby plan for the CPU.
    /// Returns `None` for a GPU plan without a standby plan.
    #[must_use]
    pub fn choice(&self) -> Option<&SeriesChoice> {
        self.execution.cpu().map(|cpu| &cpu.choice)
    }

    /// Returns the chooser's decisions for the GPU; `None` if the CPU computes.
    #[must_use]
    pub fn gpu_choice(&self) -> Option<&SeriesGpuChoice> {
        self.execution.gpu().map(|gpu| &gpu.choice)
    }
}
