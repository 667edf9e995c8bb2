//! Lists the tensors of a call: the memory of each, the direction in which it passes, and its location.
//!
//! Every operator has a list of operands of its own. What serves all of them (binding, staging, fallback) is generic over it.

use elsa_core::dtype::DType;
use elsa_core::memory::Memory;
use elsa_core::operands::{ByOperand, Location, Operand, Operands};
use std::fmt;
use std::marker::PhantomData;
use std::ptr;

/// Properties that a problem gives a tensor of its calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tensor {
    /// Name in error messages.
    pub argument: &'static str,
    /// Memory; `None` if the problem does not have it.
    pub memory: Option<Memory>,
    /// `true` if a run reads the tensor's contents at its start.
    pub read: bool,
    /// `true` if a run writes it.
    pub written: bool,
    /// `true` if a call may do without it.
    pub optional: bool,
    /// If runs append to it: the number of tokens that it keeps. They are read, the rest is written.
    pub kept: Option<usize>,
    /// `true` if few calls have it, so that copies of it have a buffer of their own.
    pub apart: bool,
    /// Name of the option of the problem that forbids it, if one does.
    pub forbidden: Option<&'static str>,
}

impl Tensor {
    /// Returns the number of bytes that its memory must have; zero if the problem does not have it.
    pub fn bytes(&self) -> usize {
        self.memory.map_or(0, |memory| memory.bytes())
    }
}

/// Returns the tensors that a call names, on the host or on a device; `None` for those that it does not have.
pub fn places<O: Operand, A>(
    inputs: &mut impl ByOperand<O, Address = A>,
    outputs: &mut impl ByOperand<O, Address = A>,
) -> Operands<O, Option<Location<A>>> {
    Operands::from_fn(|operand| inputs.place(operand).or_else(|| outputs.place(operand)))
}

/// The types of the elements of a call's tensors, where the problem leaves them to the call.
pub type Types<O> = Operands<O, DType>;

/// Returns the types of a call whose tensors are all f32, which are the largest.
pub fn largest<O: Operand>() -> Types<O> {
    Operands::from_fn(|_| DType::F32)
}

/// Returns the types that the places of a call state; f32 where they state none.
pub fn types<O: Operand, A>(places: &Operands<O, Option<Location<A>>>) -> Types<O> {
    Operands::from_fn(|operand| places[operand].as_ref().and_then(|place| place.dtype).unwrap_or(DType::F32))
}

/// The host tensors of a call, as pointers that both the CPU and a GPU may hold.
///
/// Invariant *tensors*: the data have been checked against a problem. Every non-null pointer is readable for the bytes
/// that the problem states for its tensor, for the lifetime `'a`. Outputs are also writable, and nothing else uses their
/// memory during that time.
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
    /// Takes the tensors of a call, whose data have been checked against its problem.
    pub fn new(
        mut inputs: impl ByOperand<O, Address = *mut u8> + 'a,
        mut outputs: impl ByOperand<O, Address = *mut u8> + 'a,
    ) -> HostTensors<'a, O> {
        let places = places(&mut inputs, &mut outputs);
        let at = Operands::from_fn(|operand| {
            places[operand].as_ref().map_or(ptr::null_mut(), |place| place.address)
        });
        HostTensors { at, types: types(&places), borrowed: PhantomData }
    }

    /// Takes f32 tensors at these addresses, which have the memory that the problem states for them as long as `'a`.
    pub fn largest(at: Operands<O, *mut u8>) -> HostTensors<'a, O> {
        HostTensors { at, types: largest(), borrowed: PhantomData }
    }

    /// Returns the address of the first byte of a tensor; null if the call does not have it. Inputs are only read through it.
    pub fn at(&self, operand: O) -> *mut u8 {
        self.at[operand]
    }

    /// Returns the types of the elements.
    pub fn types(&self) -> &Types<O> {
        &self.types
    }

    /// Returns whether the call has each tensor.
    pub fn given(&self) -> Operands<O, bool> {
        Operands::from_fn(|operand| !self.at[operand].is_null())
    }
}

/// The tensors of a call on a device.
pub struct DeviceTensors<'a, O: Operand> {
    /// The device address of each; zero if the call does not have it.
    pub at: Operands<O, u64>,
    /// The types of the elements.
    pub types: &'a Types<O>,
}
