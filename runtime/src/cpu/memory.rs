//! Working memory of f32 values: allocated, or lent by the caller.

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
