//! Lays out a workspace. One cursor hands out the spans, so the pass that places them also measures them.

/// A range of the workspace, in f32 values from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Index of the first value.
    pub start: usize,
    /// Number of values.
    pub len: usize,
}

/// Number of f32 values in a 64-byte line.
pub(crate) const LINE: usize = 16;

/// Returns the number of f32 values of a workspace whose regions end at `total`. One extra line makes room for
/// aligning memory of any alignment.
pub(crate) const fn with_alignment(total: usize) -> usize {
    total + LINE
}

/// Returns the bytes of that workspace; `None` if they exceed the address space.
pub(crate) fn checked_bytes(total: usize) -> Option<usize> {
    total.checked_add(LINE)?.checked_mul(size_of::<f32>()).filter(|bytes| *bytes <= isize::MAX as usize)
}

/// Returns the number of f32 values that a table of `count` entries of `T` takes; `None` on overflow.
pub(crate) fn table<T>(count: usize) -> Option<usize> {
    count.checked_mul(size_of::<T>()).map(|bytes| bytes.div_ceil(size_of::<f32>()))
}

/// Allocates consecutive spans, each aligned to a line.
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

    /// Returns a cursor that starts from zero and keeps the overflow flag of this one.
    pub(crate) const fn after(&self) -> Cursor {
        Cursor { at: 0, overflow: self.overflow }
    }

    /// Returns `true` if an allocation exceeded the address space.
    pub(crate) const fn has_overflowed(&self) -> bool {
        self.overflow
    }

    /// Rewinds to the start of `span`, the last allocation.
    pub(crate) const fn back_to(&mut self, span: Span) {
        self.at = span.start;
    }

    /// Allocates the product of `dims`.
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
