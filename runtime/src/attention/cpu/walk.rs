//! Computes attention in one fused traversal: query tiles absorb key blocks, segments merge in a tree, and the final
//! states become outputs.
//!
//! **The formula.** With tiles of query rows, blocks of keys and segments of eight blocks, the output of each row is
//! `W / S` of the state
//!
//! ```text
//! (m, S, W) = ⊕ over segments in the balanced tree ( ⊕ over blocks of the segment, in order ( state of the block ) )
//! ```
//!
//! **The naive loop** processes one tile after another:
//!
//! ```text
//! for each tile of query rows:
//!     load the tile's queries
//!     for each block of keys:       copy keys and values where needed
//!         scores, weights, sums     fold into the state of the segment
//!     merge the segments' states, write W / S
//! ```
//!
//! **Why the code differs.**
//!
//! 1. *Tiles share a block.* A task is a group of tiles of one head, or of several heads that read the same key head.
//!    The keys and values of a block are copied once, when the first tile needs them, and stay in cache for the other
//!    tiles. So the outer loop is the loop over blocks, and every tile has a [`Walk`]. Tiles of one row wait for each
//!    other, and take their step through the block together ([`Waiting`]).
//! 2. *Block bounds are counted from the first key of the sequence*, whichever range a tile attends, so a row executes
//!    the same operations in any tile. Blocks that no row of the group attends are never visited, blocks that a tile
//!    does not attend are skipped, and blocks that it fully attends need no bias.
//!    The keys of a block after the last one that a tile attends are neither multiplied nor weighted.
//! 3. *Segments merge as soon as a subtree is complete.* [`MergeStack`] determines which states to merge. A tile keeps
//!    one state per level of the tree, not one per segment.
//! 4. *If the kernel can read the bias from the memory of the scores*, the bias is written there: a block then needs a
//!    third less cache. [`Block`] states when this is allowed.
//! 5. *Keys may arrive in chunks.* Between two chunks, the tile's region keeps the states and the [`Progress`] of a
//!    [`Walk`], so the traversal of all chunks executes the same operations as a traversal of all keys at once.
//! 6. *With an error budget*, a tile votes on skipping each block (`within.rs` of the kernels). If numbers are added to
//!    scores, it also votes before the block is read ([`unseen`]). Its states then have one more sum, `D`, for the
//!    weights of skipped blocks.
//! 7. *If scores are known to stay near zero* ([`gate`]), zero is the reference of all rows, so no maximum is searched
//!    and no reference is subtracted.
//! 8. *Nothing is allocated.* Tiles, states and blocks are in the worker's region of the workspace, at the offsets of
//!    [`WorkspaceLayout`](elsa_core::attention::plan::WorkspaceLayout).

use super::addends;
use super::bias::{Bias, Room, cover};
use super::context::{Context, TileGroup, TileRows};
use super::diagonal;
use super::finish::{Finished, finish};
use super::gate;
use super::mask_cache::MaskCache;
use super::stage::{self, Rows};
use super::unseen::{self, Vote};
use crate::cpu::pool::Crew;
use elsa_core::attention::plan::MAX_TILES;
use elsa_core::attention::plan::TileSpans;
use elsa_core::attention::traversal::{TraversalReport, own_blocks};
use elsa_core::scan::stack::MergeStack;
use elsa_core::state::Merge;
use elsa_kernels::attention::{Block, Budget, Entries, RowStep, Sums, Tile};
use std::ops::Range;

/// Progress of a tile: the current segment of the tile, and the stack of segments that the states of the tile
/// represent.
#[derive(Clone, Copy, Default)]
struct Progress {
    stack: MergeStack,
    segment: Option<usize>,
}

// The layout reserves one line for a tile's progress, which fits in it.
const _: () = assert!(size_of::<Progress>() <= 64 && align_of::<Progress>() <= 64);

impl Progress {
    /// Returns the address at which a tile's progress is stored between two chunks.
    fn place(tile: &TileSpans, own: *mut f32) -> *mut Progress {
        own.wrapping_add(tile.progress.start).cast()
    }
}

