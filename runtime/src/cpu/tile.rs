//! The fused walk: a group of query tiles over blocks of keys, segments into the merge tree, states out.

use super::call::{Context, Unit};
use super::stage::{self, Rows};
use elsa_core::attention::Sequence;
use elsa_core::attention::plan::MOST_TILES;
use elsa_core::attention::schedule::{Coverage, coverage, fill_bias};
use elsa_core::scan::stack::MergeStack;
use elsa_core::state::{log_sum_exp, natural_reference};
use elsa_kernels::attention::{Block, Entries, Sums, Tile};
use std::ops::Range;

/// A query tile on its way.
struct Walk<'a> {
    rows: Range<usize>,
    width: usize,
    entries: &'a Entries,
    tile: Tile,
    /// State zero; others follow `state_stride` singles apart.
    states: *mut f32,
    state_stride: usize,
    stack: MergeStack,
    segment: Option<usize>,
}

/// The state at `at` of a tile `width` wide.
pub(super) fn sums(at: *mut f32, width: usize) -> Sums {
    Sums { m: at, s: at.wrapping_add(width), w: at.wrapping_add(2 * width) }
}

impl Walk<'_> {
    fn state(&self, slot: usize) -> Sums {
        sums(self.states.wrapping_add(slot * self.state_stride), self.width)
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

/// The worker's part of the workspace.
pub(super) fn worker_part(c: &Context<'_>, worker: usize) -> *mut f32 {
    c.base.wrapping_add(worker * c.layout.worker_stride)
}

/// Computes a unit.
///
/// # Safety
/// - The invariants of [`Context`].
/// - No other worker has this unit or this number.
pub(super) unsafe fn attend(c: &Context<'_>, unit: &Unit<'_>, worker: usize) {
    let part = worker_part(c, worker);
    let (l, choice, sequence) = (c.layout, c.choice, unit.sequence);
    let kv_head = c.problem.kv_head(unit.head);
    let tiling = choice.tiling(sequence.queries);
    let scratch = part.wrapping_add(l.rows.start);
    let mut walks: heapless::Vec<Walk<'_>, MOST_TILES> = heapless::Vec::new();
    for (place, t) in (unit.tiles.0..unit.tiles.1).enumerate() {
        let tile = tiling.tile(t);
        let own = part.wrapping_add(l.tiles.start + place * l.tile_stride);
        let query = own.wrapping_add(l.tile.query.start);
        let width = tile.vectors * c.kernel.spec.lanes;
        // SAFETY: the tile's rows lie in the sequence, its part of the workspace is this worker's (layout).
        unsafe { stage::load_query(c, sequence, unit.head, tile.rows.clone(), width, scratch, query) };
        let walk = Walk {
            rows: tile.rows,
            width,
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
        // A group never has more tiles than the array.
        let _ = walks.push(walk);
    }
    let (Some(first), Some(last)) = (walks.first(), walks.last()) else { return };
    let (any, _) = sequence.ranges(first.rows.start..last.rows.end);
    let mut start = any.start / choice.block * choice.block;
    while start < any.end {
        let keys = start..any.end.min(start + choice.block);
        let mut staged: Option<(Rows, Rows)> = None;
        for walk in &mut walks {
            // SAFETY: the region for the bias belongs to this worker and holds a block (layout).
            let Some(bias) = (unsafe { cover(c, sequence, unit.head, &walk.rows, &keys, walk.width, part) })
            else {
                continue;
            };
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
        // SAFETY: the stack names initialised states; the rows are this unit's.
        unsafe {
            let any = stack.finish(|slot| walk.merge(slot));
            let state = any.then(|| walk.state(0));
            finish(
                c,
                sequence,
                unit.head,
                walk.rows.clone(),
                walk.width,
                walk.entries,
                state,
                false,
                scratch,
            );
        }
    }
}

/// The bias of a tile and a block: null when it is attended in full, none when not at all.
///
/// # Safety
/// - The invariants of [`Context`]; `part` is the worker's part of the workspace.
pub(super) unsafe fn cover(
    c: &Context<'_>,
    sequence: &Sequence,
    head: usize,
    rows: &Range<usize>,
    keys: &Range<usize>,
    width: usize,
    part: *mut f32,
) -> Option<*const f32> {
    match coverage(c.problem, sequence, rows.clone(), keys.clone()) {
        Coverage::Skip => None,
        Coverage::Full => Some(std::ptr::null()),
        Coverage::Partial => {
            let at = part.wrapping_add(c.layout.bias.start);
            // SAFETY: the region holds a block of the widest tile (layout: masked), all initialised.
            let bias = unsafe { std::slice::from_raw_parts_mut(at, keys.len() * width) };
            match fill_bias(c.problem, &c.inputs, sequence, head, rows.clone(), keys.clone(), width, bias) {
                Coverage::Skip => None,
                Coverage::Full => Some(std::ptr::null()),
                Coverage::Partial => Some(at),
            }
        }
    }
}

/// Writes everything that a tile's rows give. Without a state no row has a key. With `normalised` the state's
/// weighted sums were divided by its sums already.
///
/// # Safety
/// - The invariants of [`Context`]; the rows are this worker's; the state is initialised.
/// - `scratch` is the worker's region for rows.
pub(super) unsafe fn finish(
    c: &Context<'_>,
    sequence: &Sequence,
    head: usize,
    rows: Range<usize>,
    width: usize,
    entries: &Entries,
    state: Option<Sums>,
    normalised: bool,
    scratch: *mut f32,
) {
    let dv = c.problem.value_dim();
    let token = sequence.query0 + rows.start;
    let at = (sequence.batch * c.problem.heads() + head) * c.query.view.tokens() + token;
    let unit = c.kernel.spec.weight_scale;
    for i in 0..rows.len() {
        // SAFETY: column `i` of the state; element `at + i` of the arrays that are not null (*outputs*).
        unsafe {
            let (m, s) = match &state {
                Some(sums) => (sums.m.add(i).read(), sums.s.add(i).read()),
                None => (f32::NEG_INFINITY, 0.0),
            };
            let empty = m == f32::NEG_INFINITY && !s.is_nan();
            if !c.lse.is_null() {
                c.lse.add(at + i).write(log_sum_exp(m, f64::from(s) / unit));
            }
            if !c.state_m.is_null() {
                let (natural, factor) = natural_reference(m);
                let factor = factor / unit;
                c.state_m.add(at + i).write(natural);
                c.state_s.add(at + i).write(if empty { 0.0 } else { (f64::from(s) * factor) as f32 });
                let factor = if normalised { factor * f64::from(s) } else { factor };
                let to = c.state_w.add((at + i) * dv);
                for x in 0..dv {
                    let w = match &state {
                        Some(sums) if !empty => (f64::from(sums.w.add(x * width + i).read()) * factor) as f32,
                        _ => 0.0,
                    };
                    to.add(x).write(w);
                }
            }
        }
    }
    // SAFETY: the state is this worker's; *kernel*; rows and scratch by the clauses.
    unsafe {
        let w = match &state {
            Some(sums) => {
                if !normalised {
                    (entries.finish)(sums, c.choice.value_dim);
                }
                sums.w.cast_const()
            }
            None => std::ptr::null(),
        };
        stage::store_output(c, sequence, head, rows, w, width, scratch);
    }
}
