//! Sequences: lengths that come with the data, and the interval of keys that each row attends.

/// Where the diagonal of a causal mask or a window starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alignment {
    /// The offset is the length of the past: the first new query sees the first new key.
    TopLeft,
    /// The offset is valid keys minus queries: the last query sees the last valid key.
    BottomRight,
}

/// A sliding window around the diagonal; `None` is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Keys before the diagonal.
    pub left: Option<usize>,
    /// Keys after the diagonal.
    pub right: Option<usize>,
}

/// Lengths that come with the data of a frame. Each list is present where the problem says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lengths<'a> {
    /// Valid keys of each sequence, `[batch]`.
    pub keys: Option<&'a [i64]>,
    /// Bounds of the packed sequences among the queries, `[sequences + 1]`.
    pub cu_seqlens_q: Option<&'a [i64]>,
    /// Bounds of the packed sequences among the keys, `[sequences + 1]`.
    pub cu_seqlens_k: Option<&'a [i64]>,
}

/// One sequence of a batch: where its tokens lie and which interval of keys each row attends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sequence {
    /// Index along the batch axis of the tensors; zero when packed.
    pub batch: usize,
    /// First query token in the query view.
    pub query0: usize,
    /// Query tokens.
    pub queries: usize,
    /// First key token in the key view.
    pub key0: usize,
    /// Keys, the past included.
    pub keys: usize,
    /// Keys before the first of the key view.
    pub past: usize,
    /// Keys that are valid.
    pub valid: usize,
    /// Valid keys that the mask reaches.
    pub(super) reach: usize,
    /// Column of the diagonal in row zero.
    pub(super) offset: isize,
    pub(super) left: Option<usize>,
    pub(super) right: Option<usize>,
}

impl Sequence {
    /// Keys that are valid and that the mask reaches.
    #[must_use]
    pub const fn reach(&self) -> usize {
        self.reach
    }

    /// Column of the diagonal in row zero, counted from the first key.
    #[must_use]
    pub const fn offset(&self) -> isize {
        self.offset
    }

    /// Keys before the diagonal that a row attends; `None` is open.
    #[must_use]
    pub const fn left(&self) -> Option<usize> {
        self.left
    }

    /// Keys after the diagonal that a row attends; `None` is open, and causal is zero.
    #[must_use]
    pub const fn right(&self) -> Option<usize> {
        self.right
    }

    /// The keys `start..end` that row `i` may attend by length, causality and window; `start == end` when
    /// none. Neither end ever decreases with `i`.
    #[inline]
    #[must_use]
    pub fn range(&self, i: usize) -> (usize, usize) {
        let diagonal = self.offset.saturating_add_unsigned(i);
        let start = match self.left {
            Some(left) => diagonal.saturating_sub_unsigned(left).max(0) as usize,
            None => 0,
        };
        let end = match self.right {
            Some(right) => diagonal.saturating_add_unsigned(right).saturating_add(1).max(0) as usize,
            None => usize::MAX,
        };
        let end = end.min(self.reach);
        (start.min(end), end)
    }

    /// The smallest interval that holds every key which a row of `rows` may attend, and the largest that
    /// every one of them attends by length, causality and window.
    #[must_use]
    pub fn ranges(
        &self,
        rows: core::ops::Range<usize>,
    ) -> (core::ops::Range<usize>, core::ops::Range<usize>) {
        if rows.is_empty() {
            return (0..0, 0..0);
        }
        // Both ends never decrease with the row, so the outermost rows decide.
        let (first, last) = (self.range(rows.start), self.range(rows.end - 1));
        let all = if last.0 < first.1 { last.0..first.1 } else { 0..0 };
        (first.0..last.1, all)
    }
}
