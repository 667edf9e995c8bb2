//! What plans, staging and fallback know of an operator's problem.

use crate::tensors::{PerTensor, Tensor};
use std::fmt::Debug;

/// A checked problem of an operator, as plain data.
pub trait Problem: Copy + Debug + Send + Sync + 'static {
    /// What a call has besides its tensors that the host reads: lengths and bounds of sequences, or types of elements.
    type Lengths<'a>: Copy + Debug + Send + Sync;

    /// Number of sequences of a call.
    fn sequences(&self) -> usize;

    /// The tensors of a call; where a call says of which type its elements are, those of the largest.
    fn tensors(&self) -> PerTensor<Tensor>;

    /// The tensors of a call with these numbers.
    fn tensors_of(&self, _lengths: &Self::Lengths<'_>) -> PerTensor<Tensor> {
        self.tensors()
    }
}
