//! Lays out a CPU workspace of linear attention: one function both measures it and places its regions.

use super::choice::Choice;
use crate::linear::problem::Sequence;
use crate::linear::{Direction, Form, Gates};
use crate::room::{self, Cursor, Span, checked_bytes, table};

/// Sizes of the working memory that a kernel needs for a [`Choice`], in f32 values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rooms {
    /// Memory to prepare the tokens of a chunk.
    pub head: usize,
    /// Memory to process a strip.
    pub strip: usize,
}

/// The regions of a worker, as offsets from the start of its memory, in f32 values. The strips of a state follow one
/// another; each is contiguous, `[rows][columns of the strip]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerSpans {
    /// Queries of a chunk, `[readers][chunk][rows]`.
    pub queries: Span,
    /// Keys of a chunk, `[chunk][rows]`.
    pub keys: Span,
    /// Values of a chunk, `[chunk][columns of a group]`.
    pub values: Span,
    /// Decays of a chunk, `[chunk]` or `[chunk][rows]`.
    pub decay: Span,
    /// Rates of a chunk, `[chunk]`.
    pub beta: Span,
    /// Outputs of a chunk, `[readers][chunk][columns of a group]`.
    pub outputs: Span,
    /// The part of a state that belongs to a group of strips.
    pub state: Span,
    /// The states before the chunks, one after another. Each contains only the part that belongs to a group of strips.
    pub boundaries: Span,
    /// Working memory of the kernel for preparing a chunk.
    pub head: Span,
    /// Working memory of the kernel for processing a strip.
    pub strip: Span,
    /// The matrix `A` of a part, stored by rows, `[rows][rows]`.
    pub transition: Span,
    /// A copy of the strip that `A` multiplies.
    pub before: Span,
}

/// Regions of the affine map `S ↦ A S + b` of a part of a sequence, as offsets from the start of the map, in f32 values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Element {
    /// The addend `b`, stored in strips of columns.
    pub state: Span,
    /// The matrix `A`. For a delta rule, it is `[rows, rows]`, stored in strips of columns. For another gated rule, it is
    /// one strip: the first column contains the product of the gates of each row, and a number in the second column is NaN
    /// unless a gate cleared the row. For [`Rule::Linear`](crate::linear::Rule::Linear), the region is empty.
    pub transition: Span,
    /// One flag per row of the past state for a gated delta rule: 1 if the part clears the row before reading it, 0 if not.
    /// The region is empty for other rules.
    pub cleared: Span,
    /// Distance from the map of one part to that of the next, in f32 values.
    pub stride: usize,
}

/// The layout of a workspace: a region per worker, then the shared regions. Offsets are in f32 values. Every region starts on
/// a 64-byte boundary if the workspace does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkspaceLayout {
    /// The regions of a worker.
    pub worker: WorkerSpans,
    /// Distance from the regions of one worker to those of the next.
    pub worker_stride: usize,
    /// Affine maps of the parts, `[resident heads][parts]`.
    pub elements: Span,
    /// The regions within an affine map.
    pub element: Element,
    /// Unrounded outputs, `[rows of the output][columns of all strips]`.
    pub sums: Span,
    /// Table of the sequences of a call.
    pub sequences: Span,
    /// Total number of f32 values, without the padding for alignment.
    pub total: usize,
}

impl WorkspaceLayout {
    /// Lays out the workspace of a choice. Returns `None` if the size of the workspace overflows.
    #[must_use]
    pub fn of(c: &Choice, rooms: Rooms) -> Option<WorkspaceLayout> {
        let optional = |needed: bool, n: usize| if needed { n } else { 0 };
        let (group, whole) = (c.group_columns(), c.strips.padded(c.columns));
        let reads = c.direction == Direction::NonCausal;
        let scan = c.form == Form::Scan;
        let delta = c.rule.is_delta();
        // Outputs that are summed in the shared region need no region of the worker.
        let outputs = optional(c.staged.columns && !c.sums, c.readers);
        let mut at = Cursor::default();
        let worker = WorkerSpans {
            queries: at.take(&[optional(c.staged.rows, c.readers), c.chunk, c.rows]),
            keys: at.take(&[optional(c.staged.rows, c.chunk), c.rows]),
            values: at.take(&[optional(c.staged.columns, c.chunk), group]),
            decay: at.take(&[
                optional(c.staged.decay, c.chunk),
                if c.gates == Gates::PerDim { c.rows } else { 1 },
            ]),
            beta: at.take(&[optional(c.staged.beta, c.chunk)]),
            outputs: at.take(&[outputs, c.chunk, group]),
            state: at.take(&[c.rows, group]),
            boundaries: at.take(&[optional(!reads, c.boundaries), c.rows, group]),
            head: at.take(&[rooms.head]),
            strip: at.take(&[rooms.strip]),
            transition: at.take(&[optional(scan && delta, c.rows), c.rows]),
            before: at.take(&[optional(scan && delta, c.rows), c.strips.wide]),
        };
        let mut of = at.after();
        let element = Element {
            state: of.take(&[optional(scan, c.rows), whole]),
            transition: of.take(&match (scan, delta, c.gates) {
                (true, true, _) => [c.rows, c.strips.padded(c.rows)],
                (true, false, Gates::PerHead | Gates::PerDim) => [c.rows, c.kernel.columns],
                _ => [0, 0],
            }),
            cleared: of.take(&[optional(scan && delta && c.gates != Gates::None, c.rows)]),
            stride: of.end(),
        };
        let mut all = of.after();
        all.take(&[c.workers, at.end()]);
        let elements = all.take(&[c.resident, optional(scan, c.parts), element.stride]);
        let sums = all.take(&[optional(c.sums, c.extent[3]), whole]);
        let sequences = all.take(&[table::<Sequence>(c.extent[0])?]);
        let layout = WorkspaceLayout {
            worker,
            worker_stride: at.end(),
            elements,
            element,
            sums,
            sequences,
            total: all.end(),
        };
        checked_bytes(layout.total).filter(|_| !all.has_overflowed()).map(|_| layout)
    }

    /// Returns the size of a workspace with arbitrary alignment, in bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        room::bytes(self.total)
    }
}
