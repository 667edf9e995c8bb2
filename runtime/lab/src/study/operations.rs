//! Operations per weight: the article's table 1 and figure 1 for the kernels of this library.
//!
//! A count is the number of vector operations that an instruction set executes per vector of weights. The operations
//! are counted in the source of the kernels (`elsa_kernels::attention`):
//!
//! ```text
//! d   multiply-adds   products with keys           d_v multiply-adds   products with values
//! 1   maximum         largest score of the row     1   comparison      the weight ends at the floor
//! 1   subtraction     of the reference             1   addition        sum of weights
//!     exponential     AVX-512 7: reduction, 5 multiply-adds, scaling
//!                     AVX2   10: 3 for the integer part, 5 multiply-adds, a shift, a product
//!                     NEON   12: 2 for the integer part, 6 of the polynomial in pairs, 2 copies, 2 for the power
//! ```
//!
//! Loads and stores are not counted, because they accompany multiply-adds. Operations that occur once per row of a
//! block are not counted either.

use elsa_core::attention::traversal::{First, Schedule, Skip, TraversalReport};

/// An instruction set and the cost of its exponential.
#[derive(Clone, Copy, Debug)]
pub struct Isa {
    /// Name of the instruction set.
    pub name: &'static str,
    /// Number of vector operations per vector of exponentials.
    pub exponential: f64,
}

/// Instruction sets for which the library has kernels.
pub const ISAS: [Isa; 3] = [
    Isa { name: "AVX-512", exponential: 7.0 },
    Isa { name: "AVX2", exponential: 10.0 },
    Isa { name: "NEON", exponential: 12.0 },
];

/// Number of vector operations per vector of weights, by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Operations {
    /// Operations for the products of queries with keys.
    pub keys: f64,
    /// Operations for the scores of block representatives, which determine the first reference.
    pub proxies: f64,
    /// Operations to search for the largest score.
    pub maximum: f64,
    /// Operations to compare the weight with the floor.
    pub floor: f64,
    /// Operations to subtract the reference.
    pub subtraction: f64,
    /// Operations for the exponential of the score.
    pub exponential: f64,
    /// Operations to add the weight to the sum of weights.
    pub sum: f64,
    /// Operations to decide whether a block fits the error budget.
    pub vote: f64,
    /// Operations to rescale sums.
    pub rescale: f64,
    /// Operations for the products of weights with values.
    pub values: f64,
}

/// Names of the purposes in [`Operations`], in the order of [`Operations::parts`].
pub const PARTS: [&str; 10] = [
    "products with keys (MUL, QKᵀ)",
    "representatives of blocks",
    "largest score (MAX)",
    "floor of the weight",
    "subtraction (SUB)",
    "exponential (EXP)",
    "sum (SUM)",
    "vote on the budget",
    "rescale of sums (MAD, MUL)",
    "products with values (PV)",
];

impl Operations {
    /// Counts the operations of the exact kernel.
    #[must_use]
    pub fn exact(isa: Isa, d: usize, dv: usize) -> Operations {
        Operations {
            keys: d as f64,
            maximum: 1.0,
            floor: 1.0,
            subtraction: 1.0,
            exponential: isa.exponential,
            sum: 1.0,
            values: dv as f64,
            ..Operations::default()
        }
    }

    /// Counts the operations of a run under `schedule`, in tiles of `rows` rows and `keys` keys. The counts are means
    /// over all weights of the run that `report` describes.
    #[must_use]
    pub fn of(
        isa: Isa,
        [d, dv]: [usize; 2],
        schedule: &Schedule,
        [rows, keys]: [usize; 2],
        report: &TraversalReport,
    ) -> Operations {
        let of = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
        let skipped = report.row_sparsity();
        let sought = of(report.sought_row_blocks, report.row_blocks);
        let rescaled = of(report.rescaled_row_blocks, report.row_blocks);
        let (d, dv, per_key) = (d as f64, dv as f64, 1.0 / keys as f64);
        // Blocks that λ skips are skipped before their weights are computed.
        let weighed = match schedule.skip {
            Skip::Blocks(_) | Skip::Rows(_) => 1.0 - skipped,
            Skip::Never | Skip::Budget(_) => 1.0,
        };
        let gated = of(report.gated, report.accepted + report.recomputed);
        let proxies = match schedule.first {
            First::None => 0.0,
            First::Proxy { queries, block, .. } => {
                let shared = if queries.summary().is_some() { rows as f64 } else { 1.0 };
                d / block.map_or(keys as f64, |block| block as f64) / shared
            }
        };
        let exact = Operations::exact(isa, 0, 0);
        Operations {
            keys: d,
            proxies: proxies * (1.0 - gated),
            maximum: sought,
            floor: weighed * (1.0 - gated),
            subtraction: weighed * (1.0 - gated),
            exponential: weighed * exact.exponential,
            sum: weighed,
            // An addition, a multiplication and a comparison for each row of a block.
            vote: if matches!(schedule.skip, Skip::Budget(_)) { 3.0 * per_key } else { 0.0 },
            // The weighted values, the sum and, if blocks may be skipped, the skipped weight D are rescaled.
            rescale: rescaled * (dv + 1.0 + f64::from(schedule.skip != Skip::Never)) * per_key,
            values: dv * (1.0 - skipped),
        }
    }

    /// Returns the numbers of operations in the order of [`PARTS`].
    #[must_use]
    pub fn parts(&self) -> [f64; 10] {
        [
            self.keys,
            self.proxies,
            self.maximum,
            self.floor,
            self.subtraction,
            self.exponential,
            self.sum,
            self.vote,
            self.rescale,
            self.values,
        ]
    }

    /// Returns the total number of operations.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.parts().iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_kernels_have_their_published_counts() {
        for (isa, rest) in ISAS.into_iter().zip([11.0, 14.0, 16.0]) {
            for d in [32, 64, 128] {
                assert_eq!(Operations::exact(isa, d, d).total(), 2.0 * d as f64 + rest, "{}", isa.name);
            }
        }
    }

    #[test]
    fn a_run_is_counted_by_hand() {
        // There are 100 row blocks: 40 are skipped, the maximum is sought in 30, and 5 are rescaled.
        let report = TraversalReport {
            row_blocks: 100,
            skipped_row_blocks: 40,
            sought_row_blocks: 30,
            rescaled_row_blocks: 5,
            accepted: 8,
            ..TraversalReport::default()
        };
        let of = |schedule: Schedule| Operations::of(ISAS[0], [16, 8], &schedule, [4, 32], &report);
        let vsa = of(Schedule::vsa(0.1));
        assert_eq!((vsa.keys, vsa.proxies, vsa.maximum), (16.0, 0.5, 0.3));
        assert_eq!((vsa.exponential, vsa.sum, vsa.values, vsa.vote), (0.6 * 7.0, 0.6, 8.0 * 0.6, 0.0));
        assert_eq!(vsa.rescale, 0.05 * 10.0 / 32.0);
        let budget = of(Schedule::within(0.1));
        assert_eq!((budget.exponential, budget.proxies, budget.vote), (7.0, 0.0, 3.0 / 32.0));
        assert_eq!(PARTS.len(), budget.parts().len());
        let gated = TraversalReport { gated: 8, sought_row_blocks: 0, ..report };
        let gate = Operations::of(ISAS[0], [16, 8], &Schedule::VFA, [4, 32], &gated);
        assert_eq!((gate.maximum, gate.floor, gate.subtraction, gate.proxies), (0.0, 0.0, 0.0, 0.0));
    }
}
