//! Lays out a CPU workspace: one function both measures it and places its regions.
//!
//! **The naive way** computes the size in one function and the addresses in another, or allocates each array separately.
//! Sizes and addresses then drift apart, and a run allocates.
//!
//! **Why the code differs.**
//!
//! 1. *One pass.* [`WorkspaceLayout::of`] places every region with one cursor, whose end is the size.
//! 2. *Offsets, not pointers.* A layout belongs to a plan; any workspace of its size can be bound to it.
//! 3. *Strides, not lists.* All tiles of a worker and all workers have the same regions, so a region is an offset plus a tile
//!    number and a worker number times a stride.
//! 4. *64-byte lines.* Every region starts on one, so vector loads are aligned and no two workers share a line.
//! 5. *Overflow is sticky.* The cursor remembers it, and the caller gets `None` instead of a wrapped size.
//! 6. *Regions have labels.* [`WorkspaceLayout::regions`] names them, so tests can check each against the needs of its user.

use super::choice::{CpuChoice, Method};
use super::kernel::KeyLayout;
use crate::attention::measured::MEASURED;
use crate::attention::sequence::Sequence;
use crate::attention::traversal::{Report, RowRoom, tile_len};
use crate::room::{Cursor, LINE, Span, checked_bytes, table, with_alignment};
use core::mem::size_of;

/// The purpose of a region of the workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Region {
    /// Scores, then weights, of a tile and a block.
    Weights,
    /// Padded copy of the last few keys of a block.
    Pad,
    /// Copy of a block of keys in the layout that the kernel reads.
    Keys,
    /// Copy of a block of values in the layout that the kernel reads.
    Values,
    /// Intermediate f32 rows of type and layout conversions.
    Rows,
    /// Bias, added to the scores of a tile and a block.
    Bias,
    /// Second bias, if mask and bias are both added.
    SecondBias,
    /// Bias of the tiles of a group and all keys, kept from task to task.
    KeptBias,
    /// Header of the kept inputs: a line that identifies them, then a word for each block of each tile, and for each block of
    /// a row.
    Kept,
    /// The row of a mask that all queries share.
    KeptRow,
    /// The entries of a table for one head.
    Entries,
    /// The sides of the tokens of a shifted window.
    Sides,
    /// Measured magnitudes of the call's tensors.
    Measured,
    /// Scratch of the scalar run of a schedule.
    Scratch,
    /// Records of that run for the rows of a tile.
    ScratchRows,
    /// Counters of a worker for a schedule.
    Counts,
    /// Transposed queries of a tile.
    Query,
    /// States of a tile.
    States,
    /// The score matrix of method math.
    Scores,
    /// States of all tiles, for method math.
    AllStates,
    /// Skipped weights of every row.
    LeftOut,
}

/// Number of values that a run keeps for the keys and values of a head, or of a block of them. For keys they are the largest
/// sum of squares and the largest magnitude of a row. For values they are the largest magnitude, and the least maximum of a
/// row that is not zero throughout.
pub const NORMS: usize = 4;

/// The regions of a tile, relative to the start of the tile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TileSpans {
    /// Transposed queries, `[head_dim][width]`.
    pub query: Span,
    /// The first state: references `[width]`, sums `[width]` and weighted sums `[value_dim][width]`, within an error budget
    /// also the skipped sums, `[width]`. State `i` starts `i` times the length later.
    pub state: Span,
    /// Sums on which rows vote within an error budget, `[5][width]`, and a sixth line for the norms of the rows if unseen
    /// blocks may be skipped; otherwise empty.
    pub totals: Span,
    /// Progress of the tile between two chunks of keys, `[16]`; empty if a call has all keys.
    pub progress: Span,
}

