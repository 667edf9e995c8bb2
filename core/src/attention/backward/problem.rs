//! The backward problem: an attention problem, and the shapes of its gradients.

use super::operands::Operand;
use crate::argument::ArgumentError;
use crate::attention::problem::Problem;
use crate::dtype::DType;
use crate::memory::Memory;
use crate::view::{Layout, View};

/// The unchecked description of a backward pass. Create it with [`BackwardSpec::new`], replace views if necessary, and
/// call [`BackwardSpec::check`].
#[derive(Clone, Copy, Debug)]
pub struct BackwardSpec {
    /// The upstream gradient, `[batch, heads, queries, d_v]`.
    pub upstream: View,
    /// The gradient of the queries, `[batch, heads, queries, d]`.
    pub query: View,
    /// The gradient of the keys, `[batch, kv_heads, keys, d]`.
    pub key: View,
    /// The gradient of the values, `[batch, kv_heads, keys, d_v]`.
    pub value: View,
}

/// Returns the view of the gradient of the tensor with the view `view`: the same view, or a dense view of the same shape if
/// rows of the tensor share elements.
fn own(argument: &'static str, view: &View) -> Result<View, ArgumentError> {
    if view.may_overlap() { View::dense(argument, Layout::Bhnd, &view.shape(), None) } else { Ok(*view) }
}

impl BackwardSpec {
    /// Creates a description in which each gradient has the view of its tensor in `problem`. If rows of the tensor
    /// share elements, as in a broadcast tensor, its gradient is dense, `[batch, heads, tokens, dim]`.
    ///
    /// # Errors
    /// Returns an error if a dense gradient is too large to index.
    pub fn new(problem: &Problem) -> Result<BackwardSpec, ArgumentError> {
        let spec = problem.spec();
        Ok(BackwardSpec {
            upstream: spec.output,
            query: own("d_q", &spec.query)?,
            key: own("d_k", &spec.key)?,
            value: own("d_v", &spec.value)?,
        })
    }

    /// Checks the views against `problem`, and checks that the problem has a backward pass.
    ///
    /// # Errors
    /// Returns an error if the shape of a gradient differs from that of its tensor, if rows of a gradient overlap, or if
    /// the problem has past or present tensors.
    pub fn check(self, problem: &Problem) -> Result<BackwardProblem, ArgumentError> {
        use ArgumentError as E;
        let s = problem.spec();
        if let Some(argument) = s.past_or_present() {
            return Err(E::Conflict { argument, other: "d_out" });
        }
        for (argument, view, like, of, is_written) in [
            ("d_out", &self.upstream, &s.output, "out", false),
            ("d_q", &self.query, &s.query, "q", true),
            ("d_k", &self.key, &s.key, "k", true),
            ("d_v", &self.value, &s.value, "v", true),
        ] {
            for (a, axis) in ["batch", "heads", "tokens", "head size"].into_iter().enumerate() {
                let (found, allowed) = (view.shape()[a], like.shape()[a]);
                if found != allowed {
                    return Err(E::Mismatch { argument, axis, found, allowed, of });
                }
            }
            if is_written && view.may_overlap() {
                return Err(E::Overlap { argument });
            }
        }
        Ok(BackwardProblem { forward: *problem, spec: self })
    }
}

/// A checked backward problem, created by [`BackwardSpec::check`].
#[derive(Clone, Copy, Debug)]
pub struct BackwardProblem {
    forward: Problem,
    spec: BackwardSpec,
}

impl BackwardProblem {
    /// Creates the backward pass of `problem`, with the views of [`BackwardSpec::new`].
    ///
    /// # Errors
    /// Returns the errors of [`BackwardSpec::new`] and [`BackwardSpec::check`].
    pub fn new(problem: &Problem) -> Result<BackwardProblem, ArgumentError> {
        BackwardSpec::new(problem)?.check(problem)
    }

    /// Returns the attention problem to which the gradients belong.
    #[must_use]
    pub const fn forward(&self) -> &Problem {
        &self.forward
    }

    /// Returns the size and layout of the memory that an operand occupies; `None` if the problem does not have the operand.
    /// `dtype` is the element type of the output and of the upstream gradient in the call.
    #[must_use]
    pub fn memory(&self, operand: Operand, dtype: DType) -> Option<Memory> {
        let of = |view: &View, dtype: DType| {
            Some(Memory { elements: view.extent(), element_size: dtype.size(), view: Some(*view) })
        };
        let spec = &self.spec;
        match operand {
            Operand::Output => of(&self.forward.spec().output, dtype),
            Operand::Upstream => of(&spec.upstream, dtype),
            Operand::QueryGradient => of(&spec.query, DType::F32),
            Operand::KeyGradient => of(&spec.key, DType::F32),
            Operand::ValueGradient => of(&spec.value, DType::F32),
            _ => self.forward.memory(operand.of_forward()?),
        }
    }

    /// Returns the views of the gradients, including the upstream gradient.
    #[must_use]
    pub const fn spec(&self) -> &BackwardSpec {
        &self.spec
    }
}
