//! Memory that the caller names: checks of its address and size, and slices of the checked memory.

use crate::fault::Fault;
use crate::types::*;
use elsa_core::dtype::{DType, Elements, ElementsMut};
use half::{bf16, f16};
use std::ffi::c_void;
use std::{ptr, slice};

/// Memory as named by the caller, not yet checked.
#[derive(Clone, Copy)]
pub(crate) struct Unchecked {
    pub data: *mut c_void,
    pub bytes: usize,
}

impl Unchecked {
    /// Returns `true` if the tensor is given. An absent tensor has a null address and 0 bytes.
    pub(crate) fn any(self) -> bool {
        !self.data.is_null() || self.bytes != 0
    }
}

impl From<elsa_input> for Unchecked {
    fn from(input: elsa_input) -> Unchecked {
        // An input is only read, although its pointer becomes a mutable one here.
        Unchecked { data: input.data.cast_mut(), bytes: input.bytes }
    }
}

impl From<elsa_output> for Unchecked {
    fn from(output: elsa_output) -> Unchecked {
        Unchecked { data: output.data, bytes: output.bytes }
    }
}

impl From<elsa_integers> for Unchecked {
    fn from(list: elsa_integers) -> Unchecked {
        Unchecked { data: list.data.cast_mut().cast(), bytes: list.count.saturating_mul(size_of::<i64>()) }
    }
}

/// Checked memory: aligned, and long enough for `elements` elements of `size` bytes. The address is null only if there
/// are no elements.
///
/// `present` is a flag because an `Option` would initialise only its tag for `None`. Compiled code may read `elements`
/// before the tag, and memory checkers then report a jump that depends on uninitialised memory.
#[derive(Clone, Copy)]
pub(crate) struct Buffer {
    name: &'static str,
    pub data: *mut c_void,
    elements: usize,
    size: usize,
    pub present: bool,
}

impl Buffer {
    /// Buffer of a tensor that the problem or the call does not have.
    pub(crate) const ABSENT: Buffer =
        Buffer { name: "", data: ptr::null_mut(), elements: 0, size: 1, present: false };

    /// Returns the result of `of` if the buffer is present; otherwise `None`.
    pub(crate) fn map<T>(&self, of: impl FnOnce(&Buffer) -> T) -> Option<T> {
        self.present.then(|| of(self))
    }

    pub(crate) fn new(
        name: &'static str,
        given: Unchecked,
        elements: usize,
        size: usize,
    ) -> Result<Buffer, Fault> {
        let Unchecked { data, bytes } = given;
        let address = data as usize;
        if data.is_null() {
            // A tensor without elements needs no memory.
            let buffer = Buffer { name, data, elements, size, present: true };
            return if bytes == 0 && elements == 0 { Ok(buffer) } else { Err(Fault::null(name)) };
        }
        if !address.is_multiple_of(size) {
            return Err(Fault::argument(format_args!(
                "{name}: address {address:#x}; allowed: a multiple of {size}"
            )));
        }
        if address.checked_add(bytes).is_none() || bytes > isize::MAX as usize {
            return Err(Fault::argument(format_args!(
                "{name}: {bytes} bytes from {address:#x}; allowed: bytes that end within the address space"
            )));
        }
        if bytes / size < elements {
            return Err(Fault::argument(format_args!(
                "{name}: {bytes} bytes; allowed: at least {}",
                elements.saturating_mul(size)
            )));
        }
        Ok(Buffer { name, data, elements, size, present: true })
    }

    /// Checks the memory of a tensor that must be absent because the problem does not have it.
    pub(crate) fn without(name: &'static str, given: Unchecked) -> Result<Buffer, Fault> {
        if given.any() {
            return Err(Fault::argument(format_args!(
                "{name}: given, and the problem does not have it; allowed: null with 0 bytes"
            )));
        }
        Ok(Buffer::ABSENT)
    }

