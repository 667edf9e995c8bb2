//! The fused walk: query tiles over blocks of keys, segments into the merge tree, states out.
//!
//! **The formula.** With tiles of query rows, blocks of keys and segments of eight blocks, each row's answer is
//! `W / S` of the state
//!
//! ```text
//! (m, S, W) = ⊕ over segments in the balanced tree ( ⊕ over blocks of the segment, in order ( state of the block ) )
//! ```
//!
//! **The naive loop** takes one tile after the other:
//!
//! ```text
//! for each tile of query rows:
//!     load the tile
//!     for each block of keys:       bring keys and values into shape
//!         scores, weights, sums     fold into the state of the segment
//!     merge the segments' states, write W / S
//! ```
//!
//! **Why the code differs.**
//!
//! 1. *Some tiles share a block.* A task is a group of tiles of one head. The block's keys and values are brought into
//!    shape once, when the first tile needs them, and stay in cache for the others. So the loop over blocks is the
//!    outer one, and every tile keeps a [`Walk`].
//! 2. *Blocks are cut from the first key of the sequence on*, whatever range a tile attends, so that a row meets the
//!    same operations in whatever tile it lies. Blocks that no row of the group attends are never visited; blocks that a
//!    tile does not attend are skipped; blocks that it attends in full need no bias.
//! 3. *Segments merge as soon as a subtree is complete.* [`MergeStack`] names the slots; a tile keeps one state per
//!    level of the tree, never one per segment.
//! 4. *Nothing is allocated.* Tiles, states and blocks lie in the worker's part of the workspace, where
//!    [`WorkspaceLayout`](elsa_core::attention::plan::WorkspaceLayout) put them.

use super::context::{Context, Task, TileRows};
use super::finish::{Finished, finish};
use super::stage::{self, Rows};
use elsa_core::attention::plan::MAX_TILES;
use elsa_core::attention::schedule::{Coverage, coverage, fill_bias};
use elsa_core::scan::stack::MergeStack;
use elsa_kernels::attention::{Block, Entries, Sums, Tile};
use std::ops::Range;

/// A query tile on its way over the blocks.
struct Walk<'a> {
    rows: TileRows<'a>,
    entries: &'a Entries,
    tile: Tile,
    /// State zero; others follow `state_stride` f32 values apart.
    states: *mut f32,
    state_stride: usize,
    stack: MergeStack,
    segment: Option<usize>,
}

/// The state at `at` of a tile of `width` rows.
pub(super) fn sums(at: *mut f32, width: usize) -> Sums {
    Sums { m: at, s: at.wrapping_add(width), w: at.wrapping_add(2 * width) }
}

impl Walk<'_> {
    fn state(&self, slot: usize) -> Sums {
        sums(self.states.wrapping_add(slot * self.state_stride), self.rows.width)
    }

    /// slot ← slot ⊕ (slot + 1).
    ///
    /// # Safety
    /// - The invariants of [`Context`]; both states are initialised.
    unsafe fn merge(&self, slot: usize) {
        // SAFETY: both states lie in this tile's part of the workspace (layout: levels); *kernel*.
        unsafe { (self.entries.merge)(&self.state(slot), &self.state(slot + 1), self.tile.value_dim) }
    }

    /// The state that a block of `segment` folds into, and whether it is new.
    ///
    /// # Safety
    /// - The invariants of [`Context`]; segments arrive in order.
    unsafe fn current(&mut self, segment: usize) -> (Sums, bool) {
        let new = self.segment != Some(segment);
        if new {
            self.segment = Some(segment);
            let mut stack = std::mem::take(&mut self.stack);
            // SAFETY: the stack names slots that segments were folded into (clause).
            stack.push(segment, |slot| unsafe { self.merge(slot) });
            self.stack = stack;
        }
        (self.state(self.stack.len() - 1), new)
    }
}

