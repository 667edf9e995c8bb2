//! Lays out a CPU workspace of linear attention: one function both measures it and places its regions.

use super::choice::Choice;
use crate::linear::problem::Sequence;
use crate::linear::{Direction, Form, Gates};
use crate::room::{Cursor, Span, checked_bytes, table, with_alignment};

/// Working memory of a kernel for a choice, in f32 values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rooms {
    /// Memory for the tokens of a chunk.
    pub head: usize,
    /// Memory for a strip.
    pub strip: usize,
}

/// The regions of a worker, relative to its start, in f32 values. Strips of a state are contiguous, one after another,
/// `[rows][columns of the strip]` each.
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
    /// The state of a group.
    pub state: Span,
    /// States of a group before chunks, one after another.
    pub boundaries: Span,
    /// Kernel memory for preparing a chunk.
    pub head: Span,
    /// Kernel memory for working on a strip.
    pub strip: Span,
    /// A transition by rows, `[rows][rows]`.
    pub transition: Span,
    /// A strip that a transition multiplies.
    pub before: Span,
}

/// The affine map `S ↦ A S + b` of a part of a sequence, relative to its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Element {
    /// `b`, in strips of columns.
    pub state: Span,
    /// `A`: for a delta rule `[rows, rows]` in strips of columns. For the other gated rules, a strip whose first column is
    /// the product of gates, and whose second is NaN unless a gate cleared the row. Empty without gates.
    pub transition: Span,
    /// For a gated delta rule: a flag for each row of the previous state, 1 if the part clears it before it reads it, else 0.
    pub cleared: Span,
    /// Distance from one part to the next.
    pub stride: usize,
}

/// The layout of a workspace: a region per worker, then the shared regions. Offsets are in f32 values. Every region starts on
/// a 64-byte boundary if the workspace does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The regions of a worker.
    pub worker: WorkerSpans,
    /// Distance from one worker to the next.
    pub worker_stride: usize,
    /// Affine maps, `[resident heads][parts]`.
    pub elements: Span,
    /// The regions of an affine map.
    pub element: Element,
    /// Outputs before they are rounded, `[rows of the outputs][columns of all strips]`.
    pub sums: Span,
    /// The sequences of a call.
    pub sequences: Span,
    /// Number of f32 values in total, without those for alignment.
    pub total: usize,
}

impl Layout {
    /// Lays out the workspace of a choice. Returns `None` if its size overflows.
    #[must_use]
    pub fn of(c: &Choice, rooms: Rooms) -> Option<Layout> {
        let optional = |needed: bool, n: usize| if needed { n } else { 0 };
        let (group, whole) = (c.group_columns(), c.strips.padded(c.columns));
        let reads = c.direction == Direction::NonCausal;
        let scan = c.form == Form::Scan;
        let delta = c.rule.is_delta();
        // Outputs that are summed in the shared region have no region in the worker's.
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
        let layout =
            Layout { worker, worker_stride: at.end(), elements, element, sums, sequences, total: all.end() };
        checked_bytes(layout.total).filter(|_| !all.has_overflowed()).map(|_| layout)
    }

    /// Returns the number of f32 values of a workspace with arbitrary alignment: the regions, and a line for the padding that
    /// aligns the first one.
    #[must_use]
    pub const fn floats(&self) -> usize {
        with_alignment(self.total)
    }

    /// Returns the size of the workspace in bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.floats() * 4
    }
}
