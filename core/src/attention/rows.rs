//! A baseline without tiles and without a scan: memory-efficient attention, one query row at a time.
//!
//! A row passes once over its keys and folds each of them into a single state (online softmax):
//!
//! ```text
//! for each key j of the row:    s = q · k_j + mask_j;  (m, S, W) absorbs s and v_j
//! y = W / S
//! ```
//!
//! `elsa bench` compares the kernels with it. The baseline needs `d + d_v` f32 values of scratch for any number of
//! keys. It differs from the kernels in three ways:
//!
//! 1. Each row reads all its keys and values. A kernel reads them once for a tile of rows.
//! 2. A row has one state, so a weight passes through an addition for each later key. A kernel merges the states of
//!    segments in a balanced tree.
//! 3. The code has no instructions of its own for any processor. The dims of a score are distributed over 16 sums, so
//!    that a compiler can vectorise the loops. It does in the profile `release`. In the profile `shipped` it does not,
//!    because link-time optimisation has the level of the last crate there, which is for size.

use super::addends::Addends;
use super::certificate::{Executed, Order};
use super::data::Inputs;
use super::operands::Operand;
use super::problem::Problem;
use super::scalar;
use crate::argument::ArgumentError;
use crate::dtype::{Elements, ElementsMut};
use crate::state::State;
use core::ops::Range;

/// Number of sums over which the dims of a score are distributed.
const LANES: usize = 16;

/// Returns the number of f32 values of scratch that [`run`] needs.
#[must_use]
pub const fn scratch_len(problem: &Problem) -> usize {
    problem.head_dim() + problem.value_dim()
}

/// Returns the structure and the arithmetic that [`run`] executes, for its error bounds.
#[must_use]
pub fn executed(problem: &Problem) -> Executed {
    let (keys, d) = (problem.keys().max(1), problem.head_dim());
    let additions = keys - 1;
    Executed {
        kernel: "attention_f32_q1k1__portable_exp2_libm",
        block: keys,
        segment_blocks: 1,
        merge_depth: 0,
        additions,
        into_s: additions,
        into_w: additions,
        chain: d / LANES,
        chain_depth: LANES.ilog2() as usize + d % LANES,
        order: Order {
            lanes: LANES,
            values: keys,
            weights: keys,
            segment: keys,
            references: 1,
            normalizes: false,
        },
        // The exponential is that of the scalar fallback.
        ..scalar::executed(problem)
    }
}

/// Computes the query rows `rows` of head `head` of sequence `index`, and writes them to `output`, `[rows, d_v]`. The
/// inputs must have passed [`Inputs::check`].
///
/// # Errors
/// Returns an error if the problem has past keys, if `scratch` is shorter than [`scratch_len`], or if `output` is
/// shorter than the rows.
pub fn run(
    problem: &Problem,
    inputs: &Inputs<'_>,
    (index, head): (usize, usize),
    rows: Range<usize>,
    scratch: &mut [f32],
    output: &mut ElementsMut<'_>,
) -> Result<(), ArgumentError> {
    if problem.past() > 0 {
        let (argument, other) = (Operand::PastKey.argument(), "method rows");
        return Err(ArgumentError::Conflict { argument, other });
    }
    let needed = scratch_len(problem);
    if scratch.len() < needed {
        return Err(ArgumentError::Short { argument: "scratch", found: scratch.len(), needed });
    }
    let needed = rows.len().saturating_mul(problem.value_dim());
    if output.len() < needed {
        let argument = Operand::Output.argument();
        return Err(ArgumentError::Short { argument, found: output.len(), needed });
    }
    let head = QueryHead { problem, inputs, index, head };
    match (inputs.query, inputs.key, inputs.value) {
        (Elements::F32(q), Elements::F32(k), Elements::F32(v)) => head.run([q, k, v], rows, scratch, output),
        (Elements::F16(q), Elements::F16(k), Elements::F16(v)) => head.run([q, k, v], rows, scratch, output),
        (Elements::Bf16(q), Elements::Bf16(k), Elements::Bf16(v)) => {
            head.run([q, k, v], rows, scratch, output);
        }
        (query, key, _) => {
            let (argument, found) = (Operand::Key.argument(), key.dtype().name());
            return Err(ArgumentError::Type { argument, found, allowed: query.dtype().name() });
        }
    }
    Ok(())
}

/// A query head of a sequence.
struct QueryHead<'a> {
    problem: &'a Problem,
    inputs: &'a Inputs<'a>,
    index: usize,
    head: usize,
}

