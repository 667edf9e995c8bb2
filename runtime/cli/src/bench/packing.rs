//! The cost of packing. A program whose sequences are padded to equal lengths can copy their tokens one sequence after
//! another, call attention for packed sequences, and copy the output back. This module measures the copies, which are
//! not part of a call.

use crate::error::Error;
use crate::shape::Shape;
use elsa_core::dtype::DType;
use elsa_files::zeros;
use std::time::Instant;

/// Number of times that the copies are made. The first time warms up.
const TIMES: usize = 10;

/// A tensor of padded sequences, `[batch, heads, tokens, dim]`, or of the same packed sequences, `[total, heads, dim]`.
#[derive(Clone, Copy)]
struct Sizes<'a> {
    /// First token of each packed sequence, then the number of all tokens.
    bounds: &'a [i64],
    heads: usize,
    tokens: usize,
    dim: usize,
}

impl Sizes<'_> {
    /// Calls `each` with the index of the first element of every token's row, in the padded and in the packed tensor.
    fn rows(&self, mut each: impl FnMut(usize, usize)) {
        let Sizes { bounds, heads, tokens, dim } = *self;
        for (sequence, ends) in bounds.windows(2).enumerate() {
            let [start, end] = [ends[0], ends[1]].map(|end| usize::try_from(end).unwrap_or(0));
            for token in start..end {
                for head in 0..heads {
                    let padded = (sequence * heads + head) * tokens + token - start;
                    each(padded * dim, (token * heads + head) * dim);
                }
            }
        }
    }

    /// Copies the rows of a padded tensor to a packed tensor.
    fn pack<T: Copy>(&self, padded: &[T], packed: &mut [T]) {
        let dim = self.dim;
        self.rows(|from, to| packed[to..to + dim].copy_from_slice(&padded[from..from + dim]));
    }

    /// Copies the rows of a packed tensor to a padded tensor.
    fn unpack<T: Copy>(&self, packed: &[T], padded: &mut [T]) {
        let dim = self.dim;
        self.rows(|to, from| padded[to..to + dim].copy_from_slice(&packed[from..from + dim]));
    }
}

/// Returns the median time in milliseconds for packing queries, keys and values and for unpacking the output, on one
/// thread. Returns `None` if the sequences of the shape are not packed.
///
/// # Errors
/// Returns an error if the system refuses memory.
pub fn cost(shape: &Shape, dtype: DType) -> Result<Option<f64>, Error> {
    let Some(bounds) = shape.bounds() else { return Ok(None) };
    // Only the size of the elements matters.
    Ok(Some(match dtype {
        DType::F32 => median::<f32>(shape, &bounds)?,
        DType::F16 | DType::Bf16 => median::<u16>(shape, &bounds)?,
    }))
}

/// Measures the copies for elements of type `T`.
fn median<T: Copy + bytemuck::Zeroable>(shape: &Shape, bounds: &[i64]) -> Result<f64, Error> {
    let Shape { batch, heads, kv_heads, queries, keys, dim, .. } = *shape;
    let query = Sizes { bounds, heads, tokens: queries, dim };
    let key = Sizes { bounds, heads: kv_heads, tokens: keys, dim };
    let total = bounds.last().and_then(|total| usize::try_from(*total).ok()).unwrap_or(0);
    let room = |elements| zeros::<T>("shape", elements);
    let padded = |sizes: Sizes<'_>| room(batch * sizes.heads * sizes.tokens * dim);
    let packed = |sizes: Sizes<'_>| room(total * sizes.heads * dim);
    let (mut padded_query, padded_key) = (padded(query)?, padded(key)?);
    let (mut packed_query, mut packed_key) = (packed(query)?, packed(key)?);
    let mut times = Vec::with_capacity(TIMES);
    for _ in 0..TIMES {
        let start = Instant::now();
        query.pack(&padded_query, &mut packed_query);
        // Keys and values have the same sizes.
        for _ in 0..2 {
            key.pack(&padded_key, &mut packed_key);
        }
        query.unpack(&packed_query, &mut padded_query);
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    std::hint::black_box((&packed_key, &padded_query));
    let times = &mut times[1..];
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_is_copied_and_comes_back() {
        // Sequences of 2, 4 and 3 tokens, each padded to 4, with two heads of three dims.
        let sizes = Sizes { bounds: &[0, 2, 6, 9], heads: 2, tokens: 4, dim: 3 };
        let padded: Vec<u16> = (0..3 * 2 * 4 * 3).collect();
        let (mut packed, mut back) = (vec![u16::MAX; 9 * 2 * 3], vec![u16::MAX; padded.len()]);
        sizes.pack(&padded, &mut packed);
        // Token 3 of sequence 1 is token 5 of all. Its second head is at 1 · 24 + 1 · 12 + 3 · 3 in the padded tensor.
        assert_eq!(packed[(5 * 2 + 1) * 3..][..3], [45, 46, 47]);
        assert!(!packed.contains(&u16::MAX));
        sizes.unpack(&packed, &mut back);
        for (sequence, length) in [2, 4, 3].into_iter().enumerate() {
            for head in 0..2 {
                let at = (sequence * 2 + head) * 12;
                let tokens = at..at + length * 3;
                assert_eq!(back[tokens.clone()], padded[tokens]);
                assert!(back[at + length * 3..at + 12].iter().all(|x| *x == u16::MAX));
            }
        }
    }

    #[test]
    fn only_packed_sequences_have_a_cost() {
        let cost = |shape: &str, dtype| cost(&shape.parse().unwrap(), dtype).unwrap();
        assert_eq!(cost("4,2,24,24,8", DType::F32), None);
        for dtype in [DType::F32, DType::F16] {
            assert!(cost("4,2,24,24,8,kv=1,packed=6", dtype).is_some_and(|ms| ms > 0.0 && ms.is_finite()));
        }
    }
}