/// The layout of a CPU workspace: a region per worker, each with a region per tile of its group, and one region that all
/// workers share. Offsets are in f32 values. Every region starts on a 64-byte boundary if the workspace does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkspaceLayout {
    /// Scores, then weights, `[block + 16][width]`.
    pub weights: Span,
    /// Padded copy of the last few keys of a block, `[8][head_dim]`.
    pub pad: Span,
    /// Keys of a block, `[block + 8][head_dim]`.
    pub keys: Span,
    /// Values of a block, `[block][value_dim]`.
    pub values: Span,
    /// Intermediate rows, `[max(block, width)][max(head_dim, value_dim)]`.
    pub rows: Span,
    /// Bias, `[block][width]`.
    pub bias: Span,
    /// Second bias, `[block][width]`.
    pub second_bias: Span,
    /// Kept bias, `[tile][blocks · block][width]`.
    pub kept_bias: Span,
    /// Header of the kept inputs: 16 words that identify them, then `[tile][blocks]` for the bias and `[blocks]` for the row.
    pub kept: Span,
    /// Row of the mask, `[blocks · block]`.
    pub kept_row: Span,
    /// Entries of a table, `[entries]`, and lines of them, `[lines + width]`.
    pub entries: Span,
    /// Sides of tokens, `[tokens + width]`.
    pub sides: Span,
    /// Measured magnitudes, [`MEASURED`] values, then `[value_dim]` for the channels of values.
    pub measured: Span,
    /// Scratch of the scalar run of a schedule, [`scratch_len`](crate::attention::traversal::scratch_len) numbers.
    pub scratch: Span,
    /// Records of that run: one [`RowRoom`] for every row of a tile.
    pub scratch_rows: Span,
    /// Counters of the worker for a schedule: a [`Report`].
    pub counts: Span,
    /// The tiles of the group, one after another. Tiles that stay while chunks of keys are streamed belong to no worker: they
    /// have a region after those of the workers, relative to the start of the workspace.
    pub tiles: Span,
    /// The regions of a tile.
    pub tile: TileSpans,
    /// Distance from one tile to the next, in f32 values.
    pub tile_stride: usize,
    /// Distance from one worker to the next, in f32 values.
    pub worker_stride: usize,
    /// Score matrices of method math, `[heads][tile][keys][width]`, after the last worker.
    pub scores: Span,
    /// States of all tiles of method math, after the score matrices.
    pub all_tiles: Span,
    /// Skipped weights of every row: `D` in natural-log units, then `D / (S + D)`, `[2][rows]`, after everything else.
    pub left_out: Span,
    /// Norms of the keys and values of each sequence and key head, [`NORMS`] values for each of
    /// [`CpuChoice::measured_parts`]; the region has room for one set for each query head. Also after everything else.
    pub norms: Span,
    /// The sequences of a call, [`CpuChoice::sequences`] entries of [`Sequence`].
    pub sequences: Span,
    /// Number of the first task of each sequence, then the number of tasks.
    pub tasks: Span,
    /// Number of f32 values in total, without those for alignment.
    pub total: usize,
}

