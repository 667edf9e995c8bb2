//! Lays out a CPU workspace: one function both measures it and places its regions.
//!
//! **The naive way** computes the size in one function and the addresses in another, or allocates each array separately.
//! Sizes and addresses then drift apart, and a run allocates.
//!
//! **Why the code differs.**
//!
//! 1. *One pass.* [`WorkspaceLayout::of`] places every region with one cursor, whose end is the size.
//! 2. *Offsets, not pointers.* A layout belongs to a plan, and any workspace of sufficient size can be bound to it.
//! 3. *Strides, not lists.* All workers have the same regions, and so do all tiles of a worker. The start of a region
//!    is an offset, plus the worker's index times the worker stride, plus the tile's index times the tile stride.
//! 4. *64-byte lines.* Every region starts on a line boundary, so vector loads are aligned and no two workers share a
//!    line.
//! 5. *Overflow is sticky.* The cursor remembers an overflow, and the caller gets `None` instead of a wrapped size.

use super::choice::{CpuChoice, Method};
use super::kernel::KeyLayout;
use crate::attention::measured::MEASURED;
use crate::attention::sequence::Sequence;
use crate::attention::traversal::{RowRoom, TraversalReport, tile_len};
use crate::room::{self, Cursor, LINE, Span, checked_bytes, table};
use core::mem::size_of;

/// Number of measurements of the keys and values of a head, or of one block of a head. Two are of the keys: the largest sum
/// of squares of a row, and the largest magnitude of an element. Two are of the values: the largest magnitude of an
/// element, and the smallest row maximum among the rows with a non-zero element.
pub const NORMS: usize = 4;

/// The regions of a tile, relative to the start of the tile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TileSpans {
    /// Transposed queries, `[head_dim][width]`.
    pub query: Span,
    /// The first state: references `[width]`, sums `[width]` and weighted sums `[value_dim][width]`; with an error budget
    /// also the sums of skipped weights, `[width]`. State `i` starts at the start of this span plus `i` times its length.
    pub state: Span,
    /// Sums that decide which blocks the rows skip within an error budget, `[5][width]`; empty without an error budget. If
    /// blocks may be skipped before their scores are computed, two more arrays `[width]` follow: the norm of each row, and
    /// a lower bound of the score of the key on the row's diagonal.
    pub totals: Span,
    /// Progress of the tile, which a run keeps from one chunk of keys to the next, `[16]`; empty if keys are not streamed.
    pub progress: Span,
}

