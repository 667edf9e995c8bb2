//! The data of a backward call: the tensors that it reads and writes.

use super::problem::BackwardProblem;
use crate::argument::ArgumentError;
use crate::attention::data::Inputs;
use crate::attention::operands::Operand;
use crate::dtype::{DType, Elements};
use crate::quorum::{Run, Task};
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
    /// The task whose pairs count; `None` for all pairs. The tensors hold the tokens of the whole, and so do the gradients,
    /// in which rows of other tokens are zero.
    pub task: Option<&'a Task>,
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
    if found < needed { Err(E::Short { argument, found, needed }) } else { Ok(()) }
}

/// The end of the last token of the runs, in the original sequence.
fn end_of(runs: &[Run]) -> usize {
    runs.iter().map(|run| run.span().start + run.span().tokens).max().unwrap_or(0)
}

/// Checks that a task divides the sequences of a problem.
fn check_task(problem: &BackwardProblem, task: &Task) -> Result<(), ArgumentError> {
    let spec = problem.forward().spec();
    if spec.packed.is_some() {
        return Err(ArgumentError::Conflict { argument: "task", other: "cu_seqlens_q" });
    }
    for (argument, view, runs) in [("q", &spec.query, task.queries()), ("k", &spec.key, task.keys())] {
        let (found, needed) = (view.tokens(), end_of(runs));
        if found < needed {
            return Err(ArgumentError::Mismatch {
                argument,
                axis: "tokens",
                found,
                allowed: needed,
                of: "the task",
            });
        }
    }
    Ok(())
}

impl BackwardInputs<'_> {
    /// Checks the inputs against `problem`: element types, buffer lengths, and sequence lengths.
    ///
    /// # Errors
    /// Returns the first mismatch.
    pub fn check(&self, problem: &BackwardProblem) -> Result<(), ArgumentError> {
        let forward = problem.forward();
        self.forward.check(forward)?;
        if self.forward.lengths.chunk.is_some() {
            return Err(ArgumentError::Conflict { argument: "chunk", other: "d_out" });
        }
        if let Some(task) = self.task {
            check_task(problem, task)?;
        }
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

impl Gradients<'_> {
    /// Adds the gradients that a task gave, `part`, to these. Rows of tokens that the task does not hold are left alone.
    ///
    /// # Errors
    /// Returns an error if buffers are too short, or if the task does not divide the problem's sequences.
    pub fn add(
        &mut self,
        problem: &BackwardProblem,
        task: &Task,
        part: &Gradients<'_>,
    ) -> Result<(), ArgumentError> {
        self.check(problem)?;
        part.check(problem)?;
        check_task(problem, task)?;
        let spec = problem.spec();
        for (view, runs, to, from) in [
            (&spec.query, task.queries(), &mut *self.query, &*part.query),
            (&spec.key, task.keys(), &mut *self.key, &*part.key),
            (&spec.value, task.keys(), &mut *self.value, &*part.value),
        ] {
            for b in 0..view.batch() {
                for h in 0..view.heads() {
                    for span in runs.iter().map(Run::span) {
                        for token in span.start..span.start + span.tokens {
                            let at = view.row(b, h, token);
                            let row = at..at + view.dim();
                            let pairs = to[row.clone()].iter_mut().zip(&from[row]);
                            pairs.for_each(|(to, from)| *to += from);
                        }
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
