//! Options of an attention plan.

use elsa_core::argument::ArgumentError;
use elsa_core::attention::plan::{CpuDivision, Division, Method, Options, TensorCores};
use elsa_core::attention::traversal::{Schedule, Skip};
use elsa_core::setters;

/// Options of an attention plan.
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
    /// Largest workspace, in bytes; `None` sets no limit. On a GPU the workspace contains partial states and tables. It
    /// does not contain staging memory for host tensors. The size of that memory is
    /// [`Plan::staging_bytes`](crate::Plan::staging_bytes).
    pub budget: Option<usize>,
    /// `true` if all threads take part, even in a small problem. Otherwise a thread takes part only if its work
    /// outweighs the cost of waking it. The bits of the output do not change.
    pub all_workers: bool,
    /// `true` if a GPU may sum short chains of f16 products in f16, provided there is a kernel that does so. The scores
    /// of f16 inputs are then computed faster and less accurately; the certificate states the length of the chains as
    /// [`half_chain`](elsa_core::attention::certificate::Executed::half_chain). A sum beyond the range of f16 makes its
    /// row NaN. The bits of the output then also depend on whether the rows of keys and values are aligned to 16 bytes.
    /// Inputs of other types are unaffected.
    pub half_scores: bool,
    /// Use of a GPU's Tensor Cores. With [`TensorCores::Allow`] a plan uses them where they are faster and as exact as f32
    /// products. The bits of the output then also depend on whether rows can be read in pieces of 16 bytes. Only with
    /// [`TensorCores::F16`] are results less accurate, and the certificate states so as
    /// [`one_product`](elsa_core::attention::certificate::Executed::one_product). Ignored on the CPU.
    pub tensor_cores: TensorCores,
    /// `true` if runs measure their tensors, so that [`Workspace::certificate`](crate::Workspace::certificate) can
    /// bound the error of the last output. The workspace is then slightly larger. The bits of the output do not change.
    pub certify: bool,
    /// Kernel and number of splits on a GPU. This is one of the choices of [`Engine::divisions`](crate::Engine::divisions);
    /// `None` leaves the choice to the tuned file or the chooser. Ignored on the CPU.
    pub division: Option<Division>,
    /// Block, tiles that share a block, and workers on the CPU. This is one of the decisions of
    /// [`Engine::cpu_divisions`](crate::Engine::cpu_divisions), and replaces `block` and `all_workers`; `None` leaves
    /// them to the tuned file, to these options and to the chooser. Ignored on a GPU. Only the block changes bits of
    /// the output.
    pub cpu_division: Option<CpuDivision>,
    /// The schedule of a run. The CPU kernels implement the exact schedule and [`Schedule::within`], each with or
    /// without the norm gate. A scalar implementation computes all other schedules tile by tile; rows that do not pass
    /// its guard are recomputed with the exact schedule. Whether a tile passes the norm gate depends on the norms of
    /// queries and keys, on the numbers that masks and biases add to the tile's scores, and on the magnitudes of the
    /// tensor of values. The gate does not change the bits of tiles that do not pass it. On a CPU, the rows that form a
    /// tile depend on the instruction set and, with a small `budget`, on the workspace. On a GPU, they depend on the
    /// kernel. If the rows of a tile vote on skipping a block, the bits of the output also depend on which rows form a
    /// tile. The bits do not depend on the number of threads, and they are reproducible.
    pub schedule: Schedule,
    /// Largest share `E` of a row's weights that may be skipped, between 0 and 1. The values of skipped key blocks are
    /// not read. The output is the average of the values over the remaining keys, log-sum-exp covers all keys, and
    /// [`Workspace::traversed`](crate::Workspace::traversed) reports what each row skipped. If a mask or a bias adds
    /// numbers to the scores of at least [`LEAST_QUERIES`](elsa_core::attention::traversal::LEAST_QUERIES) queries, a
    /// CPU also skips blocks before any product of these blocks is computed. It then decides from those numbers, from
    /// norms, and from the smallest possible weight of the key on each row's diagonal. In this case the reported share is
    /// an upper bound, and log-sum-exp is too large by at most `−ln(1 − E)`. This option is short for [`Skip::Budget`] in
    /// `schedule`. The remarks of `schedule` on tiles and bits apply here.
    pub error_budget: Option<f32>,
}

setters! {
    PlanOptions:
    method: Method, block: usize, all_workers: bool, half_scores: bool, tensor_cores: TensorCores, certify: bool,
    schedule: Schedule;
    optional budget: usize, division: Division, cpu_division: CpuDivision, error_budget: f32,
}

impl PlanOptions {
    /// Returns `true` if runs have an error budget or a schedule other than the exact one, so that
    /// [`Workspace::traversed`](crate::Workspace::traversed) reports their skipped keys.
    #[must_use]
    pub fn traverses(&self) -> bool {
        self.error_budget.is_some() || !self.schedule.is_exact()
    }

    /// Returns the schedule, including the error budget.
    ///
    /// # Errors
    /// Returns an error if a number of the schedule is out of range, if the schedule skips keys by another rule in
    /// addition to the budget, or if the method is math.
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
            tensor_cores: TensorCores::Off,
            certify,
            division: None,
            cpu_division: None,
            schedule,
            error_budget: None,
        }
    }
}
