//! f32 memory to work in: allocated, or lent by the caller.

/// Where the values are.
#[derive(Debug)]
enum Values {
    Owned(Vec<f32>),
    /// The caller's, for as long as the memory lives (clause *lent* of [`Memory::lent`]).
    Lent {
        data: *mut f32,
        len: usize,
    },
}

/// Memory of f32 values, all zeros to begin with.
#[derive(Debug)]
pub struct Memory(Values);

// SAFETY: lent memory is used by nobody else (*lent*), so that it may go to another thread as a vector may.
unsafe impl Send for Memory {}
// SAFETY: shared memory gives nobody access to its values.
unsafe impl Sync for Memory {}

impl Memory {
    /// Allocates `len` values; none when the system refuses.
    pub fn allocate(len: usize) -> Option<Memory> {
        let mut values: Vec<f32> = Vec::new();
        values.try_reserve_exact(len).ok()?;
        values.resize(len, 0.0);
        Some(Memory(Values::Owned(values)))
    }

    /// Takes memory of the caller's, of any alignment, and clears it; none when it is null or has fewer than `len`
    /// values.
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
        // SAFETY: `found` values from the first aligned one on lie in the memory (*lent*); zero bytes are zeros.
        unsafe { data.write_bytes(0, found) };
        Some(Memory(Values::Lent { data, len: found }))
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        match &self.0 {
            Values::Owned(values) => values.len(),
            Values::Lent { len, .. } => *len,
        }
    }

    /// The first value on a line of 64 bytes, and how many values there are from it on.
    pub fn lines(&mut self) -> (*mut f32, usize) {
        let data = match &mut self.0 {
            Values::Owned(values) => values.as_mut_ptr(),
            Values::Lent { data, .. } => *data,
        };
        let skip = data.align_offset(64).min(self.len());
        (data.wrapping_add(skip), self.len() - skip)
    }
}