/// A query tile during its traversal of the blocks.
struct Walk<'a> {
    rows: TileRows<'a>,
    entries: &'a Entries,
    tile: Tile,
    /// Address of state 0. The other states follow, `state_stride` f32 values apart.
    states: *mut f32,
    state_stride: usize,
    /// The tile's region of the workspace.
    own: *mut f32,
    progress: Progress,
    /// The sums with which the tile votes on skipping blocks; `None` without an error budget.
    budget: Option<Budget>,
    /// `true` if the tile's scores are known to stay near zero; zero is then the reference of all rows.
    near_zero: bool,
    /// First block that contains a key on the tile's diagonal, if the plan votes on unseen blocks.
    own_block: usize,
}

/// Returns the state at address `at` of a tile of `width` rows.
pub(super) fn sums(at: *mut f32, width: usize) -> Sums {
    Sums { m: at, s: at.wrapping_add(width), w: at.wrapping_add(2 * width) }
}

impl Walk<'_> {
    fn state(&self, slot: usize) -> Sums {
        sums(self.states.wrapping_add(slot * self.state_stride), self.rows.width)
    }

    /// Merges the state in slot `slot + 1` into the state in slot `slot`.
    ///
    /// # Safety
    /// - The invariants of [`Context`] hold. Both states are initialised.
    unsafe fn merge(&self, slot: usize) {
        let (earlier, later) = (self.state(slot), self.state(slot + 1));
        // SAFETY: both states are in this tile's region of the workspace (layout: levels); *kernel*.
        unsafe {
            if self.budget.is_some() {
                for i in 0..self.rows.width {
                    let law = Merge::of(earlier.m.add(i).read(), later.m.add(i).read());
                    let (d, of_later) = (self.left_out(slot).add(i), self.left_out(slot + 1).add(i));
                    d.write(law.apply(d.read(), of_later.read()));
                }
            }
            (self.entries.merge)(&earlier, &later, self.tile.value_dim);
        }
    }

    /// Returns the sums of skipped weights, `[width]`, which follow the other sums of a state. Only tiles with an error
    /// budget have them.
    fn left_out(&self, slot: usize) -> *mut f32 {
        self.state(slot).w.wrapping_add(self.tile.value_dim * self.rows.width)
    }

    /// Returns the keys of a block up to the last one that a row of the tile may attend by length, causality and window.
    /// Later keys would have the weight zero. A tile that votes on skipping blocks sees all keys of the block, because
    /// the vote depends on their number.
    fn seen(&self, keys: &Range<usize>) -> Range<usize> {
        let (any, _) = self.rows.sequence.ranges(self.rows.rows.clone());
        let end = if self.budget.is_some() { keys.end } else { keys.end.min(any.end.max(keys.start)) };
        keys.start..end
    }

    /// Returns `true` if the tile may wait for other tiles and take its steps together with them.
    fn waits(&self, c: &Context<'_>) -> bool {
        c.kernel.together.is_some() && self.budget.is_none() && !self.near_zero
    }

    /// Absorbs a block of `segment`. `known` is the largest magnitude of the block's values, or a negative number if
    /// this magnitude is not known yet.
    ///
    /// # Safety
    /// - The invariants of [`Context`] hold. The clauses of [`Block`] hold for `block`, and segments arrive in order.
    /// - `counts` belongs to the worker, or is null if the plan records nothing.
    unsafe fn step(&mut self, block: &Block, segment: usize, known: &mut f32, counts: *mut TraversalReport) {
        // SAFETY: the callees require these clauses; tile, sums and budget are in the tile's region (layout); *kernel*.
        unsafe {
            let (sums, new) = self.current(segment);
            let rows = self.rows.rows.len() as u64;
            if let Some(counts) = counts.as_mut() {
                counts.blocks += 1;
                counts.row_blocks += rows;
            }
            let left_out = self.left_out(self.progress.stack.len() - 1);
            let raised = !self.near_zero;
            let Some(budget) = &mut self.budget else {
                if raised {
                    (self.entries.step)(&self.tile, block, &sums, new);
                    return;
                }
                (self.entries.scores)(&self.tile, block, self.tile.weights, std::ptr::null_mut());
                (self.entries.weigh)(&self.tile, block, &sums, new);
                (self.entries.accumulate)(&self.tile, block, self.tile.weights, &sums, [false, new]);
                return;
            };
            (budget.left_out, budget.largest) = (left_out, *known);
            let top = if raised { budget.top } else { std::ptr::null_mut() };
            (self.entries.scores)(&self.tile, block, self.tile.weights, top);
            (self.entries.decide)(&self.tile, block, &sums, budget, new);
            if !budget.skipped {
                (self.entries.accumulate)(&self.tile, block, self.tile.weights, &sums, [raised, new]);
            }
            *known = budget.largest;
            let Some(counts) = counts.as_mut() else { return };
            counts.skipped_blocks += u64::from(budget.skipped);
            counts.skipped_row_blocks += if budget.skipped { rows } else { 0 };
            counts.rescaled_blocks += u64::from(budget.moved && !budget.skipped);
        }
    }

    /// Lets the tile vote on a block before any product of the block is computed. `keys` are the keys of the block,
    /// `segment` is its segment, `index` is the index of its sequence, and `bias` is the bias of its scores. If the
    /// tile skips the block, adds the bound of the block's weights to the sums and returns `true`.
    ///
    /// # Safety
    /// - The invariants of [`Context`] hold. The plan votes on unseen blocks. Segments arrive in order.
    /// - `counts` belongs to the worker.
    unsafe fn leaves_unseen(
        &mut self,
        c: &Context<'_>,
        index: usize,
        (keys, segment): (&Range<usize>, usize),
        bias: Bias,
        counts: *mut TraversalReport,
    ) -> bool {
        // SAFETY: the callees' clauses are those of this function; sums and budget are in the tile's region (layout).
        unsafe {
            let Some(mut budget) = self.budget else { return false };
            let block = keys.start / c.choice.block;
            let own = budget.totals.wrapping_add(OWN_LINE * self.rows.width);
            let begun = self.progress.segment == Some(segment);
            let state = begun.then(|| self.state(self.progress.stack.len() - 1));
            let vote = Vote {
                rows: self.rows.clone(),
                index,
                block,
                count: keys.len(),
                bias,
                norms: budget.totals.wrapping_add(NORMS_LINE * self.rows.width),
                own: (block < self.own_block).then_some(own.cast_const()),
            };
            if !vote.passes(c, state.as_ref(), &budget) {
                return false;
            }
            let (sums, new) = self.current(segment);
            budget.left_out = self.left_out(self.progress.stack.len() - 1);
            vote.leave_out(c, &sums, &budget, new);
            if let Some(counts) = counts.as_mut() {
                let rows = self.rows.rows.len() as u64;
                counts.blocks += 1;
                counts.row_blocks += rows;
                counts.skipped_blocks += 1;
                counts.skipped_row_blocks += rows;
                counts.unseen_blocks += 1;
            }
            true
        }
    }

    /// Gives rows that have absorbed no key the reference of an empty state. Called at the end of a traversal in which
    /// zero was the reference of all rows.
    ///
    /// # Safety
    /// - The invariants of [`Context`] hold. State 0 is initialised.
    unsafe fn close(&self) {
        let sums = self.state(0);
        for i in 0..self.rows.width {
            // SAFETY: the state is initialised (clause) and has a row `i`.
            unsafe {
                if sums.s.add(i).read() == 0.0 {
                    sums.m.add(i).write(f32::NEG_INFINITY);
                }
            }
        }
    }

    /// Returns the state into which a block of `segment` folds, and whether this state is new.
    ///
    /// # Safety
    /// - The invariants of [`Context`] hold. Segments arrive in order.
    unsafe fn current(&mut self, segment: usize) -> (Sums, bool) {
        let new = self.progress.segment != Some(segment);
        if new {
            self.progress.segment = Some(segment);
            let mut stack = std::mem::take(&mut self.progress.stack);
            // SAFETY: the stack returns slots into which segments have been folded (clause).
            stack.push(segment, |slot| unsafe { self.merge(slot) });
            self.progress.stack = stack;
        }
        (self.state(self.progress.stack.len() - 1), new)
    }
}

