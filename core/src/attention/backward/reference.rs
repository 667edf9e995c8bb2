//! The oracle of the backward pass: gradients in f64, pair by pair, from the definition.
//!
//! It uses neither an output nor statistics of a forward pass: probabilities are those of [`crate::attention::reference`],
//! and `D_i` is `Σ_j p_ij dp_ij`. Pairs that a row does not attend, or whose score is `−∞`, are not visited, regardless of
//! their key and value. Probabilities are relative to the keys of the call, so the oracle cannot compute the contribution
//! of a chunk of keys to a larger attention.

use super::data::BackwardInputs;
use super::problem::BackwardProblem;
use crate::attention::reference::{log_probabilities, statistics};

/// The contribution of a pair of a query and a key to the gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// Index of the key within the sequence.
    pub key: usize,
    /// Probability `p_ij`. The pair adds `p_ij do_i` to `dv_j`.
    pub probability: f64,
    /// `scale ds_ij c_ij`, the factor of `k_j` in `dq_i` and of `q_i` in `dk_j`.
    pub gradient: f64,
    /// Sum of the magnitudes of the terms of `gradient`:
    /// `|scale| p_ij c_ij (Σ |do_i| |v_j| + Σ_l p_il Σ |do_i| |v_l|)`.
    pub absolute: f64,
    /// Sum of the magnitudes of the terms of the score: `|scale| Σ_x |q_ix| |k_jx|`.
    pub magnitude: f64,
}

/// Position of a row: index along the batch axis, token index of the row, and token index of its sequence's first key.
struct Place {
    batch: usize,
    query: usize,
    first_key: usize,
}

fn place(problem: &BackwardProblem, inputs: &BackwardInputs<'_>, sequence: usize, i: usize) -> Place {
    let lengths = inputs.forward.lengths;
    match problem.forward().spec().packed.and(lengths.cu_seqlens_q.zip(lengths.cu_seqlens_k)) {
        Some((q, k)) => Place { batch: 0, query: q[sequence] as usize + i, first_key: k[sequence] as usize },
        None => Place { batch: sequence, query: i, first_key: 0 },
    }
}

/// Calls `visit` with every pair of query `i` of a sequence, in the order of the keys. `sequence` and `i` are indices
/// as in [`Problem::sequence`](crate::attention::Problem::sequence), and `head` is the index of a query head. The
/// inputs must have passed [`BackwardInputs::check`].
///
/// # Panics
/// Panics if `sequence`, `head` or `i` is out of bounds.
pub fn pairs(
    problem: &BackwardProblem,
    inputs: &BackwardInputs<'_>,
    sequence: usize,
    head: usize,
    i: usize,
    mut visit: impl FnMut(Pair),
) {
    let forward = problem.forward();
    let s = forward.spec();
    let Place { batch, query, first_key } = place(problem, inputs, sequence, i);
    let kv_head = forward.kv_head(head);
    let q = s.query.row(batch, head, query);
    let up = problem.spec().upstream.row(batch, head, query);
    let upstream_by_value = |j: usize| {
        let v = s.value.row(batch, kv_head, first_key + j);
        let mut sums = [0.0; 2];
        for x in 0..forward.value_dim() {
            let term = f64::from(inputs.upstream.get(up + x)) * f64::from(inputs.forward.value.get(v + x));
            sums[0] += term;
            sums[1] += libm::fabs(term);
        }
        sums
    };
    let row = statistics(forward, &inputs.forward, sequence, head, i);
    if row.max == f64::NEG_INFINITY {
        return;
    }
    let attended = |log: Option<f64>| log.filter(|log| *log != f64::NEG_INFINITY).map(libm::exp);
    let mut means = [0.0; 2];
    log_probabilities(forward, &inputs.forward, sequence, head, i, &row, |j, log| {
        if let Some(p) = attended(log) {
            let [sum, absolute] = upstream_by_value(j);
            means[0] += p * sum;
            means[1] += p * absolute;
        }
    });
    let scale = f64::from(forward.scale());
    log_probabilities(forward, &inputs.forward, sequence, head, i, &row, |j, log| {
        let Some(p) = attended(log) else { return };
        let k = s.key.row(batch, kv_head, first_key + j);
        let [mut score, mut magnitude] = [0.0; 2];
        for x in 0..forward.head_dim() {
            let term = f64::from(inputs.forward.query.get(q + x)) * f64::from(inputs.forward.key.get(k + x));
            score += scale * term;
            magnitude += libm::fabs(scale * term);
        }
        let slope = match s.softcap {
            // 1 − tanh² = 1 / cosh², which does not cancel.
            Some(cap) => libm::pow(libm::cosh(score / f64::from(cap)), -2.0),
            None => 1.0,
        };
        let [sum, absolute] = upstream_by_value(j);
        visit(Pair {
            key: j,
            probability: p,
            gradient: scale * p * slope * (sum - means[0]),
            absolute: libm::fabs(scale) * p * slope * (absolute + means[1]),
            magnitude,
        });
    });
}
