//! The data of a backward call: its input and output tensors.

use super::operands::Operand;
use super::problem::BackwardProblem;
use crate::argument::{ArgumentError, enough};
use crate::attention::data::Inputs;
use crate::dtype::{DType, Elements};
use crate::operands::{ByOperand, Location};
use crate::view::View;

/// Statistics of each row from the forward pass, `[batch, heads, queries]`, in natural-log units. Prefer
/// [`Statistics::State`]: the probabilities computed from a state stay exact when scores are large.
#[derive(Clone, Copy, Debug)]
pub enum Statistics<'a> {
    /// Log-sum-exp of each row, as in [`Outputs::lse`](crate::attention::Outputs). Its rounding to f32, at most
    /// `|lse| 2^-24`, becomes a relative error of every probability of the row.
    LogSumExp(&'a [f32]),
    /// References and sums of the states, as in [`Outputs::state`](crate::attention::Outputs).
    State {
        /// References `m`, one per row.
        m: &'a [f32],
        /// Sums `S`, one per row.
        s: &'a [f32],
    },
}

impl Statistics<'_> {
    /// Returns `(m, S)` of the row at `index`. For a log-sum-exp this is `(lse, 1)`, or `(−∞, 0)` for a row without keys.
    ///
    /// # Panics
    /// Panics if `index` is out of bounds.
    #[must_use]
    pub fn get(&self, index: usize) -> (f32, f32) {
        match self {
            Statistics::LogSumExp(lse) => {
                (lse[index], if lse[index] == f32::NEG_INFINITY { 0.0 } else { 1.0 })
            }
            Statistics::State { m, s } => (m[index], s[index]),
        }
    }
}

/// The input tensors of a backward call. Shapes and strides are those of the [`BackwardProblem`].
///
/// A call with a [`Chunk`](crate::attention::Chunk) among its lengths has only some of the queries and keys of a larger
/// attention. The statistics and outputs of its rows are then those of the larger attention, and its gradients are the
/// contributions of its pairs to the gradients of the larger attention.
#[derive(Clone, Copy, Debug)]
pub struct BackwardInputs<'a> {
    /// The inputs of the forward pass.
    pub forward: Inputs<'a>,
    /// The output of the forward pass, in the view of the problem's output. Its type is that of the problem, or f32. If the
    /// output is rounded to 16 bits, the rounding error also affects `D_i`.
    pub output: Elements<'a>,
    /// The upstream gradient. Its type is that of the problem, or f32.
    pub upstream: Elements<'a>,
    /// Statistics of each row from the forward pass. They must come from a forward pass over `forward`; otherwise the
    /// gradients are meaningless.
    pub statistics: Statistics<'a>,
}

impl ByOperand<Operand> for BackwardInputs<'_> {
    type Address = *mut u8;

    fn place(&mut self, operand: Operand) -> Option<Location<*mut u8>> {
        match (operand, &mut self.statistics) {
            (Operand::Output, _) => Some(Location::of(&mut self.output)),
            (Operand::Upstream, _) => Some(Location::of(&mut self.upstream)),
            (Operand::LogSumExp, Statistics::LogSumExp(lse)) => Some(Location::of(lse)),
            (Operand::StateReference, Statistics::State { m, .. }) => Some(Location::of(m)),
            (Operand::StateSum, Statistics::State { s, .. }) => Some(Location::of(s)),
            _ => self.forward.place(operand.of_forward()?),
        }
    }
}

/// Checks the type and the number of elements of a tensor.
fn covers(
    argument: &'static str,
    view: &View,
    dtype: DType,
    data: Elements<'_>,
) -> Result<(), ArgumentError> {
    use ArgumentError as E;
    if data.dtype() != dtype && data.dtype() != DType::F32 {
        return Err(E::Type { argument, found: data.dtype().name(), allowed: dtype.name() });
    }
    let (found, needed) = (data.len(), view.extent());
    enough(argument, found, needed)
}

