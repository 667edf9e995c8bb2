//! Report of the blocks that a run under a schedule skipped, as `elsa run` and `elsa verify` print it.

use crate::oracle::value;
use crate::report::count;
use elsa_core::attention::traversal::{Shares, Skip, TraversalReport};
use elsa_core::attention::{Inputs, Problem};
use elsa_runtime::Traversed;
use serde::Serialize;
use std::fmt;

/// Report of the blocks that a run under a schedule skipped.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LeftOut {
    /// The published name of the schedule.
    pub schedule: &'static str,
    /// Error budget `E` of the schedule, if it has one.
    pub error_budget: Option<f32>,
    /// Threshold λ of the schedule, if it has one.
    pub lambda: Option<f32>,
    /// Number of rows and number of keys in a block.
    pub tile: [usize; 2],
    /// Largest share of skipped weights in a row: `D / (S + D)`. `S` is the sum of the computed weights, and `D` is the
    /// sum of the skipped weights.
    pub worst: f64,
    /// Share of skipped weights that at most one row in a hundred exceeds.
    pub p99: f64,
    /// Share of skipped weights in a row, averaged over the rows.
    pub mean: f64,
    /// Largest difference between two finite values in the same channel of a head and a sequence.
    pub value_spread: f64,
    /// Bound on the error that skipped blocks cause in an element of the output, excluding rounding: `worst` times
    /// `value_spread`.
    pub lost_at_most: f64,
    /// Share of the blocks that were skipped completely.
    pub block_sparsity: f64,
    /// Share of the blocks that were skipped before any of their products was computed. If this share is not zero, the
    /// sum of the skipped weights and the log-sum-exp are upper bounds.
    pub unseen: f64,
    /// Share of the pairs of a row and a block in which the row skipped the block.
    pub row_sparsity: f64,
    /// Share of the computed blocks in which no row was rescaled; `None` for runs on a GPU, which does not count these
    /// blocks.
    pub rescale_skip_rate: Option<f64>,
    /// Number of rows of the run.
    pub rows: u64,
    /// Number of rows that the guard of the schedule did not accept, and that were therefore computed again under the
    /// exact schedule.
    pub recomputed: u64,
    /// Number of recomputed rows whose largest score was in a skipped block.
    pub lost_maximum: u64,
    /// Number of rows whose reference was zero because the norm gate was open. The reference of a row is the number
    /// that is subtracted from its scores.
    pub gated: u64,
}

impl LeftOut {
    /// Summarizes `traversed` for a run of `problem`.
    #[must_use]
    pub fn of(traversed: &Traversed<'_>, problem: &Problem, inputs: &Inputs<'_>) -> LeftOut {
        let Traversed { schedule, tile, report, shares, .. } = traversed;
        let Shares { worst, p99, mean } = *shares;
        let TraversalReport { accepted, recomputed, lost_maximum, gated, .. } = *report;
        let (error_budget, lambda) = match schedule.skip {
            Skip::Never => (None, None),
            Skip::Budget(budget) => (Some(budget), None),
            Skip::Blocks(lambda) | Skip::Rows(lambda) => (None, Some(lambda)),
        };
        let value_spread = spread(problem, inputs);
        LeftOut {
            schedule: schedule.name(),
            error_budget,
            lambda,
            tile: [tile.rows, tile.keys],
            worst,
            p99,
            mean,
            value_spread,
            lost_at_most: worst * value_spread,
            block_sparsity: report.block_sparsity(),
            unseen: report.unseen_share(),
            row_sparsity: report.row_sparsity(),
            rescale_skip_rate: traversed.counts_moves.then(|| report.rescale_skip_rate()),
            rows: accepted + recomputed,
            recomputed,
            lost_maximum,
            gated,
        }
    }
}

impl LeftOut {
    /// Returns all numbers of the report on one line.
    #[must_use]
    pub fn details(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_details(&mut text);
        text
    }

    fn write_details(&self, f: &mut impl fmt::Write) -> fmt::Result {
        write!(f, "schedule {}", self.schedule)?;
        if let Some(budget) = self.error_budget {
            write!(f, ", E {budget:e}")?;
        }
        if let Some(lambda) = self.lambda {
            write!(f, ", lambda {lambda:e}")?;
        }
        let [rows, keys] = self.tile;
        write!(
            f,
            ": D/(S+D) worst {:.2e}, p99 {:.2e}, mean {:.2e}; spread of V {:.3}, so at most {:.2e} of an element; left out \
             {:.1} % of blocks of {rows} x {keys}, {:.1} % of their rows; ",
            self.worst,
            self.p99,
            self.mean,
            self.value_spread,
            self.lost_at_most,
            self.block_sparsity * 100.0,
            self.row_sparsity * 100.0,
        )?;
        if self.unseen > 0.0 {
            write!(
                f,
                "{:.1} % of blocks before their first product, whose weights are bounded from above; ",
                self.unseen * 100.0
            )?;
        }
        if let Some(rate) = self.rescale_skip_rate {
            write!(f, "rescale skipped in {:.1} % of the others; ", rate * 100.0)?;
        }
        write!(
            f,
            "{} of {} rows computed again, {} of them had lost their largest score",
            self.recomputed, self.rows, self.lost_maximum,
        )?;
        if self.gated > 0 {
            write!(f, "; {} by the norm gate", count(self.gated, "row"))?;
        }
        Ok(())
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.worst == 0.0 {
            return f.write_str("nothing was left out");
        }
        write!(
            f,
            "left out: {:.1} % of the blocks of keys, with at most {:.1e} of the weights of a row; this changes no \
             number of the output by more than {:.1e}",
            self.row_sparsity * 100.0,
            self.worst,
            self.lost_at_most
        )
    }
}

/// Returns the largest difference between two finite values in the same channel of a head and a sequence.
#[must_use]
pub fn spread(problem: &Problem, inputs: &Inputs<'_>) -> f64 {
    let mut most = 0.0;
    for s in 0..problem.sequences() {
        let sequence = problem.sequence(&inputs.lengths, s);
        for head in 0..problem.kv_heads() {
            for x in 0..problem.value_dim() {
                let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
                for j in 0..sequence.valid {
                    let (elements, at) = value(problem, inputs, &sequence, head, j);
                    let v = f64::from(elements.get(at + x));
                    if v.is_finite() {
                        (low, high) = (low.min(v), high.max(v));
                    }
                }
                most = f64::max(most, high - low);
            }
        }
    }
    most
}