    /// Checks the memory that a call names for a past tensor stored in the memory of the present tensor. It must be
    /// null with 0 bytes, or have the address of the present tensor.
    pub(crate) fn within(
        name: &'static str,
        given: Unchecked,
        (present, address): (&'static str, *mut c_void),
    ) -> Result<Buffer, Fault> {
        if given.any() && (given.data.is_null() || given.data != address) {
            return Err(Fault::argument(format_args!(
                "{name}: address {:#x}; allowed: null with 0 bytes, or the address of {present}, in whose memory it lies",
                given.data as usize
            )));
        }
        Ok(Buffer::ABSENT)
    }

    fn address(&self) -> usize {
        self.data as usize
    }

    /// Returns the address range of the used bytes.
    fn range(&self) -> std::ops::Range<usize> {
        self.address()..self.address() + self.elements * self.size
    }

    /// Returns an error if `other` shares bytes with this buffer. The call writes to this buffer. Neither buffer is empty.
    fn apart_from(&self, other: &Buffer) -> Result<(), Fault> {
        let (a, b) = (self.range(), other.range());
        if a.end <= b.start || b.end <= a.start {
            return Ok(());
        }
        Err(Fault::argument(format_args!(
            "{}: {} elements of {} bytes at {:#x} overlap {} at {:#x}; allowed: memory of its own",
            self.name, self.elements, self.size, a.start, other.name, b.start
        )))
    }

    /// # Safety
    /// The buffer was made for elements of the size of `T`. For `'a`, its memory is readable and nothing writes to it.
    pub(crate) unsafe fn read<'a, T>(&self) -> &'a [T] {
        if self.elements == 0 {
            return &[];
        }
        // SAFETY: the address is not null, is aligned and has enough elements (`Buffer`), and is readable by the clause
        // of this function. `T` is a number, so every pattern of bits is a `T`.
        unsafe { slice::from_raw_parts(self.data.cast(), self.elements) }
    }

    /// # Safety
    /// The buffer was made for elements of the size of `T`. For `'a`, its memory is writable and nothing else uses it.
    pub(crate) unsafe fn write<'a, T>(&self) -> &'a mut [T] {
        if self.elements == 0 {
            return &mut [];
        }
        // SAFETY: the address is not null, is aligned and has enough elements (`Buffer`), and is writable by the clause
        // of this function. `T` is a number, so every pattern of bits is a `T`.
        unsafe { slice::from_raw_parts_mut(self.data.cast(), self.elements) }
    }

    /// # Safety
    /// The caller keeps the clauses of [`Buffer::read`], for elements of the size of `dtype`.
    pub(crate) unsafe fn elements<'a>(&self, dtype: DType) -> Elements<'a> {
        // SAFETY: the caller keeps the clause of this function.
        unsafe {
            match dtype {
                DType::F32 => Elements::F32(self.read::<f32>()),
                DType::F16 => Elements::F16(self.read::<f16>()),
                DType::Bf16 => Elements::Bf16(self.read::<bf16>()),
            }
        }
    }

    /// # Safety
    /// The caller keeps the clauses of [`Buffer::write`], for elements of the size of `dtype`.
    pub(crate) unsafe fn elements_mut<'a>(&self, dtype: DType) -> ElementsMut<'a> {
        // SAFETY: the caller keeps the clause of this function.
        unsafe {
            match dtype {
                DType::F32 => ElementsMut::F32(self.write::<f32>()),
                DType::F16 => ElementsMut::F16(self.write::<f16>()),
                DType::Bf16 => ElementsMut::Bf16(self.write::<bf16>()),
            }
        }
    }
}

/// Returns an error if a written tensor of a call shares bytes with another tensor of the call. In `tensors`, each written
/// tensor is marked by `true`, and the written tensors come first.
pub(crate) fn apart(tensors: impl Iterator<Item = (bool, Buffer)> + Clone) -> Result<(), Fault> {
    let mut rest = tensors.filter(|(_, tensor)| !tensor.range().is_empty());
    while let Some((true, tensor)) = rest.next() {
        rest.clone().try_for_each(|(_, other)| tensor.apart_from(&other))?;
    }
    Ok(())
}
