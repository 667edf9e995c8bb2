//! What a plan claims about its answers.

use elsa_core::schedule;
use elsa_core::view::DType;
use elsa_runtime::{Method, Plan};

/// The certificate of a plan as one line of JSON.
#[must_use]
pub fn certificate_line(_plan: &Plan) -> String {
    "{}".into()
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

/// The relative error that the certificate publishes, with the rounding of an output of type `dtype`.
#[must_use]
pub fn allowed(_plan: &Plan, dtype: DType) -> f64 {
    1e-6 + if dtype == DType::F32 { 0.0 } else { dtype.unit_roundoff() }
}

/// Published merge depth `L(n, B)` (ELSA equation 6), and the merges along the longest path as executed: the
/// blocks of a segment one after the other, then the tree over segments.
#[must_use]
pub fn depths(plan: &Plan, keys: usize) -> (usize, usize) {
    let choice = plan.choice();
    let log2 = |n: usize| n.max(1).next_power_of_two().trailing_zeros() as usize;
    let blocks = keys.div_ceil(choice.block).max(1);
    let published = log2(choice.block) + 2 * log2(blocks) + 3;
    let folded = blocks.min(schedule::BLOCKS_PER_SEGMENT) - 1;
    (published, folded + schedule::depth(choice.segments))
}