/// Largest number of tiles that wait for each other; no kernel takes more together.
const MOST_WAITING: usize = 4;

/// Tiles of one row that will take their step through the current block together.
#[derive(Default)]
struct Waiting {
    /// Indices of the tiles' walks.
    places: heapless::Vec<usize, MOST_WAITING>,
    /// The block, with the bias of all these tiles.
    block: Option<Block>,
}

impl Waiting {
    /// Adds the walk at `place`, whose block is `block`. If the waiting tiles have another bias or number of keys, or are
    /// as many as the kernel takes, they take their step before.
    ///
    /// # Safety
    /// - As for [`Waiting::step`]. The kernel takes steps together, and `block` stays valid until the step.
    unsafe fn add(
        &mut self,
        c: &Context<'_>,
        walks: &mut [Walk<'_>],
        place: usize,
        block: Block,
        segment: usize,
    ) {
        let most = c.kernel.spec.together.min(MOST_WAITING);
        let differs = |waiting: Block| (waiting.bias, waiting.count) != (block.bias, block.count);
        if self.places.len() >= most || self.block.is_some_and(differs) {
            // SAFETY: the callee's clauses are those of this function.
            unsafe { self.step(c, walks, segment) };
        }
        // There is room for the place: the waiting tiles are fewer than the array can hold.
        let _ = self.places.push(place);
        self.block = Some(block);
    }

    /// Takes the step of all waiting tiles; none waits afterwards.
    ///
    /// # Safety
    /// - The invariants of [`Context`]. The blocks fulfil their contract, and segments arrive in order.
    unsafe fn step(&mut self, c: &Context<'_>, walks: &mut [Walk<'_>], segment: usize) {
        let (places, block) = (std::mem::take(&mut self.places), self.block.take());
        let (Some(together), Some(block)) = (c.kernel.together, block) else { return };
        let mut rows: heapless::Vec<RowStep, MOST_WAITING> = heapless::Vec::new();
        for (i, place) in places.into_iter().enumerate() {
            let Some(walk) = walks.get_mut(place) else { continue };
            // SAFETY: segments arrive in order (clause).
            let (sums, first) = unsafe { walk.current(segment) };
            let weights = walk.tile.weights.wrapping_add(i * (c.choice.block + 16));
            let _ = rows.push(RowStep { tile: Tile { weights, ..walk.tile }, sums, first });
        }
        // SAFETY: tiles and sums are in the tiles' regions, which do not overlap; the layout has weights for each of the
        // tiles; *kernel*.
        unsafe { together(&rows, &block) };
    }
}

