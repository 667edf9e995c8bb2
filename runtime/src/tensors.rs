//! Lists the tensors of a call. For each tensor, the list states its memory, whether runs read or write it, and its
//! location.
//!
//! Every operator has its own list of operands. Binding, staging and fallback are generic over that list.

use elsa_core::dtype::DType;
use elsa_core::memory::Memory;
use elsa_core::operands::{ByOperand, Location, Operand, Operands};
use std::fmt;
use std::marker::PhantomData;
use std::ptr;

/// Properties of a tensor. They are determined by the problem, and are the same for all calls with this problem.
#[derive(Clone, Copy, Debug, Default)]
pub struct TensorSpec {
    /// Name in error messages.
    pub argument: &'static str,
    /// Size and layout of the tensor's memory; `None` if the problem does not have the tensor.
    pub memory: Option<Memory>,
    /// `true` if a run reads the contents that the tensor has when the run starts.
    pub read: bool,
    /// `true` if a run writes the tensor.
    pub written: bool,
    /// `true` if a call may omit the tensor.
    pub optional: bool,
    /// For a tensor to which runs append tokens: the number of tokens at its start that a run keeps and reads. The run
    /// writes the later tokens.
    pub kept_tokens: Option<usize>,
    /// `true` if only few calls have the tensor. Copies of this tensor are then in a separate buffer.
    pub apart: bool,
    /// Name of the problem's option that forbids the tensor; `None` if the tensor is allowed.
    pub forbidden: Option<&'static str>,
}

impl TensorSpec {
    /// Returns the size of the tensor's memory in bytes; zero if the problem does not have the tensor.
    pub fn bytes(&self) -> usize {
        self.memory.map_or(0, |memory| memory.bytes())
    }
}

/// Returns the location of every tensor of a call, on the host or on a device; `None` for tensors that the call omits.
pub fn places<O: Operand, A>(
    inputs: &mut impl ByOperand<O, Address = A>,
    outputs: &mut impl ByOperand<O, Address = A>,
) -> Operands<O, Option<Location<A>>> {
    Operands::from_fn(|operand| inputs.place(operand).or_else(|| outputs.place(operand)))
}

/// The element types of a call's tensors, for problems that leave the types to the call.
pub type Types<O> = Operands<O, DType>;

/// Returns the element types of a call whose tensors are all f32, the largest type.
pub fn largest<O: Operand>() -> Types<O> {
    Operands::from_fn(|_| DType::F32)
}

/// Returns the element types that the locations of a call's tensors state; f32 for tensors whose location states no
/// type.
pub fn types<O: Operand, A>(places: &Operands<O, Option<Location<A>>>) -> Types<O> {
    Operands::from_fn(|operand| places[operand].as_ref().and_then(|place| place.dtype).unwrap_or(DType::F32))
}

/// The host tensors of a call, as pointers that calls on the CPU and on a GPU can store.
///
/// Invariant *tensors*: the data have been checked against a problem. Every non-null pointer is readable for the bytes
/// that the problem states for its tensor, for the lifetime `'a`. Outputs are also writable, and nothing else uses
/// their memory during that time.
pub struct HostTensors<'a, O: Operand> {
    at: Operands<O, *mut u8>,
    types: Types<O>,
    borrowed: PhantomData<&'a ()>,
}

impl<O: Operand> fmt::Debug for HostTensors<'_, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HostTensors").field(&self.at).finish()
    }
}

impl<'a, O: Operand> HostTensors<'a, O> {
    /// Wraps the tensors of a call. The data of the tensors must have been checked against the problem.
    pub fn new(
        inputs: impl ByOperand<O, Address = *mut u8> + 'a,
        outputs: impl ByOperand<O, Address = *mut u8> + 'a,
    ) -> HostTensors<'a, O> {
        HostTensors::at_places_of(inputs, outputs)
    }

    /// Wraps the tensors of a call for a lifetime that the caller chooses. Whoever uses the result ensures the invariant
    /// *tensors*.
    pub fn at_places_of(
        mut inputs: impl ByOperand<O, Address = *mut u8>,
        mut outputs: impl ByOperand<O, Address = *mut u8>,
    ) -> HostTensors<'a, O> {
        let places = places(&mut inputs, &mut outputs);
        let at = Operands::from_fn(|operand| {
            places[operand].as_ref().map_or(ptr::null_mut(), |place| place.address)
        });
        HostTensors { at, types: types(&places), borrowed: PhantomData }
    }

    /// Wraps tensors of these types at these addresses. For the lifetime `'a`, the memory that the problem states for a
    /// tensor must be available at the tensor's address.
    pub fn of_types(at: Operands<O, *mut u8>, types: Types<O>) -> HostTensors<'a, O> {
        HostTensors { at, types, borrowed: PhantomData }
    }

    /// Returns the same tensors for the lifetime `'b`, in which the invariant *tensors* must hold, too.
    pub fn again<'b>(&self) -> HostTensors<'b, O> {
        HostTensors {
            at: Operands::from_fn(|operand| self.at[operand]),
            types: Operands::from_fn(|operand| self.types[operand]),
            borrowed: PhantomData,
        }
    }

    /// Returns the address of the first byte of each tensor; null for tensors that the call omits. Callers must not write
    /// inputs.
    pub fn all(&self) -> &Operands<O, *mut u8> {
        &self.at
    }

    /// Returns the address of the first byte of a tensor; null if the call omits it. Callers must not write inputs.
    pub fn at(&self, operand: O) -> *mut u8 {
        self.at[operand]
    }

    /// Returns the element types of the tensors.
    pub fn types(&self) -> &Types<O> {
        &self.types
    }

    /// Returns, for each tensor, whether the call has it.
    pub fn given(&self) -> Operands<O, bool> {
        Operands::from_fn(|operand| !self.at[operand].is_null())
    }
}

/// The tensors of a call on a device.
pub struct DeviceTensors<'a, O: Operand> {
    /// Device address of each tensor; zero if the call omits it.
    pub at: Operands<O, u64>,
    /// Element types of the tensors.
    pub types: &'a Types<O>,
}
