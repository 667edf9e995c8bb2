//! The scalar fallback: computes the entire backward pass without threads, vector instructions or an allocator.
//!
//! It iterates over blocks of 64 keys and, for each block of keys, over blocks of 64 query rows. The gradients that a
//! block of keys and a block of queries contribute are summed in the scratch memory and then added to the outputs, so
//! chains of additions stay short.

use super::bound::Structure;
use super::data::{BackwardInputs, Gradients, Statistics};
use super::problem::BackwardProblem;
use super::weights::{RowWeights, sech_squared, upstream_dot};
use crate::argument::ArgumentError;
use crate::attention::addends::Addends;
use crate::attention::scalar;
use crate::attention::sequence::Sequence;
use crate::view::View;
use core::ops::Range;

/// Number of keys per block, which is also the number of query rows per block.
const BLOCK: usize = 64;
/// Longest chain of multiply-adds in a dot product.
const CHAIN: usize = 64;

/// Returns the number of f32 values of scratch that [`run`] needs; `None` on overflow.
#[must_use]
pub fn scratch_len(problem: &BackwardProblem) -> Option<usize> {
    let (d, dv) = (problem.forward().head_dim(), problem.forward().value_dim());
    // The scratch contains the gradients of a block of keys and values, the gradient of one query, and the scaled query
    // itself.
    BLOCK.checked_mul(d.checked_add(dv)?)?.checked_add(d.checked_mul(2)?)
}

/// Returns the structure for the error bound of [`run`]. Requires that the statistics of the rows come from the forward
/// pass [`scalar::run`].
#[must_use]
pub fn structure(problem: &BackwardProblem) -> Structure {
    let forward = problem.forward();
    let executed = scalar::executed(forward);
    let dots = |dim: usize| 2 * (dim.min(CHAIN) + dim.div_ceil(CHAIN).saturating_sub(1));
    let blocks = |n: usize| n.min(BLOCK) + n.div_ceil(BLOCK);
    let group = forward.group();
    let rows = forward.spec().query.tokens();
    Structure {
        score: dots(forward.head_dim()),
        upstream: dots(forward.value_dim()),
        additions: blocks(forward.keys()).max(rows.min(BLOCK) + rows.div_ceil(BLOCK) * group),
        forward: executed.additions,
        exp2_relative: executed.exp2_relative,
        softcap: forward.spec().softcap,
    }
}

/// Computes the gradients. All arguments are checked before anything is written.
///
/// # Errors
/// Returns an error if inputs or gradients do not match the problem, or if `scratch` is shorter than [`scratch_len`].
pub fn run(
    problem: &BackwardProblem,
    inputs: &BackwardInputs<'_>,
    gradients: &mut Gradients<'_>,
    scratch: &mut [f32],
) -> Result<(), ArgumentError> {
    inputs.check(problem)?;
    gradients.check(problem)?;
    let needed = scratch_len(problem).unwrap_or(usize::MAX);
    if scratch.len() < needed {
        return Err(ArgumentError::Short { argument: "scratch", found: scratch.len(), needed });
    }
    let spec = problem.spec();
    for (view, data) in [
        (&spec.query, &mut *gradients.query),
        (&spec.key, &mut *gradients.key),
        (&spec.value, &mut *gradients.value),
    ] {
        for_rows(view, |at| data[at..at + view.dim()].fill(0.0));
    }
    let forward = problem.forward();
    for index in 0..forward.sequences() {
        let sequence = forward.sequence(&inputs.forward.lengths, index);
        for kv_head in 0..forward.kv_heads() {
            let mut call = Call { problem, inputs, sequence: &sequence, kv_head, scratch: &mut *scratch };
            for first in (0..sequence.reach()).step_by(BLOCK) {
                call.keys(first..sequence.reach().min(first + BLOCK), gradients);
            }
        }
    }
    let scale = forward.scale();
    for (view, data) in [(&spec.query, &mut *gradients.query), (&spec.key, &mut *gradients.key)] {
        for_rows(view, |at| data[at..at + view.dim()].iter_mut().for_each(|x| *x *= scale));
    }
    Ok(())
}

/// Calls `each` with the index of the first element of every row of `view`.
fn for_rows(view: &View, mut each: impl FnMut(usize)) {
    for b in 0..view.batch() {
        for h in 0..view.heads() {
            for t in 0..view.tokens() {
                each(view.row(b, h, t));
            }
        }
    }
}

/// Returns `Σ a(x) b(x)`, summed in chains of at most [`CHAIN`] multiply-adds.
fn dot(dim: usize, term: impl Fn(usize) -> f32) -> f32 {
    let mut sum = 0.0;
    for first in (0..dim).step_by(CHAIN) {
        let mut chain = 0.0;
        for x in first..dim.min(first + CHAIN) {
            chain += term(x);
        }
        sum += chain;
    }
    sum
}

