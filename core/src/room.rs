//! The room of a workspace: spans that one cursor hands out, so that the walk that places them is the one that measures
//! them.

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

/// Number of f32 values of a workspace whose regions end at `total`: with a line of them, memory of any alignment has room.
pub(crate) const fn with_alignment(total: usize) -> usize {
    total + LINE
}

/// Bytes of that workspace; `None` if no memory has as many.
pub(crate) fn checked_bytes(total: usize) -> Option<usize> {
    total.checked_add(LINE)?.checked_mul(size_of::<f32>()).filter(|bytes| *bytes <= isize::MAX as usize)
}

/// Number of f32 values that a table of `count` entries of `T` takes; `None` if it overflows.
pub(crate) fn table<T>(count: usize) -> Option<usize> {
    count.checked_mul(size_of::<T>()).map(|bytes| bytes.div_ceil(size_of::<f32>()))
}

/// Allocates spans one after the other, each on a line.
#[derive(Default)]
pub(crate) struct Cursor {
    at: usize,
    overflow: bool,
}

impl Cursor {
    /// The end of what was allocated.
    pub(crate) const fn end(&self) -> usize {
        self.at
    }

    /// A cursor that begins anew and remembers the overflow of this one.
    pub(crate) const fn after(&self) -> Cursor {
        Cursor { at: 0, overflow: self.overflow }
    }

    /// Whether something did not fit into the address space.
    pub(crate) const fn has_overflowed(&self) -> bool {
        self.overflow
    }

    /// Goes back to the start of the span that was allocated last.
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
