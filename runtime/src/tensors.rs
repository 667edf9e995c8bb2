//! The tensors of a call as a list: what each occupies, in which direction it passes, and where it lies.
//!
//! Every operator has a list of operands of its own, in an order of its own. What serves all of them (binding, staging,
//! fallback) knows a tensor by its number in that list.

use elsa_core::memory::Memory;
use std::array;
use std::marker::PhantomData;
use std::ptr;

/// Most tensors of a call.
pub const MOST_TENSORS: usize = 16;

/// A value for each tensor of a call. Numbers beyond the operator's operands are tensors that no call has.
pub type PerTensor<T> = [T; MOST_TENSORS];

/// What a problem says of a tensor of its calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tensor {
    /// Its name in error messages.
    pub argument: &'static str,
    /// Its memory; `None` if the problem does not have it.
    pub memory: Option<Memory>,
    /// Whether a run reads what it holds when the run begins.
    pub read: bool,
    /// Whether a run writes it.
    pub written: bool,
    /// Whether a call may do without it.
    pub optional: bool,
    /// If runs append to it: the number of tokens that it keeps. They are read, the rest is written.
    pub kept: Option<usize>,
    /// Whether few calls have it, so that copies of it have a buffer of their own.
    pub apart: bool,
    /// Name of the option of the problem that forbids it, if one does.
    pub forbidden: Option<&'static str>,
}

impl Tensor {
    /// Number of bytes that its memory must have; zero if the problem does not have it.
    pub fn bytes(&self) -> usize {
        self.memory.map_or(0, |memory| memory.bytes())
    }
}

/// The tensors that a call has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Given(u32);

impl Given {
    /// The tensors for which `given` is true.
    pub fn of(mut given: impl FnMut(usize) -> bool) -> Given {
        Given((0..MOST_TENSORS).map(|at| u32::from(given(at)) << at).sum())
    }

    /// Whether the call has tensor number `at`.
    pub fn has(self, at: usize) -> bool {
        self.0 >> at & 1 == 1
    }
}

/// The host tensors of a call, as pointers that both the CPU and a GPU may hold.
///
/// Invariant *tensors*: the data have been checked against a problem. Every non-null pointer is readable for the bytes
/// that the problem states for its tensor, for the lifetime `'a`. Outputs are also writable, and nobody else uses their
/// memory during that time.
#[derive(Clone, Copy, Debug)]
pub struct HostTensors<'a> {
    at: PerTensor<*mut u8>,
    borrowed: PhantomData<&'a ()>,
}

impl Default for HostTensors<'_> {
    fn default() -> Self {
        HostTensors { at: [ptr::null_mut(); MOST_TENSORS], borrowed: PhantomData }
    }
}

impl HostTensors<'_> {
    /// Address of the first byte of tensor number `at`; null if the call does not have it.
    pub fn at(&self, at: usize) -> *mut u8 {
        self.at[at]
    }

    /// Sets the address of tensor number `at`. Inputs are only read through it.
    pub fn set(&mut self, at: usize, data: *mut u8) {
        self.at[at] = data;
    }

    /// The tensors that the call has.
    pub fn given(&self) -> Given {
        Given::of(|at| !self.at[at].is_null())
    }
}

/// Calls `of` for the number of each tensor.
pub fn per_tensor<T>(of: impl FnMut(usize) -> T) -> PerTensor<T> {
    array::from_fn(of)
}
