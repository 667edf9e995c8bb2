//! The plan of a streamed run.

use super::limits::fixed_memory;
use crate::attention::cpu::plan::CpuPlan;
use crate::attention::cpu::plan::views_of;
use crate::attention::options::PlanOptions;
use crate::backend::Backend;
use crate::cpu::limits::available_memory;
use crate::engine::Engine;
use crate::error::PlanError;
use elsa_core::attention::Problem;
use elsa_core::attention::certificate::Certificate;
use elsa_core::attention::plan::{
    Account, Limits, Method, Options, StreamChoice, StreamOptions as Wanted, UnitSizes, WorkspaceLayout,
    Written, choose_stream,
};
use elsa_core::attention::traversal::Schedule;
use elsa_core::plan::ChooseError;
use elsa_core::setters;
use elsa_kernels::registry;

/// Number of bytes by which the memory that a process uses before a run may differ from one start of the program to the
/// next. The reason is that some pages of a program are not always in memory.
const VARIES: usize = 4 << 20;

/// Options of a streamed run.
///
/// ```
/// # use elsa_runtime::StreamOptions;
/// let options = StreamOptions::new(256 << 20).resumable(true);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct StreamOptions {
    /// Options of the in-memory plan. A stream uses `block`, `all_workers` and `certify`. It ignores the budget and f16
    /// scores, and requires [`Method::Elsa`] and the exact schedule.
    pub plan: PlanOptions,
    /// Outputs that the run writes.
    pub written: Written,
    /// Limit of the process's peak host memory, in bytes.
    pub host_budget: usize,
    /// Limit of device memory, in bytes; `None` sets no limit.
    pub device_budget: Option<usize>,
    /// Length of a chunk, as a multiple of the default length, which is 4,096 keys for blocks of 64 keys (ELSA-Lean's
    /// `η`, appendix I of the paper). Chunks are rounded up to complete segments, and shortened if resident rows need
    /// the memory.
    pub eta: f64,
    /// `true` if another process may resume the run. This reserves 4 MiB of the budget.
    pub resumable: bool,
    /// Sizes of units and chunks in the earlier run that this run resumes; `None` for a new run, for which the planner
    /// chooses the sizes.
    pub sizes: Option<UnitSizes>,
}

setters! {
    StreamOptions:
    plan: PlanOptions, written: Written, host_budget: usize, eta: f64, resumable: bool;
    optional device_budget: usize, sizes: UnitSizes,
}

impl StreamOptions {
    /// Creates options that request only the output, within `host_budget` bytes.
    #[must_use]
    pub fn new(host_budget: usize) -> StreamOptions {
        StreamOptions {
            plan: PlanOptions::default(),
            written: Written { output: true, lse: false, states: false },
            host_budget,
            device_budget: None,
            eta: 1.0,
            resumable: false,
            sizes: None,
        }
    }
}

/// The plan of a streamed run, created by [`Engine::stream`]: the rows that stay in memory, the number of keys per
/// chunk, and an account of every byte.
///
/// ```
/// # use elsa_core::{attention::Spec, dtype::DType, view::View};
/// # use elsa_runtime::{Engine, EngineOptions, StreamOptions};
/// let view = View::bhnd("q", [1, 1, 4096, 64])?;
/// let problem = Spec::new(DType::F32, view, view, view, view).check()?;
/// let engine = Engine::new(&EngineOptions::default())?;
/// let plan = engine.stream(&problem, &StreamOptions::new(256 << 20))?;
/// println!("{} rows stay in memory", plan.resident_rows());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct StreamPlan {
    pub(super) engine: Engine,
    pub(super) problem: Problem,
    pub(super) cpu: CpuPlan,
    pub(super) choice: StreamChoice,
    pub(super) written: Written,
}

impl Engine {
    /// Creates the plan of a streamed run on the CPU. The run computes attention over tensors that may be larger than
    /// memory, with the bits of an in-memory run ([`Engine::plan`]) on the CPU.
    ///
    /// The account starts with the memory that the process uses when the plan is created. A caller that relies on the
    /// budget must not make large allocations between the creation of the plan and the end of its run.
    ///
    /// # Errors
    /// Returns an error if an option is not supported, if the problem appends new keys and values to the past tensors
    /// in place, if the budget exceeds the available memory of the machine, or if even the smallest plan exceeds the
    /// budget.
    pub fn stream(&self, problem: &Problem, options: &StreamOptions) -> Result<StreamPlan, PlanError> {
        self.planned(problem, &self.wanted(problem, options)?)
    }

