//! Sequences: lengths supplied with the data of a call, and the interval of keys that each row attends.

/// Alignment of the diagonal of a causal mask or a window. Row `i` has its diagonal at key `i + offset`.
///
/// Both alignments are equal if the number of keys without the past equals the number of queries. An example is a model
/// that reads a prompt. Another is a model that continues a prompt and passes its cache as the past. The default is the
/// alignment of `is_causal` in PyTorch and in ONNX.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Alignment {
    /// The offset is the length of the past: the diagonal of the first query is at the first new key.
    #[default]
    TopLeft,
    /// The offset is the number of valid keys minus the number of queries: the diagonal of the last query is at the last
    /// valid key.
    BottomRight,
}

/// A sliding window around the diagonal. A field that is `None` sets no limit in its direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Number of keys before the diagonal that a row may attend.
    pub left: Option<usize>,
    /// Number of keys after the diagonal that a row may attend.
    pub right: Option<usize>,
}

/// The position of a call's keys and queries in a longer sequence. This position is supplied with the data, so chunks of
/// equal shape share a plan. Key `j` of the call is key `key_offset + j` of the complete sequence, and query `i` of the
/// call is query `query_offset + i` of the complete sequence. Key lengths, causal diagonals and windows refer to the
/// complete sequence; a mask covers the queries and keys of the call. The states of chunks that cover all keys of the
/// sequence merge into the state of the sequence.
///
/// A problem with past tensors, present tensors or packed sequences accepts no chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    /// Number of keys of the sequence that precede those of the call.
    pub key_offset: usize,
    /// Number of keys of the complete sequence.
    pub key_total: usize,
    /// Number of queries of the sequence that precede those of the call.
    pub query_offset: usize,
    /// Number of queries of the complete sequence. Zero if the call has all queries; `query_offset` must then be zero as
    /// well.
    pub query_total: usize,
}

impl Chunk {
    /// Creates a chunk that starts at key `key_offset` of `key_total` keys and has all queries.
    #[must_use]
    pub const fn of_keys(key_offset: usize, key_total: usize) -> Chunk {
        Chunk { key_offset, key_total, query_offset: 0, query_total: 0 }
    }

    /// Returns the key index of the diagonal for the call's first query, counted from the call's first key. The call
    /// has `queries` queries, and the complete sequence has `valid` valid keys. Without bottom-right alignment, the
    /// diagonal of query `i` of the sequence is at key `i`.
    pub(super) const fn diagonal(&self, causal: Option<Alignment>, queries: usize, valid: usize) -> isize {
        let total = if self.query_total == 0 { queries } else { self.query_total };
        let first = match causal {
            Some(Alignment::BottomRight) => valid as isize - total as isize,
            Some(Alignment::TopLeft) | None => 0,
        };
        first + self.query_offset as isize - self.key_offset as isize
    }
}

/// Lengths supplied with the data of a call. Each list must be present if and only if the problem declares it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lengths<'a> {
    /// Number of valid keys of each sequence, `[batch]`. If the call has a chunk, each number counts keys of the complete
    /// sequence.
    pub keys: Option<&'a [i64]>,
    /// First query token of each packed sequence, then the total number of query tokens, `[sequences + 1]`.
    pub cu_seqlens_q: Option<&'a [i64]>,
    /// First key token of each packed sequence, then the total number of key tokens, `[sequences + 1]`.
    pub cu_seqlens_k: Option<&'a [i64]>,
    /// Position of the call in a longer sequence; `None` if the call has the complete sequence.
    pub chunk: Option<Chunk>,
}

/// A sequence of a batch: the position of its tokens, and the interval of keys that each row attends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sequence {
    /// Index along the batch axis of the tensors; zero when packed.
    pub batch: usize,
    /// Token index of the first query in the query view.
    pub query0: usize,
    /// Number of query tokens.
    pub queries: usize,
    /// Token index of the first key in the view of the keys ([`Problem::source`](super::Problem::source)).
    pub key0: usize,
    /// Number of keys, including the past.
    pub keys: usize,
    /// Number of past keys that are in a separate tensor and precede those in the view of the keys.
    pub past: usize,
    /// Number of valid keys among `keys`.
    pub valid: usize,
    /// Number of valid keys that the mask covers.
    pub(super) reach: usize,
    /// Key index of the diagonal in row zero.
    pub(super) offset: isize,
    pub(super) left: Option<usize>,
    pub(super) right: Option<usize>,
}

impl Sequence {
    /// Returns the number of valid keys that the mask covers. No row attends keys beyond them.
    #[must_use]
    pub const fn reach(&self) -> usize {
        self.reach
    }

    /// Returns the key index of the diagonal in row zero, counted from the first key of the sequence.
    #[must_use]
    pub const fn offset(&self) -> isize {
        self.offset
    }

    /// Returns the number of keys before the diagonal that a row attends; `None` means all.
    #[must_use]
    pub const fn left(&self) -> Option<usize> {
        self.left
    }

    /// Returns the number of keys after the diagonal that a row attends; `None` means all. The result is zero for causal
    /// problems.
    #[must_use]
    pub const fn right(&self) -> Option<usize> {
        self.right
    }

    /// Returns the keys `start..end` that length, causality and window let row `i` attend; `start == end` if there are
    /// no such keys. Neither end decreases as `i` grows.
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

    /// Returns two intervals of keys, given by length, causality and window: the smallest interval that contains every
    /// key that some row of `rows` may attend, and the largest interval whose keys every row attends.
    #[must_use]
    pub fn ranges(
        &self,
        rows: core::ops::Range<usize>,
    ) -> (core::ops::Range<usize>, core::ops::Range<usize>) {
        if rows.is_empty() {
            return (0..0, 0..0);
        }
        // Neither end decreases with the row, so the outermost rows decide.
        let (first, last) = (self.range(rows.start), self.range(rows.end - 1));
        let all = if last.0 < first.1 { last.0..first.1 } else { 0..0 };
        (first.0..last.1, all)
    }
}
