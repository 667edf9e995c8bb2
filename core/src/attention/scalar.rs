//! The scalar fallback: a whole attention call on a machine with nothing but memory and arithmetic.
//!
//! One query row at a time streams over its keys and keeps a state per level of the merge tree, so the extra
//! memory is `d + d_v · (1 + ceil(log2(keys / 512)))` singles whatever the number of queries. Cuts and merge
//! tree are those of [`super::schedule`]; only the arithmetic inside a block is simpler than the kernels':
//! keys are absorbed one by one.

use super::data::{Inputs, Outputs};
use super::problem::Problem;
use super::schedule::BLOCKS_PER_SEGMENT;
use super::sequence::Sequence;
use crate::argument::ArgumentError;
use crate::scan::stack::MergeStack;
use crate::state::{NaturalState, State};
use core::f32::consts::LOG2_E;

/// Keys that fold into one state before states merge.
const SEGMENT: usize = 64 * BLOCKS_PER_SEGMENT;
/// Longest chain of multiply-adds in a score.
const CHAIN: usize = 64;

/// Singles of scratch that [`run`] needs, whatever the number of queries; none if they cannot be counted.
#[must_use]
pub fn scratch_len(problem: &Problem) -> Option<usize> {
    let levels = MergeStack::capacity(problem.keys().div_ceil(SEGMENT));
    levels.checked_mul(problem.value_dim())?.checked_add(problem.head_dim())
}

/// Computes the whole problem. Nothing is written before everything is checked.
///
/// # Errors
/// Data that are not those of the problem, and a scratch that is too short.
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
    // References and sums of the levels; their weighted sums are slices of the scratch.
    let mut heads = [(f32::NEG_INFINITY, 0.0f32); usize::BITS as usize + 1];
    let mut stack = MergeStack::default();
    let mut segment = None;
    let (start, end) = sequence.range(i);
    let mask = s.mask.as_ref().zip(inputs.mask.as_ref());
    for j in start..end {
        let mut bias = 0.0;
        if let Some((view, data)) = mask {
            bias = data.bias(view.row(sequence.batch, head, i).index(j)) * LOG2_E;
            if bias == f32::NEG_INFINITY {
                continue;
            }
        }
        let c = j / SEGMENT;
        if segment != Some(c) {
            segment = Some(c);
            let slot = stack.push(c, |slot| merge(&mut heads, states, dv, slot));
            heads[slot] = (f32::NEG_INFINITY, 0.0);
            states[slot * dv..(slot + 1) * dv].fill(0.0);
        }
        // Keys of the past come first; both are looked up, never copied.
        let (key, value, k, v) = match (&s.past_key, &s.past_value, &inputs.past_key, &inputs.past_value) {
            (Some(pk), Some(pv), Some(past_k), Some(past_v)) if j < sequence.past => {
                (past_k, past_v, pk.row(sequence.batch, kv_head, j), pv.row(sequence.batch, kv_head, j))
            }
            _ => {
                let t = sequence.key0 + j - sequence.past;
                let at = (s.key.row(sequence.batch, kv_head, t), s.value.row(sequence.batch, kv_head, t));
                (&inputs.key, &inputs.value, at.0, at.1)
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
        let (m, sum) = heads[slot];
        let mut state = State { m, s: sum, w: &mut states[slot * dv..(slot + 1) * dv] };
        state.absorb(score, |x| value.get(v + x));
        heads[slot] = (state.m, state.s);
    }
    if !stack.finish(|slot| merge(&mut heads, states, dv, slot)) {
        heads[0] = (f32::NEG_INFINITY, 0.0);
        states[..dv].fill(0.0);
    }
    let mut state = State { m: heads[0].0, s: heads[0].1, w: &mut states[..dv] };
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
    state.finish();
    let to = s.output.row(sequence.batch, head, token);
    for (x, w) in state.w.iter().enumerate() {
        outputs.output.set(to + x, *w);
    }
}

/// slot ← slot ⊕ (slot + 1).
fn merge(heads: &mut [(f32, f32)], states: &mut [f32], dv: usize, slot: usize) {
    let (earlier, later) = states[slot * dv..(slot + 2) * dv].split_at_mut(dv);
    let later = State { m: heads[slot + 1].0, s: heads[slot + 1].1, w: later };
    let mut earlier = State { m: heads[slot].0, s: heads[slot].1, w: earlier };
    earlier.merge(&later);
    heads[slot] = (earlier.m, earlier.s);
}

/// Copies past and new keys and values to the present.
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
        for b in 0..to.batch() {
            for h in 0..to.heads() {
                for t in 0..to.tokens() {
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
