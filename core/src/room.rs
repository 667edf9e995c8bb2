//! Lays out a workspace. One cursor allocates the spans, so the code that places them also computes the total size.

/// A range of the workspace, in f32 values from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Index of the first value of the range.
    pub start: usize,
    /// Number of values in the range.
    pub len: usize,
}

/// Number of f32 values in a 64-byte line.
pub(crate) const LINE: usize = 16;

/// Returns the size in bytes of a workspace whose regions end at `total`. The workspace may start at any address,
/// because one extra line provides the padding that aligns the first region.
pub(crate) const fn bytes(total: usize) -> usize {
    (total + LINE) * size_of::<f32>()
}

/// Returns the result of [`bytes`]; `None` if it exceeds the address space.
pub(crate) fn checked_bytes(total: usize) -> Option<usize> {
    total.checked_add(LINE)?.checked_mul(size_of::<f32>()).filter(|bytes| *bytes <= isize::MAX as usize)
}

/// Returns the number of f32 values that a table of `count` entries of type `T` occupies; `None` on overflow.
pub(crate) fn table<T>(count: usize) -> Option<usize> {
    count.checked_mul(size_of::<T>()).map(|bytes| bytes.div_ceil(size_of::<f32>()))
}

/// Allocates spans one after another, each aligned to a 64-byte line.
#[derive(Default)]
pub(crate) struct Cursor {
    at: usize,
    overflow: bool,
}

impl Cursor {
    /// Returns the end of the allocated spans.
    pub(crate) const fn end(&self) -> usize {
        self.at
    }

    /// Returns a cursor for a separate block of memory. The new cursor starts at zero and inherits the overflow flag.
    pub(crate) const fn after(&self) -> Cursor {
        Cursor { at: 0, overflow: self.overflow }
    }

    /// Returns `true` if an allocation exceeded the address space.
    pub(crate) const fn has_overflowed(&self) -> bool {
        self.overflow
    }

    /// Frees `span`, which must be the last allocation.
    pub(crate) const fn back_to(&mut self, span: Span) {
        self.at = span.start;
    }

    /// Allocates a span for an array with dimensions `dims`.
    pub(crate) fn take(&mut self, dims: &[usize]) -> Span {
        let len = dims.iter().try_fold(1usize, |a, d| a.checked_mul(*d));
        let end = len.and_then(|len| self.at.checked_add(len)).and_then(|e| e.checked_next_multiple_of(LINE));
        match (len, end) {
            (Some(len), Some(end)) if end <= isize::MAX as usize / 8 => {
                let span = Span { start: self.at, len };
                self.at = end;
                span
            }
            _ => {
                self.overflow = true;
                Span::default()
            }
        }
    }
}
