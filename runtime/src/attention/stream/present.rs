//! Copies past and new keys to the present key tensor, and past and new values to the present value tensor, chunk by
//! chunk.

use crate::stream::Excerpt;
use elsa_core::attention::{Operand, Operands, Problem};
use elsa_core::view::View;
use std::ops::Range;

/// The past, new and present tensor: first those of the keys, then those of the values.
pub const PRESENTS: [[Operand; 3]; 2] = [
    [Operand::PastKey, Operand::Key, Operand::PresentKey],
    [Operand::PastValue, Operand::Value, Operand::PresentValue],
];

/// Returns the number of pairs of a batch index and a key head whose keys and values are copied to the present tensors.
/// Each pair is a unit of the run, and these units precede the units of queries.
pub fn copies(problem: &Problem) -> usize {
    let spec = problem.spec();
    let any = spec.present_key.is_some() || spec.present_value.is_some();
    if any { spec.key.batch().saturating_mul(problem.kv_heads()) } else { 0 }
}

/// Iterates over chunks of `keys`, each with two flags: whether the chunk is the first, and whether it is the last.
/// Without keys, there is a single empty chunk.
pub fn chunks(keys: Range<usize>, chunk: usize) -> impl Iterator<Item = (Range<usize>, bool, bool)> {
    let n = keys.len().div_ceil(chunk).max(1);
    (0..n).map(move |i| {
        let start = keys.start + i * chunk;
        (start..keys.end.min(start + chunk).max(start), i == 0, i + 1 == n)
    })
}

/// Returns the excerpts for copying past and new keys, or values, to the present tensor: two excerpts that are read
/// into a buffer, and one excerpt that is written from this buffer. `number` is the index of the pair of batch index
/// and key head.
pub fn excerpts(
    problem: &Problem,
    tensors: &Operands<View>,
    [past, new, present]: [Operand; 3],
    number: usize,
    keys: &Range<usize>,
) -> ([(Operand, Excerpt); 2], Excerpt) {
    let (batch, head) = (number / problem.kv_heads(), number % problem.kv_heads());
    let (length, dim) = (problem.past(), tensors[new].dim());
    let size = problem.spec().dtype.size();
    let middle = length.clamp(keys.start, keys.end);
    let of = |operand: Operand, token, count, at: usize| Excerpt {
        tensor: tensors[operand],
        size,
        first: [batch, head, token],
        count: [1, 1, count],
        start: 0,
        len: dim,
        to: [0, 0, dim],
        at: at * dim,
    };
    let reads = [
        (past, of(past, keys.start, middle - keys.start, 0)),
        (new, of(new, middle.saturating_sub(length), keys.end - middle, middle - keys.start)),
    ];
    (reads, of(present, keys.start, keys.len(), 0))
}
