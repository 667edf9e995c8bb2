//! Options of a plan.

use elsa_core::argument::ArgumentError;
use elsa_core::attention::plan::{Division, Method, Options};
use elsa_core::attention::traversal::{Schedule, Skip};
use elsa_core::setters;

/// Options of a plan.
///
/// ```
/// # use elsa_runtime::PlanOptions;
/// let options = PlanOptions::default().certify(true).budget(64 << 20);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct PlanOptions {
    /// The method that computes the output.
    pub method: Method,
    /// Number of keys in a block on the CPU: 64, 128 or 256. Ignored on a GPU.
    pub block: usize,
    /// Largest workspace, in bytes; `None` is unlimited. On a GPU the workspace holds partial states and tables; the staging
    /// of host tensors is reported separately ([`Plan::staging_bytes`](crate::Plan::staging_bytes)).
    pub budget: Option<usize>,
    /// `true` if all threads take part, even in a small problem. Otherwise a thread takes part only if its work outweighs the
    /// cost of waking it. This changes no bit of the answer.
    pub all_workers: bool,
    /// `true` if a GPU may sum short chains of f16 products in f16, if it has a kernel for that. The scores of f16 inputs are
    /// then faster and less accurate, as the certificate's
    /// [`half_chain`](elsa_core::attention::certificate::Executed::half_chain) states, and a sum beyond the range of f16
    /// makes its row NaN. Bits then also depend on whether the rows of keys and values are at multiples of 16 bytes. Inputs
    /// of other types are unaffected.
    pub half_scores: bool,
    /// `true` if runs measure their tensors, so that [`Workspace::certified`](crate::Workspace::certified) can bound the
    /// error of the last answer. This changes no bit of the answer. The workspace is slightly larger.
    pub certify: bool,
    /// The kernel and the number of splits on a GPU, one of [`Engine::divisions`](crate::Engine::divisions), which overrides
    /// the tuned file and the chooser. Ignored on the CPU.
    pub division: Option<Division>,
    /// The schedule of a run. The CPU computes any schedule except the exact one and [`Schedule::within`], tile by tile, and
    /// the exact schedule recomputes rows that do not pass the guard. The CPU kernels themselves implement the norm gate,
    /// with the exact schedule or within an error budget. The gate is decided for each tile, by norms, by the values that
    /// masks and biases add to its scores and by the magnitude of values. Tiles that do not pass it keep their bits. The rows
    /// of a tile depend on the instruction set and, within a small `budget`, on the workspace; on a GPU they depend on its
    /// kernel. If rows vote on skipping, the bits of the answer depend on these as well. They do not depend on the number of
    /// threads, and they are reproducible.
    pub schedule: Schedule,
    /// Largest share `E` of its weights that a row may skip, between 0 and 1: the values of skipped blocks of keys are not
    /// read. The answer is the average of the values over the remaining keys, log-sum-exp is that of all keys, and
    /// [`Workspace::traversed`](crate::Workspace::traversed) reports what each row skipped. If a mask or a bias adds numbers
    /// to the scores of at least [`LEAST_QUERIES`](elsa_core::attention::traversal::LEAST_QUERIES) queries, a CPU also skips
    /// blocks before any of their products is computed. It decides by those numbers, by norms, and by the least weight of the
    /// key on a row's diagonal. The reported share is then an upper bound, and so is log-sum-exp, too large by at most
    /// `−ln(1 − E)`. This option is short for [`Skip::Budget`] in `schedule`, and the remarks on tiles and bits there apply.
    pub error_budget: Option<f32>,
}

setters! {
    PlanOptions:
    method: Method, block: usize, all_workers: bool, half_scores: bool, certify: bool, schedule: Schedule;
    optional budget: usize, division: Division, error_budget: f32,
}

impl PlanOptions {
    /// Returns `true` if runs use another schedule than the exact one, or a budget, so that
    /// [`Workspace::traversed`](crate::Workspace::traversed) reports their skipped keys.
    #[must_use]
    pub fn traverses(&self) -> bool {
        self.error_budget.is_some() || !self.schedule.is_exact()
    }

    /// Returns the schedule, including the error budget.
    ///
    /// # Errors
    /// Returns an error if a number of the schedule is out of bounds, if it skips keys by another rule in addition to the
    /// budget, or if the method is math.
    pub(crate) fn traversal(&self) -> Result<Schedule, ArgumentError> {
        let mut schedule = self.schedule;
        let mut argument = "schedule";
        if let Some(budget) = self.error_budget {
            argument = "error_budget";
            let other = match schedule.skip {
                Skip::Never => None,
                Skip::Budget(_) => Some("schedule"),
                Skip::Blocks(_) | Skip::Rows(_) => Some("lambda"),
            };
            if let Some(other) = other {
                return Err(ArgumentError::Conflict { argument, other });
            }
            schedule.skip = Skip::Budget(budget);
        }
        schedule.check()?;
        if self.method == Method::Math && !schedule.is_exact() {
            return Err(ArgumentError::Conflict { argument, other: "method math" });
        }
        Ok(schedule)
    }
}

impl Default for PlanOptions {
    fn default() -> Self {
        let Options { method, block, budget, all_workers, certify, schedule, .. } = Options::default();
        PlanOptions {
            method,
            block,
            budget,
            all_workers,
            half_scores: false,
            certify,
            division: None,
            schedule,
            error_budget: None,
        }
    }
}