/// Computes a task.
///
/// # Safety
/// - The invariants of [`Context`].
/// - No other worker has this task or this number.
pub(super) unsafe fn attend(c: &Context<'_>, task: &Task<'_>, worker: usize) {
    let part = c.worker_part(worker);
    let (l, choice, sequence) = (c.layout, c.choice, task.sequence);
    let kv_head = c.problem.kv_head(task.head);
    let tiling = choice.tiling(sequence.queries);
    let scratch = part.wrapping_add(l.rows.start);
    let mut walks: heapless::Vec<Walk<'_>, MAX_TILES> = heapless::Vec::new();
    for (place, t) in task.tiles.clone().enumerate() {
        let tile = tiling.tile(t);
        let own = part.wrapping_add(l.tiles.start + place * l.tile_stride);
        let query = own.wrapping_add(l.tile.query.start);
        let width = tile.vectors * c.kernel.spec.lanes;
        let rows = TileRows { sequence, head: task.head, rows: tile.rows, width };
        // SAFETY: the tile's rows lie in the sequence, its part of the workspace is this worker's (layout).
        unsafe { stage::load_query(c, &rows, scratch, query) };
        let walk = Walk {
            rows,
            entries: &c.kernel.entries[tile.vectors - 1],
            tile: Tile {
                query,
                weights: part.wrapping_add(l.weights.start),
                pad: part.wrapping_add(l.pad.start),
                head_dim: choice.head_dim,
                value_dim: choice.value_dim,
            },
            states: own.wrapping_add(l.tile.state.start),
            state_stride: l.tile.state.len,
            stack: MergeStack::default(),
            segment: None,
        };
        // A task never has more tiles than the array.
        let _ = walks.push(walk);
    }
    let (Some(first), Some(last)) = (walks.first(), walks.last()) else { return };
    let (any, _) = sequence.ranges(first.rows.rows.start..last.rows.rows.end);
    let mut start = any.start / choice.block * choice.block;
    while start < any.end {
        let keys = start..any.end.min(start + choice.block);
        let mut staged: Option<(Rows, Rows)> = None;
        for walk in &mut walks {
            // SAFETY: the region for the bias belongs to this worker and holds a block (layout).
            let Some(bias) = (unsafe { cover(c, &walk.rows, &keys, part) }) else { continue };
            // SAFETY: keys lie in the sequence; the worker's regions hold a block (layout). Blocks arrive in
            // order, and so do their segments. Tile, block and sums point to what their contracts ask.
            unsafe {
                let (k, v) = *staged.get_or_insert_with(|| {
                    let k = stage::keys(c, sequence, kv_head, &keys, part);
                    (k, stage::values(c, sequence, kv_head, &keys, part))
                });
                let block = Block {
                    keys: k.data,
                    key_stride: k.stride,
                    values: v.data,
                    value_stride: v.stride,
                    count: keys.len(),
                    bias,
                    cap: c.cap,
                };
                let (sums, new) = walk.current(start / choice.segment);
                (walk.entries.step)(&walk.tile, &block, &sums, new);
            }
        }
        start += choice.block;
    }
    for walk in &mut walks {
        let mut stack = std::mem::take(&mut walk.stack);
        // SAFETY: the stack names initialised states; the rows are this task's.
        unsafe {
            let any = stack.finish(|slot| walk.merge(slot));
            let state = if any { Finished::Sums(walk.state(0)) } else { Finished::Empty };
            finish(c, &walk.rows, walk.entries, state, scratch);
        }
    }
}

/// The bias of a tile and a block: null where every row attends every key, none where no row attends a key.
///
/// # Safety
/// - The invariants of [`Context`]; `part` is the worker's part of the workspace.
pub(super) unsafe fn cover(
    c: &Context<'_>,
    tile: &TileRows<'_>,
    keys: &Range<usize>,
    part: *mut f32,
) -> Option<*const f32> {
    let (sequence, rows) = (tile.sequence, &tile.rows);
    match coverage(c.problem, sequence, rows.clone(), keys.clone()) {
        Coverage::Skip => None,
        Coverage::Full => Some(std::ptr::null()),
        Coverage::Partial => {
            let at = part.wrapping_add(c.layout.bias.start);
            // SAFETY: the region holds a block of the widest tile (layout: masked), all initialised.
            let bias = unsafe { std::slice::from_raw_parts_mut(at, keys.len() * tile.width) };
            let (rows, keys) = (rows.clone(), keys.clone());
            match fill_bias(c.problem, &c.inputs, sequence, tile.head, rows, keys, tile.width, bias) {
                Coverage::Skip => None,
                Coverage::Full => Some(std::ptr::null()),
                Coverage::Partial => Some(at),
            }
        }
    }
}
