//! The scalar fallback: computes an entire attention call without threads, vector instructions or an allocator.
//!
//! Query rows are computed one at a time. A row streams over its keys and keeps one state per level of the merge
//! tree, so the scratch memory is `d + d_v · (1 + ceil(log2(keys / 512)))` f32 values for any number of queries.
//! Block boundaries and merge tree are those of [`crate::attention::schedule`] with blocks of 64 keys. Only the
//! arithmetic inside a segment is simpler than in the kernels: keys are absorbed one by one.

use super::certificate::{Executed, Order};
use super::data::{Inputs, Outputs};
use super::pairs::{self, CHAIN, Pairs, Present};
use super::problem::Problem;
use super::schedule::BLOCKS_PER_SEGMENT;
use super::sequence::Sequence;
use crate::argument::ArgumentError;
use crate::dtype::DType;
use crate::scan::stack::{self, MergeStack};
use crate::state::State;

/// Number of keys per segment. The keys of a segment are folded into one state.
const SEGMENT: usize = 64 * BLOCKS_PER_SEGMENT;

/// Returns the number of f32 values of scratch that [`run`] needs, for any number of queries; `None` on overflow.
#[must_use]
pub fn scratch_len(problem: &Problem) -> Option<usize> {
    let levels = MergeStack::capacity(problem.keys().div_ceil(SEGMENT));
    levels.checked_mul(problem.value_dim())?.checked_add(problem.head_dim())
}

/// Name of the arithmetic, in the format of kernel names.
const NAME: &str = "attention_f32_q1k1__scalar_exp2_libm";
/// Largest relative error of a weight: `exp2f` is off by less than a unit in the last place, and the rounding of
/// the distance from the reference is counted separately.
pub(super) const EXP2_RELATIVE: f64 = 2.0 * DType::F32.unit_roundoff();

/// Returns the structure and the arithmetic that [`run`] executes, for its certificate and the error bounds.
#[must_use]
pub fn executed(problem: &Problem) -> Executed {
    let keys = problem.keys();
    let merge_depth = stack::depth(keys.div_ceil(SEGMENT));
    let additions = keys.min(SEGMENT).saturating_sub(1) + merge_depth;
    let d = problem.head_dim();
    Executed {
        kernel: NAME,
        block: SEGMENT / BLOCKS_PER_SEGMENT,
        segment_blocks: BLOCKS_PER_SEGMENT,
        merge_depth,
        additions,
        into_s: additions,
        into_w: additions,
        chain: d.min(CHAIN),
        chain_depth: d.div_ceil(CHAIN).saturating_sub(1),
        fused: false,
        exp2_relative: EXP2_RELATIVE,
        half_chain: 0,
        split: false,
        one_product: false,
        order: Order {
            lanes: 1,
            values: SEGMENT,
            weights: SEGMENT,
            segment: SEGMENT,
            references: 1,
            normalizes: false,
        },
    }
}

/// Computes the entire problem. All arguments are checked before anything is written.
///
/// # Errors
/// Returns an error if inputs or outputs do not match the problem, or if `scratch` is shorter than
/// [`scratch_len`].
pub fn run(
    problem: &Problem,
    inputs: &Inputs<'_>,
    outputs: &mut Outputs<'_>,
    scratch: &mut [f32],
) -> Result<(), ArgumentError> {
    inputs.check(problem)?;
    outputs.check(problem)?;
    let needed = scratch_len(problem).unwrap_or(usize::MAX);
    if scratch.len() < needed {
        return Err(ArgumentError::Short { argument: "scratch", found: scratch.len(), needed });
    }
    write_present(problem, inputs, outputs);
    let (query, states) = scratch[..needed].split_at_mut(problem.head_dim());
    let presents = [outputs.present_key.take(), outputs.present_value.take()];
    let present = pairs::present(problem, presents.each_ref());
    // The number of sequences may be arbitrarily large if there are no rows.
    let any = problem.heads() > 0 && problem.spec().query.tokens() > 0;
    for index in 0..if any { problem.sequences() } else { 0 } {
        let sequence = problem.sequence(&inputs.lengths, index);
        for head in 0..problem.heads() {
            for i in 0..sequence.queries {
                let mut state = row(problem, inputs, present, &sequence, head, i, query, states);
                pairs::write_row(problem, outputs, &sequence, head, i, &mut state, 0.0);
            }
        }
    }
    [outputs.present_key, outputs.present_value] = presents;
    Ok(())
}

