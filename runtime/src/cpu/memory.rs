//! Host memory: working memory of f32 values, allocated or lent by the caller, and zero bytes of any type.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::{self, NonNull};

/// Alignment of [`Bytes`]: a cache line.
const LINE: usize = 64;

/// The storage of the values.
#[derive(Debug)]
enum Values {
    Owned(Vec<f32>),
    /// The caller's memory, for the lifetime of the value (clause *lent* of [`Memory::lent`]).
    Lent {
        data: *mut f32,
        len: usize,
    },
}

/// Working memory of f32 values, initially zero.
#[derive(Debug)]
pub struct Memory(Values);

// SAFETY: nobody else uses lent memory (*lent*), so it may move to another thread as a vector may.
unsafe impl Send for Memory {}
// SAFETY: a shared reference gives no access to the values.
unsafe impl Sync for Memory {}

impl Memory {
    /// Allocates `len` values. Returns `None` if the system refuses.
    pub fn allocate(len: usize) -> Option<Memory> {
        let mut values: Vec<f32> = Vec::new();
        values.try_reserve_exact(len).ok()?;
        values.resize(len, 0.0);
        Some(Memory(Values::Owned(values)))
    }

    /// Takes `len` values of the caller's memory, from the first aligned address on, and sets them to zero. The rest is
    /// left alone. Returns `None` if the memory is null or has room for fewer.
    ///
    /// # Safety
    /// - *lent*: `memory` is writable for `bytes` bytes, and nobody else uses it until the value is dropped.
    pub unsafe fn lent(memory: *mut u8, bytes: usize, len: usize) -> Option<Memory> {
        let skip = memory.align_offset(align_of::<f32>());
        let found = bytes.checked_sub(skip)? / size_of::<f32>();
        if memory.is_null() || found < len {
            return None;
        }
        let data = memory.wrapping_add(skip).cast::<f32>();
        // SAFETY: no more than `found` values from the first aligned one on lie in the memory (*lent*). Zero bytes are
        // f32 zeros.
        unsafe { data.write_bytes(0, len) };
        Some(Memory(Values::Lent { data, len }))
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        match &self.0 {
            Values::Owned(values) => values.len(),
            Values::Lent { len, .. } => *len,
        }
    }

    /// The address of the first value on a 64-byte boundary, and the number of values from there on.
    pub fn lines(&mut self) -> (*mut f32, usize) {
        let data = match &mut self.0 {
            Values::Owned(values) => values.as_mut_ptr(),
            Values::Lent { data, .. } => *data,
        };
        let skip = data.align_offset(64).min(self.len());
        (data.wrapping_add(skip), self.len() - skip)
    }
}

/// Bytes on a 64-byte boundary, initially zero. The system may provide their pages only when they are first used.
#[derive(Debug)]
pub struct Bytes {
    /// Allocated with `layout`, unless that is empty.
    data: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the value owns its bytes, and a shared reference gives no access to them except through a raw pointer.
unsafe impl Send for Bytes {}
// SAFETY: as above.
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

    /// Writes zeros, so that every page is provided.
    pub fn touch(&mut self) {
        // SAFETY: the bytes belong to this value, which is borrowed exclusively.
        unsafe { self.data.write_bytes(0, self.layout.size()) };
    }

    /// All bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the value has that many bytes, all initialised, and is borrowed.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.layout.size()) }
    }

    /// All bytes, to be written.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the value is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.layout.size()) }
    }

    /// Address of the first byte; dangling, and aligned, if there is none.
    pub fn data(&self) -> *mut u8 {
        self.data.as_ptr()
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        if self.layout.size() > 0 {
            // SAFETY: allocated by `zeroed` with this layout, and freed once.
            unsafe { dealloc(self.data.as_ptr(), self.layout) };
        }
    }
}
