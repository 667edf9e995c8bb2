//! What plans, staging and fallback know of an operator's problem.

use crate::tensors::{PerTensor, Tensor};
use std::fmt::Debug;

/// A checked problem of an operator, as plain data.
pub trait Problem: Copy + Debug + Send + Sync + 'static {
    /// The numbers of a call, besides its tensors, that the host reads: lengths and bounds of sequences.
    type Lengths<'a>: Copy + Debug + Send + Sync;

    /// Number of sequences of a call.
    fn sequences(&self) -> usize;

    /// The tensors of a call.
    fn tensors(&self) -> PerTensor<Tensor>;
}
