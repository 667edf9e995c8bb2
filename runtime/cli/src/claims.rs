//! What a plan claims about its answers.

use elsa_core::scan::elsa_depth;
use elsa_core::schedule;
use elsa_core::view::DType;
use elsa_runtime::{Method, Plan};
use serde::Serialize;

/// The published claim about a run, labelled as what it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Claim {
    /// `certificate`.
    pub what: &'static str,
    /// Where the claim comes from.
    pub theorem: &'static str,
    /// What it leaves out.
    pub caveat: &'static str,
    /// Kernel of the plan.
    pub kernel: &'static str,
    /// Keys of the longest sequence.
    pub n: usize,
    /// Keys in a block.
    pub block: usize,
    /// `L(n, B)`.
    pub depth_published: usize,
    /// Merges along the longest path as executed.
    pub depth_executed: usize,
    /// Of the arithmetic.
    pub unit_roundoff: f64,
    /// `u · L(n, B)`, relative to `‖y‖`.
    pub rel_l2: f64,
}

impl Claim {
    /// The claim for `plan`.
    #[must_use]
    pub fn of(plan: &Plan) -> Claim {
        let n = plan.problem().keys();
        let (depth_published, depth_executed) = depths(plan, n);
        let unit_roundoff = DType::F32.unit_roundoff();
        Claim {
            what: "certificate",
            theorem: "ELSA theorem 1 as published: |y^ - y| / |y| <= u L(n, B) to first order",
            caveat: "leaves out the rounding of the scores and of the output; does not hold where values cancel",
            kernel: plan.kernel(),
            n,
            block: plan.choice().block,
            depth_published,
            depth_executed,
            unit_roundoff,
            rel_l2: unit_roundoff * depth_published as f64,
        }
    }

    /// The relative error that the claim allows an output of type `dtype`: its value, and the rounding of the
    /// output where that is coarser than the arithmetic.
    #[must_use]
    pub fn allowed(&self, dtype: DType) -> f64 {
        self.rel_l2 + if dtype == DType::F32 { 0.0 } else { dtype.unit_roundoff() }
    }
}

/// Additions that a weight takes part in, at most, on its way into the sums of its row: all of its segment, in
/// any order, and the merges above it. Method math adds all keys.
#[must_use]
pub fn additions(plan: &Plan) -> usize {
    let choice = plan.choice();
    let keys = plan.problem().keys();
    match choice.method {
        Method::Elsa => choice.segment.min(keys) + schedule::depth(choice.segments),
        Method::Math => keys,
    }
}

/// Published merge depth `L(n, B)` ([`elsa_depth`], ELSA equation 6) for `keys` keys, and the
/// merges along the longest path as executed: the blocks of a segment one after the other, then the tree over
/// segments. Method math merges nothing.
#[must_use]
pub fn depths(plan: &Plan, keys: usize) -> (usize, usize) {
    let choice = plan.choice();
    let published = elsa_depth(keys, choice.block);
    let blocks = keys.div_ceil(choice.block).max(1);
    match choice.method {
        Method::Elsa => {
            let folded = blocks.min(schedule::BLOCKS_PER_SEGMENT) - 1;
            (published, folded + schedule::depth(blocks.div_ceil(schedule::BLOCKS_PER_SEGMENT)))
        }
        Method::Math => (published, 0),
    }
}