/// Computes the state of row `i` of `head`. `query` has `d` elements, and `states` contains the slots of the merge
/// tree.
pub(super) fn row<'a>(
    problem: &Problem,
    inputs: &Inputs<'_>,
    present: Present<'_>,
    sequence: &Sequence,
    head: usize,
    i: usize,
    query: &mut [f32],
    states: &'a mut [f32],
) -> State<&'a mut [f32]> {
    let dv = problem.value_dim();
    pairs::query(problem, inputs, sequence, head, i, query);
    // `levels` contains `(m, S)` for each level of the merge tree; the weighted sums are slices of the scratch.
    let mut levels = [(f32::NEG_INFINITY, 0.0f32); usize::BITS as usize + 1];
    let mut stack = MergeStack::default();
    let mut segment = None;
    let (start, end) = sequence.range(i);
    let pairs = Pairs::new(problem, inputs, present, sequence, head);
    for j in start..end {
        let added = pairs.addend(i, j);
        if added == f32::NEG_INFINITY {
            continue;
        }
        let c = j / SEGMENT;
        if segment != Some(c) {
            segment = Some(c);
            let slot = stack.push(c, |slot| merge(&mut levels, states, dv, slot));
            levels[slot] = (f32::NEG_INFINITY, 0.0);
            states[slot * dv..(slot + 1) * dv].fill(0.0);
        }
        let score = pairs.score(query, j, added);
        let (value, v) = pairs.value(j);
        let slot = stack.len() - 1;
        let (m, sum) = levels[slot];
        let mut state = State { m, s: sum, w: &mut states[slot * dv..(slot + 1) * dv] };
        state.absorb(score, |x| value.get(v + x));
        levels[slot] = (state.m, state.s);
    }
    if !stack.finish(|slot| merge(&mut levels, states, dv, slot)) {
        levels[0] = (f32::NEG_INFINITY, 0.0);
        states[..dv].fill(0.0);
    }
    State { m: levels[0].0, s: levels[0].1, w: &mut states[..dv] }
}

/// Merges two adjacent states: replaces the state in `slot` by `slot ⊕ (slot + 1)`.
fn merge(levels: &mut [(f32, f32)], states: &mut [f32], dv: usize, slot: usize) {
    let (earlier, later) = states[slot * dv..(slot + 2) * dv].split_at_mut(dv);
    let later = State { m: levels[slot + 1].0, s: levels[slot + 1].1, w: later };
    let mut earlier = State { m: levels[slot].0, s: levels[slot].1, w: earlier };
    earlier.merge(&later);
    levels[slot] = (earlier.m, earlier.s);
}

/// Copies past and new keys and values to the present tensors, if the problem has present tensors. If the problem appends
/// in place, only the new rows are written.
pub(super) fn write_present(problem: &Problem, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) {
    let s = problem.spec();
    let [keys, values] = inputs.past(problem).map_or([None; 2], |past| past.map(Some));
    let pairs = [
        (&s.present_key, &mut outputs.present_key, keys, &s.key, &inputs.key),
        (&s.present_value, &mut outputs.present_value, values, &s.value, &inputs.value),
    ];
    for (to, out, past, view, new) in pairs {
        let (Some(to), Some(out)) = (to, out) else { continue };
        let kept = if s.append { problem.past() } else { 0 };
        for b in 0..to.batch() {
            for h in 0..to.heads() {
                for t in kept..to.tokens() {
                    let (from, at) = match &past {
                        Some((p, data)) if t < problem.past() => (data, p.row(b, h, t)),
                        _ => (new, view.row(b, h, t - problem.past())),
                    };
                    for x in 0..to.dim() {
                        out.set(to.row(b, h, t) + x, from.get(at + x));
                    }
                }
            }
        }
    }
}