    /// Converts the options into a request for the planner.
    ///
    /// # Errors
    /// Returns those errors of [`Engine::stream`] that are known before the planner runs.
    pub(super) fn wanted(&self, problem: &Problem, options: &StreamOptions) -> Result<Wanted, PlanError> {
        let refused = |option, allowed| PlanError::NotStreamed { option, allowed };
        if options.plan.method != Method::Elsa {
            return Err(refused("method: math", "elsa"));
        }
        if options.plan.error_budget.is_some() {
            return Err(refused("error_budget", "none"));
        }
        if !options.plan.schedule.is_exact() {
            return Err(refused("schedule", "exact"));
        }
        if problem.spec().append {
            return Err(refused("append", "a past and a present apart"));
        }
        if !(options.eta.is_finite() && options.eta > 0.0) {
            return Err(refused("eta", "a positive finite number"));
        }
        let mut taken = fixed_memory(self.threads());
        if options.resumable && options.sizes.is_none() {
            // This process chooses the sizes. The process that resumes the run may use slightly more memory.
            taken = taken.saturating_add(VARIES);
        }
        if let Some(available) = available_memory()
            && (options.host_budget.saturating_sub(taken) as u64) > available.bytes
        {
            let available = available.bytes.saturating_add(taken as u64);
            return Err(PlanError::Beyond { budget: options.host_budget, available });
        }
        let segments = (options.eta * Wanted::SEGMENTS as f64).ceil().clamp(1.0, 1e9) as usize;
        let gpu = self.profile().gpu;
        Ok(Wanted {
            plan: Options {
                method: Method::Elsa,
                block: options.plan.block,
                budget: None,
                workers: self.threads(),
                all_workers: options.plan.all_workers,
                certify: options.plan.certify,
                schedule: Schedule::EXACT,
                division: None,
            },
            written: options.written,
            segments,
            resident: usize::MAX,
            sizes: options.sizes,
            limits: Limits {
                host: options.host_budget,
                device: options.device_budget,
                one_pool: gpu.is_some_and(|gpu| gpu.integrated),
                fixed: taken,
            },
        })
    }

    /// Lets the planner choose a plan for a request.
    ///
    /// # Errors
    /// Returns an error if even the smallest plan exceeds the budget.
    pub(super) fn planned(&self, problem: &Problem, wanted: &Wanted) -> Result<StreamPlan, PlanError> {
        let kernels = || registry::attention_of(self.cpu());
        let choice = choose_stream(problem, self.profile(), kernels().map(|kernel| &kernel.spec), wanted)?;
        let kernel = kernels().nth(choice.cpu.candidate).ok_or(ChooseError::NoKernel)?;
        let layout = WorkspaceLayout::of(&choice.cpu).ok_or(ChooseError::Memory { needed: usize::MAX })?;
        let cpu = CpuPlan { kernel, choice: choice.cpu, layout, traverses: None, views: views_of(problem) };
        Ok(StreamPlan { engine: self.clone(), problem: *problem, cpu, choice, written: wanted.written })
    }
}

impl StreamPlan {
    /// Returns the problem of the plan.
    #[must_use]
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Returns the planner's choice: the resident rows, and the number of keys per chunk.
    #[must_use]
    pub fn choice(&self) -> &StreamChoice {
        &self.choice
    }

    /// Returns the error certificate of runs of this plan. It equals the certificate of in-memory runs.
    #[must_use]
    pub fn certificate(&self) -> Certificate {
        Certificate::new(self.problem.spec().dtype, self.problem.keys(), self.cpu.executed())
    }

    /// Returns the account, which covers every byte of memory that a run uses.
    #[must_use]
    pub fn account(&self) -> &Account {
        &self.choice.account
    }

    /// Returns the number of query rows whose states stay in memory, summed over heads and sequences.
    #[must_use]
    pub fn resident_rows(&self) -> usize {
        self.choice.sequences * self.choice.heads * self.choice.rows(&self.problem)
    }

    /// Returns the back end that computes: the CPU.
    #[must_use]
    pub fn backend(&self) -> Backend {
        Backend::Cpu(self.engine.cpu())
    }

    /// Returns the name of the attention kernel.
    #[must_use]
    pub fn kernel(&self) -> &'static str {
        self.choice.cpu.kernel.name
    }
}