/// Data for computing one key head of a sequence.
struct Call<'a> {
    problem: &'a BackwardProblem,
    inputs: &'a BackwardInputs<'a>,
    sequence: &'a Sequence,
    kv_head: usize,
    scratch: &'a mut [f32],
}

impl Call<'_> {
    /// Adds the contributions of a block of keys to the gradients.
    fn keys(&mut self, keys: Range<usize>, gradients: &mut Gradients<'_>) {
        let forward = self.problem.forward();
        let (d, dv) = (forward.head_dim(), forward.value_dim());
        let group = forward.group();
        for head in self.kv_head * group..(self.kv_head + 1) * group {
            for first in (0..self.sequence.queries).step_by(BLOCK) {
                self.scratch[..BLOCK * (d + dv)].fill(0.0);
                for i in first..self.sequence.queries.min(first + BLOCK) {
                    self.row(head, i, &keys, gradients);
                }
                let sums = &self.scratch[..BLOCK * (d + dv)];
                let (spec, s) = (self.problem.spec(), self.sequence);
                for (sums, j) in sums.chunks_exact(d + dv).zip(keys.clone()) {
                    let (dk, dv) = sums.split_at(d);
                    for (view, out, sums) in
                        [(&spec.key, &mut *gradients.key, dk), (&spec.value, &mut *gradients.value, dv)]
                    {
                        let at = view.row(s.batch, self.kv_head, s.key0 + j);
                        out[at..].iter_mut().zip(sums).for_each(|(out, sum)| *out += sum);
                    }
                }
            }
        }
    }

    /// Adds the contributions of one query row to the scratch memory and to the gradient of that row.
    fn row(&mut self, head: usize, i: usize, keys: &Range<usize>, gradients: &mut Gradients<'_>) {
        let (forward, sequence, inputs) = (self.problem.forward(), self.sequence, self.inputs);
        let s = forward.spec();
        let (start, end) = sequence.range(i);
        let (start, end) = (start.max(keys.start), end.min(keys.end));
        if start >= end {
            return;
        }
        let (factor, cap) = forward.score_factors();
        let (d, dv, batch) = (forward.head_dim(), forward.value_dim(), sequence.batch);
        let token = sequence.query0 + i;
        let (sums, rest) = self.scratch.split_at_mut(BLOCK * (d + dv));
        let (query, d_query) = rest[..2 * d].split_at_mut(d);
        let q = s.query.row(batch, head, token);
        for (x, scaled) in query.iter_mut().enumerate() {
            *scaled = inputs.forward.query.get(q + x) * factor;
        }
        d_query.fill(0.0);
        let o = s.output.row(batch, head, token);
        let up = self.problem.spec().upstream.row(batch, head, token);
        let upstream_dot = upstream_dot(dv, |x| (inputs.upstream.get(up + x), inputs.output.get(o + x)));
        let row = (batch * forward.heads() + head) * s.query.tokens() + token;
        let weights = RowWeights::of(Statistics::get(&inputs.statistics, row), 1.0);
        let added = forward.modifies(batch).then(|| Addends::new(forward, &inputs.forward));
        for j in start..end {
            let mut bias = 0.0;
            if let Some(added) = &added {
                bias = added.at(batch, head, i, j);
                if bias == f32::NEG_INFINITY {
                    continue;
                }
            }
            let k = s.key.row(batch, self.kv_head, sequence.key0 + j);
            let v = s.value.row(batch, self.kv_head, sequence.key0 + j);
            let raw = dot(d, |x| query[x] * inputs.forward.key.get(k + x));
            let mut score = if cap == 0.0 { raw } else { cap * libm::tanhf(raw) };
            if bias != 0.0 {
                score += bias;
            }
            if score == f32::NEG_INFINITY {
                continue;
            }
            let p = weights.probability(score);
            let dp = dot(dv, |x| inputs.upstream.get(up + x) * inputs.forward.value.get(v + x));
            let mut ds = p * (dp - upstream_dot);
            if cap != 0.0 {
                ds *= sech_squared(raw);
            }
            let at = (j - keys.start) * (d + dv);
            for x in 0..d {
                sums[at + x] += ds * inputs.forward.query.get(q + x);
                d_query[x] += ds * inputs.forward.key.get(k + x);
            }
            for x in 0..dv {
                sums[at + d + x] += p * inputs.upstream.get(up + x);
            }
        }
        let at = self.problem.spec().query.row(batch, head, token);
        gradients.query[at..].iter_mut().zip(d_query).for_each(|(out, sum)| *out += *sum);
    }
}