/// Index of the line that contains the norms of the rows, if the plan votes on unseen blocks. Lines are counted from
/// the tile's totals. Line `OWN_LINE` contains a lower bound of the score of each row's own key.
const NORMS_LINE: usize = 5;
const OWN_LINE: usize = 6;

/// Initialises the totals, which are the sums from which the first `rows` rows of a tile vote on skipping blocks. The
/// reference of the totals is `m`.
///
/// # Safety
/// - Four lines of `width` values are writable at `totals`, and `rows` is at most `width`.
unsafe fn begin(totals: *mut f32, width: usize, rows: usize, m: f32) {
    // SAFETY: `totals` has the four lines (clause).
    unsafe {
        for i in 0..width {
            let line = |n: usize| totals.add(n * width + i);
            line(0).write(m);
            line(1).write(0.0);
            line(2).write(0.0);
            line(3).write(if i < rows { 1.0 } else { 0.0 });
        }
    }
}

/// Adds the keys of the call's pass to the states of the task's query rows. The last pass also writes every output of
/// these rows. Stops before the next block if the call is cancelled.
///
/// # Safety
/// - The invariants of [`Context`] hold.
/// - No other worker has this task or this worker number.
/// - If `c.pass` is not the first pass, the previous pass has run in this workspace, with the keys just before those of
///   this pass.
pub(super) unsafe fn attend(c: &Context<'_>, task: &TileGroup<'_>, worker: usize, crew: &Crew<'_>) {
    if task.tiles.is_empty() {
        return;
    }
    let part = c.worker_part(worker);
    let (l, choice, sequence) = (c.layout, c.choice, task.sequence);
    // SAFETY: `part` is this worker's region.
    let cache = unsafe { MaskCache::of(c, task, part) };
    let apart = Room::of(c, part);
    let kv_head = c.problem.kv_head(task.heads.start);
    let tiling = choice.tiling(sequence.queries);
    let scratch = part.wrapping_add(l.rows.start);
    let mut walks: heapless::Vec<Walk<'_>, MAX_TILES> = heapless::Vec::new();
    let odds = choice.odds();
    let counts = match choice.recorded {
        0 => std::ptr::null_mut(),
        _ => part.wrapping_add(l.counts.start).cast::<TraversalReport>(),
    };
    let tiles = task.heads.clone().flat_map(|head| task.tiles.clone().map(move |t| (head, t)));
    for (place, (head, t)) in tiles.enumerate() {
        let tile = tiling.tile(t);
        let (region, number) = match task.resident {
            Some(first) => (c.base, first + place),
            None => (part, place),
        };
        let own = region.wrapping_add(l.tiles.start + number * l.tile_stride);
        let query = own.wrapping_add(l.tile.query.start);
        let width = tile.vectors * c.kernel.spec.lanes;
        let rows = TileRows { sequence, head, rows: tile.rows, width };
        // SAFETY: the tile's rows are in the sequence, and its region of the workspace belongs to this worker (layout).
        // If this pass is not the first, the previous pass has left the tile's progress there (clause).
        let progress = unsafe {
            if c.pass.begins {
                stage::load_query(c, &rows, scratch, query);
                Progress::default()
            } else {
                Progress::place(&l.tile, own).read()
            }
        };
        // SAFETY: the plan gates, and keys and values have been measured.
        let near_zero = choice.gates() && unsafe { gate::is_open(c, &rows, task.index, &cache) };
        let budget = odds.map(|odds| {
            let totals = own.wrapping_add(l.tile.totals.start);
            let (left_out, top) = (std::ptr::null_mut(), totals.wrapping_add(4 * width));
            // SAFETY: the region has five lines of the tile's width, and two more if the plan foresees (layout).
            unsafe {
                begin(totals, width, rows.rows.len(), if near_zero { 0.0 } else { f32::NEG_INFINITY });
                if choice.foresees {
                    let line = |n: usize| totals.wrapping_add(n * width);
                    unseen::write_norms(c, &rows, line(NORMS_LINE));
                    diagonal::write_scores(c, &rows, query, line(OWN_LINE));
                }
            }
            Budget { odds, left_out, totals, top, largest: -1.0, near_zero, skipped: false, moved: false }
        });
        let walk = Walk {
            own_block: if choice.foresees { own_blocks(sequence, &rows.rows, choice.block).start } else { 0 },
            rows,
            budget,
            near_zero,
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
            own,
            progress,
        };
        // A task never has more tiles than the array can hold.
        let _ = walks.push(walk);
    }
    let (Some(first), Some(last)) = (walks.first(), walks.last()) else { return };
    let (any, _) = sequence.ranges(first.rows.rows.start..last.rows.rows.end);
    let any = any.start.max(c.pass.keys.start)..any.end.min(c.pass.keys.end);
    // SAFETY: the keys are in the sequence.
    let any = unsafe { cache.visited(c, any) };
    let in_place = match choice.bias_in_place() {
        true => Room { first: part.wrapping_add(l.weights.start), ..apart },
        false => apart,
    };
    let mut waiting = Waiting::default();
    let mut start = any.start / choice.block * choice.block;
    while start < any.end {
        if crew.is_cancelled() {
            return;
        }
        let keys = start..any.end.min(start + choice.block);
        let mut staged: Option<(Rows, Rows)> = None;
        let mut values: Option<(f32, Rows)> = None;
        let mut known = -1.0;
        let segment = start / choice.segment;
        for place in 0..walks.len() {
            // The data to prefetch belong to the next tile of this block, or to the first tile of the next block.
            let ahead = match walks.get(place + 1) {
                Some(next) => addends::ahead(c, &next.rows, &keys),
                None => addends::ahead(c, &walks[0].rows, &(keys.end..any.end.min(keys.end + choice.block))),
            };
            let Some(walk) = walks.get_mut(place) else { continue };
            let seen = walk.seen(&keys);
            // SAFETY: the regions for biases and weights belong to this worker and have room for a block (layout).
            let Some(bias) = (unsafe { cover(c, &walk.rows, &seen, in_place, (&cache, place)) }) else {
                continue;
            };
            let at = (&seen, segment);
            // SAFETY: the plan foresees, and keys and values have been measured. Blocks arrive in order.
            let unseen = choice.foresees && unsafe { walk.leaves_unseen(c, task.index, at, bias, counts) };
            if unseen {
                continue;
            }
            // SAFETY: the keys are in the sequence, and the worker's regions have room for a block (layout). Blocks,
            // and therefore segments, arrive in order. The pointers of the tile, the block and the sums keep the
            // clauses of their types.
            unsafe {
                let (k, v) = *staged.get_or_insert_with(|| {
                    let k = stage::keys(c, sequence, kv_head, &keys, part);
                    (k, stage::values(c, sequence, kv_head, &keys, part))
                });
                let mut block = Block {
                    keys: k.data,
                    key_stride: k.stride,
                    values: v.data,
                    value_stride: v.stride,
                    count: keys.len(),
                    bias: bias.data,
                    shares_bias: bias.is_row,
                    masks: bias.masks,
                    ahead,
                    largest: 0.0,
                    cap: c.cap,
                };
                if c.kernel.spec.raises || bias.masks {
                    let (largest, v) = *values.get_or_insert_with(|| stage::lifted(c, &block, part));
                    (block.largest, block.values, block.value_stride) = (largest, v.data, v.stride);
                    known = largest;
                    if !largest.is_finite() && bias.data == in_place.first.cast_const() {
                        // The step reads the bias again. By then, the weights have overwritten the scores and this bias.
                        let again = cover(c, &walk.rows, &seen, apart, (&cache, place));
                        block.bias = again.map_or(bias.data, |again| again.data);
                    }
                }
                block.count = seen.len();
                // A bias that is not a row shared by the queries is overwritten when the next tile needs one.
                if walk.waits(c) && (bias.data.is_null() || bias.is_row) {
                    waiting.add(c, &mut walks, place, block, segment);
                } else {
                    walk.step(&block, segment, &mut known, counts);
                }
            }
        }
        // SAFETY: keys, values and mask row of the block are still in place. Blocks, and therefore segments, arrive in
        // order.
        unsafe { waiting.step(c, &mut walks, segment) };
        start += choice.block;
    }
    for walk in &mut walks {
        if !c.pass.ends {
            // SAFETY: the line is in the tile's region, which belongs to this worker (layout).
            unsafe { Progress::place(&l.tile, walk.own).write(walk.progress) };
            continue;
        }
        let mut stack = std::mem::take(&mut walk.progress.stack);
        // SAFETY: the stack returns initialised states, and the rows belong to this task.
        unsafe {
            let any = stack.finish(|slot| walk.merge(slot));
            if walk.near_zero && any {
                walk.close();
            }
            let state = if any { Finished::Sums(walk.state(0)) } else { Finished::Empty };
            let left_out = walk.budget.map(|_| walk.left_out(0).cast_const()).filter(|_| any);
            finish(c, &walk.rows, walk.entries, (state, left_out), scratch);
            if let Some(counts) = counts.as_mut() {
                let rows = walk.rows.rows.len() as u64;
                counts.accepted += rows;
                counts.gated += if walk.near_zero { rows } else { 0 };
            }
        }
    }
}
