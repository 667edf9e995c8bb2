//! The name of an operator, and its inputs and outputs as they are declared to the runtime.

use std::ffi::CStr;

/// Element type with which an input or output is declared to the runtime, and the memory in which it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Declared {
    /// The type of the table: f32 or f16. Before version 1.18 of the runtime, an input may have any type.
    Main,
    /// Any type, which a call checks.
    Any,
    /// Any type, which a call checks, in memory of the host.
    OnHost,
    /// f32.
    F32,
}

/// An input or an output of an operator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parameter {
    pub name: &'static str,
    pub declared: Declared,
    /// `true` if every node has it.
    pub required: bool,
}

impl Parameter {
    /// Describes an input or output that every node has.
    pub const fn required(name: &'static str, declared: Declared) -> Parameter {
        Parameter { name, declared, required: true }
    }

    /// Describes an input or output that a node may omit.
    pub const fn optional(name: &'static str, declared: Declared) -> Parameter {
        Parameter { name, declared, required: false }
    }
}

/// The name of an operator, and its inputs and outputs in order.
#[derive(Debug)]
pub(crate) struct Signature {
    pub name: &'static CStr,
    pub inputs: &'static [Parameter],
    pub outputs: &'static [Parameter],
}
