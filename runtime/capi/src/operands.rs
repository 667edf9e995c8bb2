//! Conversion of the operands of a call: from the memory that its fields name to checked buffers.

use crate::fault::Fault;
use crate::memory::{Buffer, Unchecked};
use elsa_core::memory::Memory;
use elsa_core::operands::{Operand, Operands};
use std::ffi::c_void;

/// Checks the address and the size of each operand, in the order of `fields`. `memory` returns the memory that an
/// operand needs, and `true` if a call may omit the operand. For a past operand that is stored in the memory of a
/// present tensor, `within` returns that tensor and its address; the call may pass the same address for the past
/// operand.
pub(crate) fn buffers<O: Operand>(
    fields: &[(O, Unchecked)],
    output: O,
    memory: impl Fn(O) -> (Option<Memory>, bool),
    within: impl Fn(O) -> Option<(O, *mut c_void)>,
) -> Result<Operands<O, Buffer>, Fault> {
    let mut operands = Operands::from_fn(|_| Buffer::ABSENT);
    for (operand, given) in fields.iter().copied() {
        let name = operand.argument();
        operands[operand] = match (memory(operand), within(operand)) {
            // An output without elements may be null with 0 bytes, like the data of an empty vector.
            ((Some(memory), true), _) if !given.any() && (operand, memory.elements) != (output, 0) => {
                Buffer::ABSENT
            }
            ((Some(memory), _), _) => Buffer::new(name, given, memory.elements, memory.element_size)?,
            ((None, _), Some((present, address))) => {
                Buffer::within(name, given, (present.argument(), address))?
            }
            ((None, _), None) => Buffer::without(name, given)?,
        };
    }
    Ok(operands)
}

/// Iterates over the operands in the order of `fields`. Yields, for each operand, `true` if the operand is written, and the
/// operand's checked memory.
pub(crate) fn in_order<O: Operand>(
    fields: &[(O, Unchecked)],
    operands: &Operands<O, Buffer>,
) -> impl Iterator<Item = (bool, Buffer)> + Clone {
    fields.iter().map(|(operand, _)| (operand.is_written(), operands[*operand]))
}