impl QueryHead<'_> {
    /// Computes `rows` from the elements of queries, keys and values. Is not inlined into callers that are optimised for
    /// size.
    #[inline(never)]
    fn run<T: Copy + Into<f32>>(
        &self,
        [queries, keys, values]: [&[T]; 3],
        rows: Range<usize>,
        scratch: &mut [f32],
        output: &mut ElementsMut<'_>,
    ) {
        let QueryHead { problem, inputs, head, .. } = *self;
        let (d, dv) = (problem.head_dim(), problem.value_dim());
        let (factor, cap) = problem.score_factors();
        let spec = problem.spec();
        let sequence = problem.sequence(&inputs.lengths, self.index);
        let (batch, kv_head) = (sequence.batch, problem.kv_head(head));
        let addends = problem.modifies(batch).then(|| Addends::new(problem, inputs));
        let (query, weighted) = scratch.split_at_mut(d);
        for (n, i) in rows.enumerate() {
            let at = spec.query.row(batch, head, sequence.query0 + i);
            for (to, &q) in query.iter_mut().zip(&queries[at..at + d]) {
                let q: f32 = q.into();
                *to = q * factor;
            }
            let mut state = State { m: f32::NEG_INFINITY, s: 0.0, w: &mut weighted[..dv] };
            state.clear();
            let (start, end) = sequence.range(i);
            for j in start..end {
                let added = addends.as_ref().map_or(0.0, |added| added.at(batch, head, i, j));
                if added == f32::NEG_INFINITY {
                    continue;
                }
                let at = spec.key.row(batch, kv_head, sequence.key0 + j);
                let product = product(query, &keys[at..at + d]);
                let score = if cap == 0.0 { product } else { cap * libm::tanhf(product) };
                let at = spec.value.row(batch, kv_head, sequence.key0 + j);
                let value = &values[at..at + dv];
                state.absorb(score + added, |x| value[x].into());
            }
            state.finish();
            for (x, w) in state.w.iter().enumerate() {
                output.set(n * dv + x, *w);
            }
        }
    }
}

/// Returns the scalar product of a query and a key. Sum `x` of the [`LANES`] sums has the products of the dims `x`,
/// `x + LANES` and so on. A tree adds the sums. Then the products of the dims after the last multiple of [`LANES`] are
/// added one by one.
#[inline]
fn product<T: Copy + Into<f32>>(query: &[f32], key: &[T]) -> f32 {
    let mut sums = [0.0f32; LANES];
    let (queries, keys) = (query.chunks_exact(LANES), key.chunks_exact(LANES));
    let rest = queries.remainder().iter().zip(keys.remainder());
    for (queries, keys) in queries.zip(keys) {
        for (sum, (&q, &k)) in sums.iter_mut().zip(queries.iter().zip(keys)) {
            let k: f32 = k.into();
            *sum += q * k;
        }
    }
    let mut width = LANES / 2;
    while width > 0 {
        for x in 0..width {
            sums[x] += sums[x + width];
        }
        width /= 2;
    }
    rest.fold(sums[0], |sum, (&q, &k)| {
        let k: f32 = k.into();
        sum + q * k
    })
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::super::Spec;
    use super::super::mask::{MaskElements, MaskKind, MaskView};
    use super::super::reference;
    use super::*;
    use crate::dtype::DType;
    use crate::view::View;
    use std::{vec, vec::Vec};

    /// Returns `count` numbers between −1 and 1, in an irregular order.
    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.0 - 1.0).collect()
    }

    #[test]
    fn the_lanes_hold_the_whole_product() {
        for d in [1, 15, 16, 17, 64, 100] {
            let (q, k) = (numbers(d, 1), numbers(d, 2));
            let exact: f64 = q.iter().zip(&k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
            assert!((f64::from(product(&q, &k)) - exact).abs() < 1e-5, "{d}");
        }
    }

    /// Compares rows under a causal mask, with masked keys and grouped heads, with the f64 oracle.
    #[test]
    fn rows_are_those_of_the_oracle() {
        let (heads, kv_heads, queries, keys, d) = (4, 2, 9, 37, 20);
        let view = |name, heads, tokens| View::bhnd(name, [2, heads, tokens, d]).unwrap();
        let (q, k) = (view("q", heads, queries), view("k", kv_heads, keys));
        let mut spec = Spec::new(DType::F32, q, k, view("v", kv_heads, keys), view("out", heads, queries));
        spec.causal = Some(super::super::Alignment::BottomRight);
        spec.mask = Some(MaskView::dense(MaskKind::Bool, &[2, 1, 1, keys]).unwrap());
        let problem = spec.check().unwrap();
        let mask: Vec<u8> = (0..2 * keys).map(|i| u8::from(i % 5 != 3)).collect();
        let [q, k, v] = [(q, 1), (k, 2), (k, 3)].map(|(view, seed)| numbers(view.count(), seed));
        let mut inputs = Inputs::new(&q[..], &k[..], &v[..]);
        inputs.mask = Some(MaskElements::Bool(&mask));
        inputs.check(&problem).unwrap();
        let mut scratch = vec![f32::NAN; scratch_len(&problem)];
        let (mut found, mut exact) = (vec![f32::NAN; 3 * d], vec![0.0; d]);
        for index in 0..2 {
            for head in 0..heads {
                for first in (0..queries).step_by(3) {
                    let mut output = ElementsMut::from(&mut found[..]);
                    let place = (index, head);
                    run(&problem, &inputs, place, first..first + 3, &mut scratch, &mut output).unwrap();
                    for (n, row) in found.chunks(d).enumerate() {
                        reference::row(&problem, &inputs, index, head, first + n, &mut exact);
                        for (y, exact) in row.iter().zip(&exact) {
                            assert!((f64::from(*y) - exact).abs() < 2e-6, "{index} {head} {first} {n}");
                        }
                    }
                }
            }
        }
        let mut output = ElementsMut::from(&mut found[..]);
        let short = run(&problem, &inputs, (0, 0), 0..4, &mut scratch, &mut output);
        assert!(matches!(short, Err(ArgumentError::Short { argument: "out", .. })), "{short:?}");
        let short = run(&problem, &inputs, (0, 0), 0..3, &mut [], &mut output);
        assert!(matches!(short, Err(ArgumentError::Short { argument: "scratch", .. })), "{short:?}");
    }
}
