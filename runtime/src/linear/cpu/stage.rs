//! Copies rows between tensors and the worker's region: tokens in the order in which they pass the state, states in strips
//! of columns.

use super::context::Context;
use elsa_core::linear::{Operand, Sequence};
use std::ops::Range;

/// Tokens of a tensor in the order in which they pass the state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tokens {
    /// The token that passes first.
    pub first: usize,
    /// Number of tokens.
    pub count: usize,
    /// Whether each is followed by the one before it in the tensor.
    pub reverse: bool,
}

impl Tokens {
    /// Tokens `range` of a sequence, counted in the order in which they pass.
    pub fn of(sequence: &Sequence, range: &Range<usize>, reverse: bool) -> Tokens {
        let first = match reverse {
            false => sequence.start + range.start,
            true => (sequence.start + sequence.tokens).saturating_sub(1 + range.start),
        };
        Tokens { first, count: range.len(), reverse }
    }

    /// Calls `each(token, row, count)` for stretches of tokens that follow one another in the tensor, of which the first is
    /// row `row`.
    fn stretches(&self, mut each: impl FnMut(usize, usize, usize)) {
        if self.reverse {
            for row in 0..self.count {
                each(self.first - row, row, 1);
            }
        } else {
            each(self.first, 0, self.count);
        }
    }
}

/// What is done to rows after they were copied.
#[derive(Clone, Copy, Debug)]
pub(super) enum Factor {
    /// Nothing.
    One,
    /// Each row is multiplied by a number.
    Scale(f32),
    /// Each row is made a unit vector and multiplied by a number: `scale · x / sqrt(Σ x² + ε)`.
    Unit { epsilon: f32, scale: f32 },
}

impl Factor {
    /// Of keys, with `scale` one, or of queries.
    pub fn of(c: &Context<'_>, scale: f32) -> Factor {
        match c.problem.spec().normalize {
            Some(epsilon) => Factor::Unit { epsilon, scale },
            None if scale == 1.0 => Factor::One,
            None => Factor::Scale(scale),
        }
    }

    /// Multiplies a row. Squares are summed, and the factor of a unit vector is computed, in f64, so that an element is
    /// rounded once.
    fn apply(self, row: &mut [f32]) {
        match self {
            Factor::One => {}
            Factor::Scale(scale) => row.iter_mut().for_each(|x| *x *= scale),
            Factor::Unit { epsilon, scale } => {
                // Independent sums, so that additions need not wait for one another.
                let mut sums = [0.0f64; 4];
                let mut fours = row.chunks_exact(4);
                for four in fours.by_ref() {
                    for (sum, x) in sums.iter_mut().zip(four) {
                        *sum += f64::from(*x) * f64::from(*x);
                    }
                }
                let rest: f64 = fours.remainder().iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
                let sum = (sums[0] + sums[1]) + (sums[2] + sums[3]) + rest;
                let factor = f64::from(scale) / (sum + f64::from(epsilon)).sqrt();
                row.iter_mut().for_each(|x| *x = (f64::from(*x) * factor) as f32);
            }
        }
    }
}

/// Copies the elements `dims` of the rows of `tokens` of an input to f32 rows at `dst`, `stride` apart, with zeros up to
/// `stride`.
///
/// # Safety
/// - The invariants of [`Context`]. The call has the operand, `tokens` lie in it, and `dims` are at most `stride` of its
///   head size.
/// - `tokens.count` rows of `stride` f32 values are writable at `dst`, and initialised.
pub(super) unsafe fn rows(
    c: &Context<'_>,
    operand: Operand,
    (batch, head): (usize, usize),
    tokens: &Tokens,
    dims: &Range<usize>,
    (dst, stride): (*mut f32, usize),
    factor: Factor,
) {
    let tensor = c.tensor(operand);
    let size = tensor.dtype.size();
    tokens.stretches(|token, row, count| {
        let from = tensor.row(batch, head, token).wrapping_add(dims.start * size);
        let to = dst.wrapping_add(row * stride);
        // SAFETY: the rows are readable (*inputs*) and rows `row..row + count` writable (clause); *kernel*.
        unsafe {
            c.kernel.primitives.rows_to_f32(
                tensor.dtype,
                from.cast_const(),
                tensor.stride(),
                count,
                dims.len(),
                to,
                stride,
            );
        }
    });
    if stride > dims.len() || !matches!(factor, Factor::One) {
        // SAFETY: the rows are writable and initialised (clause), and this worker's.
        let all = unsafe { std::slice::from_raw_parts_mut(dst, tokens.count * stride) };
        for row in all.chunks_exact_mut(stride) {
            let (row, rest) = row.split_at_mut(dims.len());
            factor.apply(row);
            rest.fill(0.0);
        }
    }
}
