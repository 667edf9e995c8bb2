//! The one walker over the workspace: it measures, and what it measured are the offsets that are bound.

use super::choice::{CpuChoice, Method};
use super::kernel::KeyLayout;
use crate::attention::sequence::Sequence;
use core::mem::size_of;

/// What a part of the workspace is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Region {
    /// Scores and weights of a tile and a block.
    Weights,
    /// The last few keys of a block.
    Pad,
    /// Keys of a block in shape.
    Keys,
    /// Values of a block in shape.
    Values,
    /// Rows on their way between types and shapes.
    Rows,
    /// What is added to the scores of a tile and a block.
    Bias,
    /// Queries of a tile.
    Query,
    /// States of a tile.
    States,
    /// The score matrix of method math.
    Scores,
    /// States of all tiles of method math.
    AllStates,
}

/// A part of the workspace, in singles from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// First single.
    pub start: usize,
    /// Singles.
    pub len: usize,
}

/// What a tile owns, relative to its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TileSpans {
    /// `[head_dim][W]`.
    pub query: Span,
    /// References, sums and weighted sums of one state: `[W]`, `[W]`, `[value_dim][W]`. State `i` lies `i`
    /// times the length further.
    pub state: Span,
}

/// The workspace: one part per worker, each with one part per tile of its group, and one that all share.
/// Offsets are in singles, and every part starts on a line of 64 bytes if the workspace does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkspaceLayout {
    /// `[block + 16][W]`.
    pub weights: Span,
    /// `[8][head_dim]`.
    pub pad: Span,
    /// `[block + 8][head_dim]`.
    pub keys: Span,
    /// `[block][value_dim]`.
    pub values: Span,
    /// `[max(block, W)][max(head_dim, value_dim)]`.
    pub rows: Span,
    /// `[block][W]`.
    pub bias: Span,
    /// First tile of the group.
    pub tiles: Span,
    /// What a tile owns.
    pub tile: TileSpans,
    /// Singles from one tile to the next.
    pub tile_stride: usize,
    /// Singles from one worker to the next.
    pub worker_stride: usize,
    /// Score matrices, `[heads][tile][keys][W]`, after the last worker.
    pub scores: Span,
    /// Rows of states kept for all tiles by method math, after the score matrices.
    pub all_tiles: Span,
    /// Singles in all, less the room for alignment.
    pub total: usize,
    /// Bytes of the tables of sequences and their first units.
    pub tables: usize,
}

/// Singles in a line of 64 bytes.
const LINE: usize = 16;

/// Hands out spans one after the other.
struct Cursor {
    at: usize,
    overflow: bool,
}

impl Cursor {
    fn take(&mut self, dims: &[usize]) -> Span {
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

impl WorkspaceLayout {
    /// Lays out the workspace of a choice; none if it cannot be counted.
    #[must_use]
    pub fn of(choice: &CpuChoice) -> Option<WorkspaceLayout> {
        let c = choice;
        let w = c.width();
        let optional = |needed: bool, n: usize| if needed { n } else { 0 };
        let mut tile = Cursor { at: 0, overflow: false };
        let query = tile.take(&[c.head_dim, w]);
        let state = tile.take(&[2 + c.value_dim, w]);
        tile.at = state.start;
        tile.take(&[c.levels(), state.len.next_multiple_of(LINE)]);
        let mut worker = Cursor { at: 0, overflow: tile.overflow };
        let panels = matches!(c.kernel.keys, KeyLayout::Panels(_));
        // Keys go through rows of singles on their way into panels when they are not rows of singles already.
        let through = c.convert || (c.stage_keys && panels);
        let tiles = match c.method {
            Method::Elsa => c.group,
            Method::Math => 1,
        };
        let mut layout = WorkspaceLayout {
            weights: worker.take(&[c.block + 16, w]),
            pad: worker.take(&[8, c.head_dim]),
            keys: worker.take(&[optional(c.stage_keys, c.block + 8), c.head_dim]),
            values: worker.take(&[optional(c.stage_values, c.block), c.value_dim]),
            rows: worker.take(&[optional(through, c.block.max(w)), c.head_dim.max(c.value_dim)]),
            bias: worker.take(&[c.block, optional(c.masked, w)]),
            tiles: worker.take(&[tiles, tile.at]),
            tile: TileSpans { query, state: Span { len: state.len.next_multiple_of(LINE), ..state } },
            tile_stride: tile.at,
            ..WorkspaceLayout::default()
        };
        layout.worker_stride = worker.at;
        let mut all = Cursor { at: 0, overflow: worker.overflow };
        all.take(&[c.workers, worker.at]);
        if c.method == Method::Math {
            let [queries, keys, heads] = c.extent;
            let tiles = heads.checked_mul(c.tiling(queries).count())?;
            layout.scores = all.take(&[tiles, (keys + 8).next_multiple_of(LINE), w]);
            layout.all_tiles = all.take(&[tiles, layout.tile.state.len]);
        }
        layout.total = all.at;
        let entry = size_of::<Sequence>() + size_of::<usize>();
        layout.tables = c.sequences.checked_mul(entry)?.checked_add(size_of::<usize>())?;
        (!all.overflow).then_some(layout)
    }

    /// The parts of the workspace with their labels, in order: those of the first worker from [`Region::Weights`]
    /// to [`Region::States`], the last two being those of its first tile and first state, then what all workers
    /// share.
    #[must_use]
    pub fn regions(&self) -> [(Region, Span); 10] {
        let inside = |span: Span| Span { start: self.tiles.start + span.start, len: span.len };
        [
            (Region::Weights, self.weights),
            (Region::Pad, self.pad),
            (Region::Keys, self.keys),
            (Region::Values, self.values),
            (Region::Rows, self.rows),
            (Region::Bias, self.bias),
            (Region::Query, inside(self.tile.query)),
            (Region::States, inside(self.tile.state)),
            (Region::Scores, self.scores),
            (Region::AllStates, self.all_tiles),
        ]
    }

    /// Singles of a workspace that starts anywhere: the parts, and the room to align the first.
    #[must_use]
    pub const fn floats(&self) -> usize {
        self.total + LINE - 1
    }

    /// Bytes of the whole workspace, tables included.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.floats() * 4 + self.tables
    }
}
