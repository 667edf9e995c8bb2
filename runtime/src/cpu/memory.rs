//! Host memory: workspaces of f32 values, either allocated or lent by the caller, and zeroed bytes for values of any
//! type.

use crate::cpu::limits::available_memory;
use crate::error::BindError;
use elsa_core::room::Span;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::{self, NonNull};

/// Alignment of [`Bytes`] and of the values of a [`Memory`], in bytes: a cache line.
const LINE: usize = 64;

/// Smallest workspace, in bytes, that is compared with the available memory. The comparison reads several files.
const LARGE: usize = 1 << 26;

/// Storage of the values of a [`Memory`].
#[derive(Debug)]
enum Values {
    Owned(Vec<f32>),
    /// The caller's memory, from its first aligned address on. The memory stays valid while this value lives (clause
    /// *lent* of [`Memory::lent`]).
    Lent(*mut f32),
}

/// The memory of a workspace: f32 values on a 64-byte boundary, initially zero. A plan can use the workspace if it
/// needs no more bytes than the workspace has.
#[derive(Debug)]
pub struct Memory {
    values: Values,
    /// Number of values that fit between the first aligned address and the end of the memory.
    room: usize,
}

// SAFETY: nothing else uses lent memory (*lent*), so the value may move to another thread, like a vector.
unsafe impl Send for Memory {}
// SAFETY: a shared reference gives no access to the values.
unsafe impl Sync for Memory {}

impl Memory {
    /// Returns the number of f32 values in a workspace of `bytes` bytes, after subtracting 64 bytes for alignment.
    const fn room_of(bytes: usize) -> usize {
        bytes.saturating_sub(LINE) / size_of::<f32>()
    }

    /// Allocates a workspace of `bytes` bytes. Returns `None` if the system refuses, or if fewer bytes are available:
    /// Linux would then grant the addresses, and kill the process when it writes to them.
    pub fn allocate(bytes: usize) -> Option<Memory> {
        if bytes >= LARGE && available_memory().is_some_and(|available| available.bytes < bytes as u64) {
            return None;
        }
        let room = Memory::room_of(bytes);
        let len = room + LINE / size_of::<f32>();
        let mut values: Vec<f32> = Vec::new();
        values.try_reserve_exact(len).ok()?;
        values.resize(len, 0.0);
        Some(Memory { values: Values::Owned(values), room })
    }

    /// Creates a workspace in the first `needed` bytes of the caller's memory, and sets its values to zero. Later bytes
    /// stay unchanged. Returns `None` if the memory is null or shorter than `needed`.
    ///
    /// # Safety
    /// - *lent*: `memory` is writable for `bytes` bytes, and nothing else uses it until the returned value is dropped.
    pub unsafe fn lent(memory: *mut u8, bytes: usize, needed: usize) -> Option<Memory> {
        if memory.is_null() || bytes < needed {
            return None;
        }
        let room = Memory::room_of(needed);
        let skip = if room == 0 { 0 } else { memory.align_offset(LINE) };
        let data = memory.wrapping_add(skip).cast::<f32>();
        // SAFETY: at most one cache line before the values is skipped, so the values are in the first `needed` bytes
        // (*lent*). Zero bytes are f32 zeros.
        unsafe { data.write_bytes(0, room) };
        Some(Memory { values: Values::Lent(data), room })
    }

    /// Returns the size of the workspace in bytes, including the bytes for alignment. This size can be compared with
    /// the size that a plan needs.
    pub fn bytes(&self) -> usize {
        self.room * size_of::<f32>() + LINE
    }

    /// Returns the address of the first value, which is on a 64-byte boundary, and the number of values.
    pub fn lines(&mut self) -> (*mut f32, usize) {
        let data = match &mut self.values {
            Values::Owned(values) => {
                let data = values.as_mut_ptr();
                data.wrapping_add(data.align_offset(LINE))
            }
            Values::Lent(data) => *data,
        };
        (data, self.room)
    }

