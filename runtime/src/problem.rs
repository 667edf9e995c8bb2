//! Defines the view of an operator's problem that plans, staging and fallback share.

use crate::tensors::{Tensor, Types, largest};
use elsa_core::dtype::DType;
use elsa_core::operands::{Operand, Operands};
use std::fmt::Debug;

/// A checked problem of an operator, as plain data.
pub trait Problem: Copy + Debug + Send + Sync + 'static {
    /// The tensors of a call.
    type Operand: Operand;
    /// Host data of a call besides its tensors: lengths and bounds of sequences.
    type Lengths<'a>: Copy + Debug + Send + Sync;

    /// Returns the number of sequences of a call.
    fn sequences(&self) -> usize;

    /// Returns a tensor of a call, whose elements are of type `dtype` if the problem leaves that to the call.
    fn tensor(&self, operand: Self::Operand, dtype: DType) -> Tensor;

    /// Returns the tensors of a call with these types.
    fn tensors_of(&self, types: &Types<Self::Operand>) -> Operands<Self::Operand, Tensor> {
        Operands::from_fn(|operand| self.tensor(operand, types[operand]))
    }

    /// Returns the tensors of a call. If the call determines an element type, its largest type is used.
    fn tensors(&self) -> Operands<Self::Operand, Tensor> {
        self.tensors_of(&largest())
    }
}
