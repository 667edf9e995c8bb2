//! The scalar fallback: a whole attention call without threads, vector instructions or an allocator.
//!
//! Query rows are computed one at a time. A row streams over its keys and keeps one state per level of the merge
//! tree, so the scratch memory is `d + d_v · (1 + ceil(log2(keys / 512)))` f32 values for any number of queries.
//! The cuts and the merge tree are those of [`crate::attention::schedule`] with blocks of 64 keys. Only the
//! arithmetic inside a segment is simpler than in the kernels: keys are absorbed one by one.

use super::added::Added;
use super::certificate::Executed;
use super::data::{Inputs, Outputs};
use super::problem::Problem;
use super::schedule::BLOCKS_PER_SEGMENT;
use super::sequence::Sequence;
use crate::argument::ArgumentError;
use crate::dtype::DType;
use crate::scan::stack::{self, MergeStack};
use crate::state::{NaturalState, State};

/// Keys of a segment, which fold into one state.
const SEGMENT: usize = 64 * BLOCKS_PER_SEGMENT;
/// Longest chain of multiply-adds in a score.
const CHAIN: usize = 64;

/// Number of f32 values of scratch that [`run`] needs, for any number of queries. Returns `None` if the number
/// overflows.
#[must_use]
pub fn scratch_len(problem: &Problem) -> Option<usize> {
    let levels = MergeStack::capacity(problem.keys().div_ceil(SEGMENT));
    levels.checked_mul(problem.value_dim())?.checked_add(problem.head_dim())
}

/// Name of the arithmetic, as kernels have one.
const NAME: &str = "attention_f32_q1k1__scalar_exp2_libm";
/// Largest relative error of a weight: `exp2f` is off by less than a unit in the last place, and the rounding of the
/// distance from the reference is counted apart.
const EXP2_RELATIVE: f64 = 2.0 * DType::F32.unit_roundoff();

/// The structure and the arithmetic that [`run`] executes, for its certificate and the error bounds.
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
    }
}

/// Computes the whole problem. Everything is checked before anything is written.
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
    for index in 0..problem.sequences() {
        let sequence = problem.sequence(&inputs.lengths, index);
        for head in 0..problem.heads() {
            for i in 0..sequence.queries {
                row(problem, inputs, outputs, &sequence, head, i, query, states);
            }
        }
    }
    Ok(())
}

