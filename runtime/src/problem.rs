//! Defines the properties of an operator's problem that planning, staging and fallback use.

use crate::tensors::{TensorSpec, Types, largest};
use elsa_core::dtype::DType;
use elsa_core::operands::{Operand, Operands};
use std::fmt::Debug;

/// A checked problem of an operator. It contains no pointers.
pub trait Problem: Copy + Debug + Send + Sync + 'static {
    /// The tensors of a call.
    type Operand: Operand;
    /// Data in host memory that a call has in addition to its tensors: the lengths and boundaries of sequences.
    type Lengths<'a>: Copy + Debug + Send + Sync;

    /// Returns the number of sequences of a call.
    fn sequences(&self) -> usize;

    /// Returns the properties that the tensor `operand` has in a call. If the problem leaves the element type to the
    /// call, the elements are of type `dtype`.
    fn tensor(&self, operand: Self::Operand, dtype: DType) -> TensorSpec;

    /// Returns the properties of a call's tensors. `types` are the element types of these tensors.
    fn tensors_of(&self, types: &Types<Self::Operand>) -> Operands<Self::Operand, TensorSpec> {
        Operands::from_fn(|operand| self.tensor(operand, types[operand]))
    }

    /// Returns the properties of a call's tensors. A tensor whose type the call determines gets the largest type, f32.
    fn tensors(&self) -> Operands<Self::Operand, TensorSpec> {
        self.tensors_of(&largest())
    }
}
