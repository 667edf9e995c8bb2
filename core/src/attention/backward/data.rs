//! The data of a backward call: the tensors that it reads and writes.

use super::operands::Operand;
use super::problem::BackwardProblem;
use crate::argument::{ArgumentError, enough};
use crate::attention::data::Inputs;
use crate::dtype::{DType, Elements};
use crate::operands::{ByOperand, Location};
use crate::view::View;

/// What the forward pass knows of each row, `[batch, heads, queries]`, in natural-log units. The state is the better one:
/// its probabilities stay exact where scores are large.
#[derive(Clone, Copy, Debug)]
pub enum Statistics<'a> {
    /// Log-sum-exp of each row, as [`Outputs::lse`](crate::attention::Outputs) has it. Its rounding to f32, up to
    /// `|lse| 2^-24`, is a relative error of every probability of the row.
    LogSumExp(&'a [f32]),
    /// References and sums of the states, as [`Outputs::state`](crate::attention::Outputs) has them.
    State {
        /// References `m`.
        m: &'a [f32],
        /// Sums `S`.
        s: &'a [f32],
    },
}

impl Statistics<'_> {
    /// `(m, S)` of the row at `index`; of a log-sum-exp `(lse, 1)`, and `(−∞, 0)` of a row without keys.
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
/// With a [`Chunk`](crate::attention::Chunk) among the lengths, queries and keys are a part of a whole, whose statistics and
/// outputs these rows have; the gradients are the shares of the call's pairs in those of the whole.
#[derive(Clone, Copy, Debug)]
pub struct BackwardInputs<'a> {
    /// The inputs of the forward pass.
    pub forward: Inputs<'a>,
    /// The output of the forward pass, in the view of the problem's output; of the problem's type, or f32. `D_i` is as
    /// exact as this: an output in a 16-bit type is rounded, and so is `D_i`.
    pub output: Elements<'a>,
    /// The upstream gradient; of the problem's type, or f32.
    pub upstream: Elements<'a>,
    /// What the forward pass knows of each row. They must be those of these inputs: others give gradients of no
    /// attention.
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
    /// Returns the first mismatch.
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

/// The gradients of a call, in the views of the [`BackwardProblem`]. They are f32 whatever the type of the inputs. Every
/// row is written; those of queries without keys, and of keys that no query attends, are zero.
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
    /// Adds shares of the views of `of`, `shares`, to the rows of these from the places `at` on: of queries, of keys and
    /// values. Each element is the sum of two, rounded once.
    ///
    /// # Errors
    /// Returns an error if buffers are too short, if batch, heads or head sizes differ, or if shares lie beyond the end.
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
                // The shares' last token, and that of the whole.
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
    /// Returns the first buffer that is too short.
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
