//! Options of a plan.

use elsa_core::argument::ArgumentError;
use elsa_core::attention::plan::{Division, Method, Options};
use elsa_core::attention::traversal::{Schedule, Skip};

/// Options of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlanOptions {
    /// The method that computes the output.
    pub method: Method,
    /// Number of keys in a block on the CPU: 64, 128 or 256. Ignored on a GPU.
    pub block: usize,
    /// Largest workspace, in bytes; `None` is unlimited. On a GPU the workspace holds partial states and tables;
    /// the staging of host tensors is reported separately ([`Plan::staging_bytes`](crate::Plan::staging_bytes)).
    pub budget: Option<usize>,
    /// Whether all threads take part, however small the problem. Otherwise a thread takes part only if its work
    /// outweighs the cost of waking it. This changes no bit of the answer.
    pub all_workers: bool,
    /// Whether a GPU may sum short chains of f16 products in f16, if it has a kernel for that. The scores of f16
    /// inputs are then faster and less accurate, as the certificate's
    /// [`half_chain`](elsa_core::attention::certificate::Executed::half_chain) states, and a sum beyond the range
    /// of f16 makes its row NaN. Bits then also depend on whether the rows of keys and values lie at multiples of 16
    /// bytes. Inputs of other types are unaffected.
    pub half_scores: bool,
    /// Whether runs measure their tensors, so that [`Workspace::certified`](crate::Workspace::certified) says how wrong the
    /// answer of the last one may be. This changes no bit of the answer. The workspace is a little larger.
    pub certify: bool,
    /// The kernel and the number of splits on a GPU, one of [`Engine::divisions`](crate::Engine::divisions), in place of the
    /// tuned file's and the chooser's. Ignored on the CPU.
    pub division: Option<Division>,
    /// How a run goes over the keys. Any schedule but the exact one and [`Schedule::within`] is computed by the CPU, tile by
    /// tile, and rows that do not pass its guard by the exact schedule. The norm gate, on the exact schedule or inside an error
    /// budget, is the CPU kernels' own: it is decided for each tile, by norms, by what masks and biases add to its scores and by
    /// the magnitude of values, and leaves the bits of tiles that do not pass it as they are. Which rows form a tile depends on the instruction set and, within a small
    /// `budget`, on the workspace, and on a GPU on its kernel: where rows vote on what is left out, so do the bits of the answer.
    /// They depend neither on the number of threads nor on repetition.
    pub schedule: Schedule,
    /// The largest share `E` of its weights that a row may leave out, between 0 and 1: blocks of keys whose values are then
    /// not read. The answer is the average of the values over the keys that were kept, log-sum-exp is that of all keys, and
    /// [`Workspace::traversed`](crate::Workspace::traversed) says what each row left out. Where a mask or a bias adds numbers to
    /// the scores of at least [`LEAST_QUERIES`](elsa_core::attention::traversal::LEAST_QUERIES) queries, a CPU also leaves blocks
    /// out before a product of them is computed, by those numbers, by norms, and by what the key on a row's diagonal weighs at
    /// least; what it says is left out is then an upper bound, and
    /// so is log-sum-exp, too large by at most `−ln(1 − E)`. It is short for
    /// [`Skip::Budget`] in `schedule`. What is said there of tiles and bits holds.
    pub error_budget: Option<f32>,
}

impl PlanOptions {
    /// Whether runs go by another schedule than the exact one, or within a budget, so that
    /// [`Workspace::traversed`](crate::Workspace::traversed) tells what they left out.
    #[must_use]
    pub fn traverses(&self) -> bool {
        self.error_budget.is_some() || !self.schedule.is_exact()
    }

    /// The schedule, with the error budget.
    ///
    /// # Errors
    /// Returns an error if a number of the schedule is out of bounds, if it leaves keys out by another rule than the budget,
    /// or if the method is math.
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
