//! The plan of a streamed run.

use super::limits::fixed;
use crate::attention::cpu::plan::CpuPlan;
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
use elsa_kernels::registry;

/// Bytes by which what a process takes before a run may differ from one start to the next: pages of the program that the
/// system has in memory belong to it.
const VARIES: usize = 1 << 20;

/// Options of a streamed run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamOptions {
    /// Block, whether all threads take part, and whether runs measure their tensors for a certificate
    /// ([`StreamPlan::run_certified`]). Budget and f16 scores have no meaning here, and the method is [`Method::Elsa`].
    pub plan: PlanOptions,
    /// Which outputs are written.
    pub written: Written,
    /// Bytes of the host's memory that the process may have at its peak.
    pub host_budget: usize,
    /// Bytes of the device's memory; `None` is unlimited.
    pub device_budget: Option<usize>,
    /// Length of a chunk, as a multiple of the default of 4,096 keys in blocks of 64 (ELSA-Lean's `η`, appendix I of the
    /// paper). It is rounded up to whole segments, and shorter where rows need the memory.
    pub eta: f64,
    /// Whether another process may go on with the run, for which 1 MiB of the budget is left.
    pub resumable: bool,
    /// Units and chunk of an earlier run, which this one goes on with; `None` has them chosen.
    pub sizes: Option<UnitSizes>,
}

impl StreamOptions {
    /// The output alone, within `host_budget` bytes.
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

/// The plan of a streamed run, created by [`Engine::stream`]: which rows stay in memory, how many keys a chunk has, and an
/// account of every byte.
#[derive(Clone, Debug)]
pub struct StreamPlan {
    pub(super) engine: Engine,
    pub(super) problem: Problem,
    pub(super) cpu: CpuPlan,
    pub(super) choice: StreamChoice,
    pub(super) written: Written,
}

impl Engine {
    /// Creates the plan of a streamed run on the CPU: attention over tensors that may be larger than memory, whose bits
    /// are those of a run in memory ([`Engine::plan`]) on the CPU.
    ///
    /// The account starts with what the process has when the plan is created, so a caller that needs the budget to hold
    /// allocates nothing of size between the plan and the end of its run.
    ///
    /// # Errors
    /// Returns an error if an option is not supported, if the problem appends in place, if the budget is more than the
    /// machine has left, or if even the smallest form exceeds it.
    pub fn stream(&self, problem: &Problem, options: &StreamOptions) -> Result<StreamPlan, PlanError> {
        self.planned(problem, &self.wanted(problem, options)?)
    }

    /// What the options ask of the planner.
    ///
    /// # Errors
    /// Those of [`Engine::stream`] that do not depend on a choice.
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
        let mut taken = fixed(self.threads());
        if options.resumable && options.sizes.is_none() {
            // The process that goes on may have a little more than the one that chooses.
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

    /// The plan that the planner makes of them.
    ///
    /// # Errors
    /// Returns an error if even the smallest form exceeds the budget.
    pub(super) fn planned(&self, problem: &Problem, wanted: &Wanted) -> Result<StreamPlan, PlanError> {
        let kernels = || registry::attention_of(self.cpu());
        let choice = choose_stream(problem, self.profile(), kernels().map(|kernel| &kernel.spec), wanted)?;
        let kernel = kernels().nth(choice.cpu.candidate).ok_or(ChooseError::NoKernel)?;
        let layout = WorkspaceLayout::of(&choice.cpu).ok_or(ChooseError::Memory { needed: usize::MAX })?;
        let cpu = CpuPlan { kernel, choice: choice.cpu, layout, traverses: None };
        Ok(StreamPlan { engine: self.clone(), problem: *problem, cpu, choice, written: wanted.written })
    }
}

impl StreamPlan {
    /// The problem of the plan.
    #[must_use]
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Which rows stay, and how many keys pass at a time.
    #[must_use]
    pub fn choice(&self) -> &StreamChoice {
        &self.choice
    }

    /// The error certificate of runs, which is that of runs in memory.
    #[must_use]
    pub fn certificate(&self) -> Certificate {
        Certificate::new(self.problem.spec().dtype, self.problem.keys(), self.cpu.executed())
    }

    /// Every byte of a run.
    #[must_use]
    pub fn account(&self) -> &Account {
        &self.choice.account
    }

    /// Query rows whose states stay in memory, over heads and sequences.
    #[must_use]
    pub fn resident_rows(&self) -> usize {
        self.choice.sequences * self.choice.heads * self.choice.rows(&self.problem)
    }

    /// The back end that computes.
    #[must_use]
    pub fn backend(&self) -> Backend {
        Backend::Cpu(self.engine.cpu())
    }

    /// Name of the attention kernel.
    #[must_use]
    pub fn kernel(&self) -> &'static str {
        self.choice.cpu.kernel.name
    }
}