impl BackwardInputs<'_> {
    /// Checks the inputs against `problem`: element types, buffer lengths, and sequence lengths.
    ///
    /// # Errors
    /// Returns an error for the first mismatch.
    pub fn check(&self, problem: &BackwardProblem) -> Result<(), ArgumentError> {
        let forward = problem.forward();
        self.forward.check(forward)?;
        let dtype = forward.spec().dtype;
        covers("out", &forward.spec().output, dtype, self.output)?;
        covers("d_out", &problem.spec().upstream, dtype, self.upstream)?;
        let exact = |operand: Operand, found| {
            let allowed = forward.rows();
            let (argument, axis, of) = (operand.argument(), "elements", "the output");
            if found == allowed {
                Ok(())
            } else {
                Err(ArgumentError::Mismatch { argument, axis, found, allowed, of })
            }
        };
        match self.statistics {
            Statistics::LogSumExp(lse) => exact(Operand::LogSumExp, lse.len()),
            Statistics::State { m, s } => {
                exact(Operand::StateReference, m.len())?;
                exact(Operand::StateSum, s.len())
            }
        }
    }
}

/// The gradients of a call, laid out as the views of the [`BackwardProblem`] describe. They are f32 for every element type
/// of the inputs. Every row is written; the rows of queries that attend no key, and of keys that no query attends, are
/// zero.
#[derive(Debug)]
pub struct Gradients<'a> {
    /// The gradient of the queries.
    pub query: &'a mut [f32],
    /// The gradient of the keys.
    pub key: &'a mut [f32],
    /// The gradient of the values.
    pub value: &'a mut [f32],
}

impl ByOperand<Operand> for Gradients<'_> {
    type Address = *mut u8;

    fn place(&mut self, operand: Operand) -> Option<Location<*mut u8>> {
        match operand {
            Operand::QueryGradient => Some(Location::of(&mut self.query)),
            Operand::KeyGradient => Some(Location::of(&mut self.key)),
            Operand::ValueGradient => Some(Location::of(&mut self.value)),
            _ => None,
        }
    }
}

impl Gradients<'_> {
    /// Adds `shares` to these gradients. `shares` are the gradients of the problem `of`, and these gradients belong to
    /// `problem`. The first query row of `shares` is added to query row `at[0]`, the first key row to key row `at[1]`,
    /// and the first value row to value row `at[1]`. Each sum is rounded once.
    ///
    /// # Errors
    /// Returns an error if buffers are too short, if batch, heads or head sizes differ, or if `shares` extends beyond
    /// the end of these gradients.
    pub fn add(
        &mut self,
        problem: &BackwardProblem,
        shares: &Gradients<'_>,
        of: &BackwardProblem,
        at: [usize; 2],
    ) -> Result<(), ArgumentError> {
        self.check(problem)?;
        shares.check(of)?;
        let (to, from) = (problem.spec(), of.spec());
        let views = [
            ("d_q", &to.query, &from.query, at[0], &mut *self.query, &*shares.query),
            ("d_k", &to.key, &from.key, at[1], &mut *self.key, &*shares.key),
            ("d_v", &to.value, &from.value, at[1], &mut *self.value, &*shares.value),
        ];
        for (argument, to, from, at, ..) in &views {
            let end = at.saturating_add(from.tokens());
            for (axis, found, allowed) in [
                ("batch", from.batch(), to.batch()),
                ("heads", from.heads(), to.heads()),
                ("head size", from.dim(), to.dim()),
                // The last token of the shares must exist in these gradients.
                ("tokens", end.max(to.tokens()), to.tokens()),
            ] {
                if found != allowed {
                    let of = "the gradient";
                    return Err(ArgumentError::Mismatch { argument, axis, found, allowed, of });
                }
            }
        }
        for (_, to, from, at, sums, shares) in views {
            for b in 0..from.batch() {
                for h in 0..from.heads() {
                    for token in 0..from.tokens() {
                        let (start, share) = (to.row(b, h, at + token), from.row(b, h, token));
                        let sums = &mut sums[start..start + to.dim()];
                        let shares = &shares[share..share + to.dim()];
                        sums.iter_mut().zip(shares).for_each(|(sum, share)| *sum += share);
                    }
                }
            }
        }
        Ok(())
    }

    /// Checks the lengths of the buffers against `problem`.
    ///
    /// # Errors
    /// Returns an error for the first buffer that is too short.
    pub fn check(&self, problem: &BackwardProblem) -> Result<(), ArgumentError> {
        let spec = problem.spec();
        for (argument, view, found) in [
            ("d_q", &spec.query, self.query.len()),
            ("d_k", &spec.key, self.key.len()),
            ("d_v", &spec.value, self.value.len()),
        ] {
            let needed = view.extent();
            if found < needed {
                return Err(ArgumentError::Short { argument, found, needed });
            }
        }
        Ok(())
    }
}