/// The layout of a CPU workspace. Each worker has a region, which contains a region per tile of its group. The regions
/// of the workers are followed by those that all workers share. Offsets are in f32 values. If the workspace starts on a
/// 64-byte boundary, so does every region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkspaceLayout {
    /// Scores of a query tile and a key block, later replaced by weights, `[block + 16][width]`; once for each tile that
    /// takes its step together with others (`together` of the kernel).
    pub weights: Span,
    /// Padded copy of the last few keys of a block, `[8][head_dim]`.
    pub pad: Span,
    /// Keys of a block, `[block + 8][head_dim]`.
    pub keys: Span,
    /// Values of a block, `[block][value_dim]`.
    pub values: Span,
    /// Scratch for rows that are packed, transposed or converted, `[max(block, width)][max(head_dim, value_dim)]`.
    pub rows: Span,
    /// Bias of a tile and a block, `[block][width]`.
    pub bias: Span,
    /// Second bias if mask and bias are both added, `[block][width]`.
    pub second_bias: Span,
    /// Prepared mask or bias that the worker keeps from task to task, `[tile][blocks · block][width]`.
    pub kept_bias: Span,
    /// Header of the inputs that a worker keeps: 16 words that identify them, then `[tile][blocks]` words for the kept
    /// bias and `[blocks]` words for the kept mask row.
    pub kept_header: Span,
    /// Mask row that all queries share, `[blocks · block]`.
    pub kept_row: Span,
    /// Entries of a table of relative positions for one head: first as stored, `[entries]`, then in the layout for
    /// windows, `[lines + width]`.
    pub entries: Span,
    /// For each token of a shifted window, the side of the window's boundaries on which the token is, `[tokens + width]`.
    pub sides: Span,
    /// Measured magnitudes: [`MEASURED`] numbers, then one number for each column of the value tensor, `[value_dim]`.
    pub measured: Span,
    /// Scratch memory of the scalar run that computes a schedule,
    /// [`scratch_len`](crate::attention::traversal::scratch_len) numbers.
    pub scratch: Span,
    /// Records of the scalar run: one [`RowRoom`] per row of a tile.
    pub scratch_rows: Span,
    /// Counters of a worker in a run with a schedule: a [`TraversalReport`].
    pub counts: Span,
    /// The tiles of a worker's group, one after another. Tiles that stay in memory while chunks of keys are streamed
    /// belong to no worker: their region follows the regions of the workers, and its offset is relative to the start of
    /// the workspace.
    pub tiles: Span,
    /// The regions of one tile.
    pub tile: TileSpans,
    /// Distance between the regions of consecutive tiles, in f32 values.
    pub tile_stride: usize,
    /// Distance between the regions of consecutive workers, in f32 values.
    pub worker_stride: usize,
    /// Score matrices of [`Method::Math`], `[heads][tile][keys][width]`. They follow the memory of the last worker.
    pub scores: Span,
    /// States of all tiles for [`Method::Math`], after the score matrices.
    pub all_tiles: Span,
    /// Skipped weights of every row, `[2][rows]`: `D` in natural-log units, then `D / (S + D)`. The region follows the
    /// regions of the workers and `all_tiles`.
    pub left_out: Span,
    /// Norms of the keys and values of each sequence and key head: [`NORMS`] numbers for each of
    /// [`CpuChoice::measured_parts`] parts. The region follows `left_out`. It has room for one key head per query head.
    pub norms: Span,
    /// The sequences of a call, [`CpuChoice::sequences`] entries of [`Sequence`].
    pub sequences: Span,
    /// Index of the first task of each sequence, then the total number of tasks.
    pub tasks: Span,
    /// Total number of f32 values, without the padding that aligns the workspace.
    pub total: usize,
}

impl WorkspaceLayout {
    /// Lays out the workspace of the plan that `choice` describes. Returns `None` if the size of the workspace overflows.
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
        let tiles = c.task_tiles();
        let scratch = match c.traverses() {
            true => tile_len(c.head_dim, c.value_dim, c.decides())?.checked_add(c.scratch)?,
            false => 0,
        };
        let words = optional(c.keeps.any(), tiles) + optional(c.row_mask, 1);
        let mut layout = WorkspaceLayout {
            weights: worker.take(&[tiles.min(c.kernel.together), c.block + 16, w]),
            pad: worker.take(&[8, c.head_dim]),
            keys: worker.take(&[optional(c.stage_keys, c.block + 8), c.head_dim]),
            values: worker.take(&[optional(c.stage_values || c.kernel.raises, c.block), c.value_dim]),
            rows: worker.take(&[optional(through, c.block.max(w)), c.head_dim.max(c.value_dim)]),
            bias: worker.take(&[c.block, optional(c.masked, w)]),
            second_bias: worker.take(&[c.block, optional(c.adds_two, w)]),
            kept_bias: worker.take(&[optional(c.keeps.any(), tiles), c.blocks(), c.block, w]),
            kept_header: worker.take(&[optional(
                c.keeps_something(),
                words.saturating_mul(c.blocks()).saturating_add(LINE),
            )]),
            kept_row: worker.take(&[optional(c.row_mask, c.blocks()), c.block]),
            entries: worker.take(&[c.entries + c.lines + optional(c.lines > 0, w.max(4))]),
            sides: worker.take(&[optional(c.divided > 0, c.divided + w)]),
            measured: worker.take(&[optional(c.certify, MEASURED + c.value_dim)]),
            scratch: worker.take(&[scratch]),
            scratch_rows: worker.take(&[optional(c.traverses(), w), size_of::<RowRoom>().div_ceil(4)]),
            counts: worker
                .take(&[optional(!c.schedule.is_exact(), size_of::<TraversalReport>().div_ceil(4))]),
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

    /// Returns the size of a workspace in bytes, for memory of any alignment.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        room::bytes(self.total)
    }
}