impl WorkspaceLayout {
    /// Lays out the workspace of a choice. Returns `None` if its size overflows.
    #[must_use]
    pub fn of(choice: &CpuChoice) -> Option<WorkspaceLayout> {
        let c = choice;
        let w = c.width();
        let optional = |needed: bool, n: usize| if needed { n } else { 0 };
        let mut tile = Cursor::default();
        let query = tile.take(&[c.head_dim, w]);
        let budget = c.schedule.budget().is_some();
        let state = tile.take(&[2 + c.value_dim + usize::from(budget), w]);
        tile.back_to(state);
        tile.take(&[c.levels(), state.len.next_multiple_of(LINE)]);
        let totals = tile.take(&[optional(budget, 5 + 2 * usize::from(c.foresees)), w]);
        let progress = tile.take(&[optional(c.resident > 0, LINE)]);
        let mut worker = tile.after();
        let panels = matches!(c.kernel.keys, KeyLayout::Panels(_));
        // Keys that are packed into panels pass through f32 rows, unless they already are f32 rows in place.
        let through = c.convert || (c.stage_keys && panels);
        let tiles = match c.method {
            Method::Elsa => c.group,
            Method::Math => 1,
        };
        let scratch = match c.traverses() {
            true => tile_len(c.head_dim, c.value_dim, c.decides())?.checked_add(c.scratch)?,
            false => 0,
        };
        let words = optional(c.keeps.any(), tiles) + optional(c.row_mask, 1);
        let mut layout = WorkspaceLayout {
            weights: worker.take(&[c.block + 16, w]),
            pad: worker.take(&[8, c.head_dim]),
            keys: worker.take(&[optional(c.stage_keys, c.block + 8), c.head_dim]),
            values: worker.take(&[optional(c.stage_values || c.kernel.raises, c.block), c.value_dim]),
            rows: worker.take(&[optional(through, c.block.max(w)), c.head_dim.max(c.value_dim)]),
            bias: worker.take(&[c.block, optional(c.masked, w)]),
            second_bias: worker.take(&[c.block, optional(c.adds_two, w)]),
            kept_bias: worker.take(&[optional(c.keeps.any(), tiles), c.blocks(), c.block, w]),
            kept: worker.take(&[optional(
                c.keeps_something(),
                words.saturating_mul(c.blocks()).saturating_add(LINE),
            )]),
            kept_row: worker.take(&[optional(c.row_mask, c.blocks()), c.block]),
            entries: worker.take(&[c.entries + c.lines + optional(c.lines > 0, w.max(4))]),
            sides: worker.take(&[optional(c.divided > 0, c.divided + w)]),
            measured: worker.take(&[optional(c.certify, MEASURED + c.value_dim)]),
            scratch: worker.take(&[scratch]),
            scratch_rows: worker.take(&[optional(c.traverses(), w), size_of::<RowRoom>().div_ceil(4)]),
            counts: worker.take(&[optional(!c.schedule.is_exact(), size_of::<Report>().div_ceil(4))]),
            tiles: worker.take(&[optional(c.resident == 0, tiles), tile.end()]),
            tile: TileSpans {
                query,
                state: Span { len: state.len.next_multiple_of(LINE), ..state },
                totals,
                progress,
            },
            tile_stride: tile.end(),
            ..WorkspaceLayout::default()
        };
        layout.worker_stride = worker.end();
        let mut all = worker.after();
        all.take(&[c.workers, worker.end()]);
        if c.resident > 0 {
            layout.tiles = all.take(&[c.resident, tile.end()]);
        }
        if c.method == Method::Math {
            let [queries, keys, heads] = c.extent;
            let tiles = heads.checked_mul(c.tiling(queries).count())?;
            layout.scores = all.take(&[tiles, (keys + 8).next_multiple_of(LINE), w]);
            layout.all_tiles = all.take(&[tiles, layout.tile.state.len]);
        }
        layout.left_out = all.take(&[2, c.recorded]);
        layout.norms = all.take(&[c.measured_parts(), NORMS, c.extent[2]]);
        layout.sequences = all.take(&[table::<Sequence>(c.sequences)?]);
        layout.tasks = all.take(&[table::<usize>(c.sequences.checked_add(1)?)?]);
        layout.total = all.end();
        checked_bytes(layout.total).filter(|_| !all.has_overflowed()).map(|_| layout)
    }

    /// Returns the labelled regions of the workspace, in order. [`Region::Weights`] to [`Region::States`] are those of the
    /// first worker; of these, the last two are those of its first tile and first state. All workers share the rest.
    #[must_use]
    pub fn regions(&self) -> [(Region, Span); 21] {
        let inside = |span: Span| Span { start: self.tiles.start + span.start, len: span.len };
        [
            (Region::Weights, self.weights),
            (Region::Pad, self.pad),
            (Region::Keys, self.keys),
            (Region::Values, self.values),
            (Region::Rows, self.rows),
            (Region::Bias, self.bias),
            (Region::SecondBias, self.second_bias),
            (Region::KeptBias, self.kept_bias),
            (Region::Kept, self.kept),
            (Region::KeptRow, self.kept_row),
            (Region::Entries, self.entries),
            (Region::Sides, self.sides),
            (Region::Measured, self.measured),
            (Region::Scratch, self.scratch),
            (Region::ScratchRows, self.scratch_rows),
            (Region::Counts, self.counts),
            (Region::Query, inside(self.tile.query)),
            (Region::States, inside(self.tile.state)),
            (Region::Scores, self.scores),
            (Region::AllStates, self.all_tiles),
            (Region::LeftOut, self.left_out),
        ]
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