fn row(
    problem: &Problem,
    inputs: &Inputs<'_>,
    outputs: &mut Outputs<'_>,
    sequence: &Sequence,
    head: usize,
    i: usize,
    query: &mut [f32],
    states: &mut [f32],
) {
    let s = problem.spec();
    let (factor, cap) = problem.score_factors();
    let dv = problem.value_dim();
    let kv_head = problem.kv_head(head);
    let from = s.query.row(sequence.batch, head, sequence.query0 + i);
    for (x, q) in query.iter_mut().enumerate() {
        *q = inputs.query.get(from + x) * factor;
    }
    // `(m, S)` of each level of the merge tree; the weighted sums are slices of the scratch.
    let mut levels = [(f32::NEG_INFINITY, 0.0f32); usize::BITS as usize + 1];
    let mut stack = MergeStack::default();
    let mut segment = None;
    let (start, end) = sequence.range(i);
    let added = problem.modifies(sequence.batch).then(|| Added::new(problem, inputs));
    // Where the new rows lie; behind the past, if the problem appends in place.
    let present = (&s.present_key, &s.present_value, &outputs.present_key, &outputs.present_value);
    let (key_view, value_view, new_key, new_value) = match present {
        (Some(pk), Some(pv), Some(k), Some(v)) if s.append => (pk, pv, k.elements(), v.elements()),
        _ => (&s.key, &s.value, inputs.key, inputs.value),
    };
    for j in start..end {
        let mut bias = 0.0;
        if let Some(added) = &added {
            bias = added.at(sequence.batch, head, i, j);
            if bias == f32::NEG_INFINITY {
                continue;
            }
        }
        let c = j / SEGMENT;
        if segment != Some(c) {
            segment = Some(c);
            let slot = stack.push(c, |slot| merge(&mut levels, states, dv, slot));
            levels[slot] = (f32::NEG_INFINITY, 0.0);
            states[slot * dv..(slot + 1) * dv].fill(0.0);
        }
        // Past keys come first. Past and new rows are read where they are, never copied.
        let (key, value, k, v) = match (&s.past_key, &s.past_value, &inputs.past_key, &inputs.past_value) {
            (Some(pk), Some(pv), Some(past_k), Some(past_v)) if j < sequence.past => {
                (past_k, past_v, pk.row(sequence.batch, kv_head, j), pv.row(sequence.batch, kv_head, j))
            }
            _ => {
                let t = sequence.key0 + j - sequence.past;
                let at =
                    (key_view.row(sequence.batch, kv_head, t), value_view.row(sequence.batch, kv_head, t));
                (&new_key, &new_value, at.0, at.1)
            }
        };
        let mut score = 0.0;
        for (n, chunk) in query.chunks(CHAIN).enumerate() {
            let mut chain = 0.0;
            for (x, q) in chunk.iter().enumerate() {
                chain += q * key.get(k + n * CHAIN + x);
            }
            score += chain;
        }
        if cap != 0.0 {
            score = cap * libm::tanhf(score);
        }
        if bias != 0.0 {
            score += bias;
        }
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
    let mut state = State { m: levels[0].0, s: levels[0].1, w: &mut states[..dv] };
    let token = sequence.query0 + i;
    let at = (sequence.batch * problem.heads() + head) * s.query.tokens() + token;
    if let Some(lse) = &mut outputs.lse {
        lse[at] = state.log_sum_exp();
    }
    if let Some(out) = &mut outputs.state {
        let natural = NaturalState::of(state.m, state.s, 1.0, false);
        (out.m[at], out.s[at]) = (natural.m, natural.s);
        for (o, w) in out.w[at * dv..(at + 1) * dv].iter_mut().zip(state.w.iter()) {
            *o = natural.w(*w);
        }
    }
    if let Some(output) = &mut outputs.output {
        state.finish();
        let to = s.output.row(sequence.batch, head, token);
        for (x, w) in state.w.iter().enumerate() {
            output.set(to + x, *w);
        }
    }
}

/// Merges two adjacent states: slot ← slot ⊕ (slot + 1).
fn merge(levels: &mut [(f32, f32)], states: &mut [f32], dv: usize, slot: usize) {
    let (earlier, later) = states[slot * dv..(slot + 2) * dv].split_at_mut(dv);
    let later = State { m: levels[slot + 1].0, s: levels[slot + 1].1, w: later };
    let mut earlier = State { m: levels[slot].0, s: levels[slot].1, w: earlier };
    earlier.merge(&later);
    levels[slot] = (earlier.m, earlier.s);
}

/// Copies past and new keys and values to the present tensors, where the problem has them: only the new ones to a
/// present that holds the past.
fn write_present(problem: &Problem, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) {
    let s = problem.spec();
    let pairs = [
        (&s.present_key, &mut outputs.present_key, &s.past_key, &inputs.past_key, &s.key, &inputs.key),
        (
            &s.present_value,
            &mut outputs.present_value,
            &s.past_value,
            &inputs.past_value,
            &s.value,
            &inputs.value,
        ),
    ];
    for (to, out, past_view, past, view, new) in pairs {
        let (Some(to), Some(out)) = (to, out) else { continue };
        let kept = if s.append { problem.past() } else { 0 };
        for b in 0..to.batch() {
            for h in 0..to.heads() {
                for t in kept..to.tokens() {
                    let (from, at) = match (past_view, past) {
                        (Some(p), Some(data)) if t < problem.past() => (data, p.row(b, h, t)),
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