    /// Returns the address of the first value, for a plan that needs `needed` bytes.
    ///
    /// # Errors
    /// Returns an error if the workspace is smaller.
    pub fn lines_for(&mut self, needed: usize) -> Result<*mut f32, BindError> {
        let found = self.bytes();
        if found < needed { Err(BindError::Room { found, needed }) } else { Ok(self.lines().0) }
    }

    /// Returns the values of a span; `None` if the span is not entirely in the memory.
    pub fn record(&mut self, span: Span) -> Option<&[f32]> {
        let (base, room) = self.lines();
        let end = span.start.checked_add(span.len)?;
        // SAFETY: the memory has `room` initialised values from `base` on, and is borrowed exclusively.
        (end <= room).then(|| unsafe { std::slice::from_raw_parts(base.add(span.start), span.len) })
    }
}

/// Writes a list of `count` entries into `span`. `base` is the address of the workspace that contains the span. `entry`
/// returns the entry with a given index.
///
/// # Safety
/// - *room*: for `'a`, the span has room for the list and is aligned to a cache line, and nothing else uses it.
pub unsafe fn write_list<'a, T: Copy>(
    base: *mut f32,
    span: Span,
    count: usize,
    mut entry: impl FnMut(usize) -> T,
) -> &'a [T] {
    debug_assert!(count * size_of::<T>() <= span.len * size_of::<f32>(), "{count} entries in {span:?}");
    let list = base.wrapping_add(span.start).cast::<T>();
    for at in 0..count {
        // SAFETY: the span has room for the entry (*room*).
        unsafe { list.add(at).write(entry(at)) };
    }
    // SAFETY: the span has room for the list (*room*), and all its entries have been written.
    unsafe { std::slice::from_raw_parts(list, count) }
}

/// A buffer of bytes that starts on a 64-byte boundary. The bytes are initially zero. The system may provide their
/// pages only when they are first used.
#[derive(Debug)]
pub struct Bytes {
    /// Address of the bytes, allocated with `layout`; dangling if the number of bytes is zero.
    data: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the value owns its bytes, and a shared reference gives no access to them except through a raw pointer.
unsafe impl Send for Bytes {}
// SAFETY: as for `Send` above.
unsafe impl Sync for Bytes {}

impl Bytes {
    /// Allocates `bytes` zero bytes. Returns `None` if the system refuses.
    pub fn zeroed(bytes: usize) -> Option<Bytes> {
        let layout = Layout::from_size_align(bytes, LINE).ok()?;
        let data = match bytes {
            0 => ptr::without_provenance_mut(LINE),
            // SAFETY: the layout is not empty.
            _ => unsafe { alloc_zeroed(layout) },
        };
        Some(Bytes { data: NonNull::new(data)?, layout })
    }

    /// Writes zeros to all bytes, so that the system provides every page now.
    pub fn touch(&mut self) {
        // SAFETY: the bytes belong to this value, which is borrowed exclusively.
        unsafe { self.data.write_bytes(0, self.layout.size()) };
    }

    /// Returns all bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the value has as many bytes as its layout, all initialised, and is borrowed.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.layout.size()) }
    }

    /// Returns all bytes for writing.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and the value is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.layout.size()) }
    }

    /// Returns the address of the first byte; dangling but aligned if the value is empty.
    pub fn data(&self) -> *mut u8 {
        self.data.as_ptr()
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        if self.layout.size() > 0 {
            // SAFETY: `zeroed` allocated the bytes with this layout, and they are freed once.
            unsafe { dealloc(self.data.as_ptr(), self.layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "writes 64 MiB")]
    fn workspaces_are_at_most_as_large_as_the_available_memory() {
        let available = available_memory().expect("a limit on memory").bytes as usize;
        assert!(Memory::allocate(available.saturating_add(1 << 28)).is_none());
        assert!(Memory::allocate(LARGE).is_some_and(|memory| memory.bytes() >= LARGE));
    }
}
