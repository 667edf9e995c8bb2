//! The baseline: the score matrix is materialised, then the softmax, then the product.
//!
//! Three passes over all tiles with a wait between them, each in the same inner loops as the fused walk. What
//! differs is what is to be compared: the matrix goes through memory.

use super::call::{Context, Shared, Unit, divide};
use super::pool::Pool;
use super::{stage, tile};
use crate::error::RunError;
use elsa_kernels::attention::{Block, Entries, Sums, Tile};
use std::ops::Range;

/// A tile with its part of the matrix.
struct Part<'a> {
    rows: Range<usize>,
    width: usize,
    entries: &'a Entries,
    tile: Tile,
    scores: *mut f32,
    sums: Sums,
}

fn part<'a>(c: &Context<'a>, unit: &Unit<'_>, worker: usize) -> Part<'a> {
    let (l, choice) = (c.layout, c.choice);
    let own = tile::worker_part(c, worker);
    let query_tile = choice.tiling(unit.sequence.queries).tile(unit.tiles.0);
    let width = query_tile.vectors * c.kernel.spec.lanes;
    let [_, keys, _] = choice.extent;
    let panel = (keys + 8).next_multiple_of(16) * choice.width();
    let state = c.base.wrapping_add(l.all_tiles.start + unit.number * l.tile.state.len);
    Part {
        rows: query_tile.rows,
        width,
        entries: &c.kernel.entries[query_tile.vectors - 1],
        tile: Tile {
            query: own.wrapping_add(l.tiles.start + l.tile.query.start),
            weights: own.wrapping_add(l.weights.start),
            pad: own.wrapping_add(l.pad.start),
            head_dim: choice.head_dim,
            value_dim: choice.value_dim,
        },
        scores: c.base.wrapping_add(l.scores.start + unit.number * panel),
        sums: tile::sums(state, width),
    }
}

/// Computes all units.
///
/// # Errors
/// A worker that panicked.
pub(super) fn run(shared: &Shared<'_>, pool: &Pool) -> Result<(), RunError> {
    let (c, n) = (shared.context, shared.count());
    // SAFETY, for all three: `Call::new` established the invariants; a unit is one tile with its own part of
    // the matrix and its own state, given to one worker; passes wait for each other.
    let pass = |task: unsafe fn(&Context<'_>, &Unit<'_>, usize)| {
        // SAFETY: see above.
        divide(pool, c.choice.workers, n, &|worker, u| unsafe { task(c, &shared.unit(u), worker) })
    };
    pass(scores)?;
    pass(softmax)?;
    pass(product)
}

/// First pass: `S = Q · K^T`, masks included.
///
/// # Safety
/// - The invariants of [`Context`]; no other worker has this unit or this number.
unsafe fn scores(c: &Context<'_>, unit: &Unit<'_>, worker: usize) {
    let p = part(c, unit, worker);
    let own = tile::worker_part(c, worker);
    let scratch = own.wrapping_add(c.layout.rows.start);
    let kv_head = c.problem.kv_head(unit.head);
    // SAFETY: regions are this worker's and hold a block, the matrix a tile's scores with eight rows to spare
    // (layout); keys lie in the sequence.
    unsafe {
        stage::load_query(
            c,
            unit.sequence,
            unit.head,
            p.rows.clone(),
            p.width,
            scratch,
            p.tile.query.cast_mut(),
        );
        for start in (0..unit.sequence.keys).step_by(c.choice.block) {
            let keys = start..unit.sequence.keys.min(start + c.choice.block);
            let to = p.scores.add(start * p.width);
            let bias = tile::cover(c, unit.sequence, unit.head, &p.rows, &keys, p.width, own);
            let Some(bias) = bias else {
                // Up to a whole vector of keys, as kernels that take keys in lanes leave it.
                for x in 0..keys.len().next_multiple_of(16) * p.width {
                    to.add(x).write(f32::NEG_INFINITY);
                }
                continue;
            };
            let k = stage::keys(c, unit.sequence, kv_head, &keys, own);
            let block = Block {
                keys: k.data,
                key_stride: k.stride,
                values: k.data,
                value_stride: k.stride,
                count: keys.len(),
                bias,
                cap: c.cap,
            };
            (p.entries.scores)(&p.tile, &block, to);
        }
    }
}

/// Second pass: `P = exp(S − max) / Σ exp(S − max)`.
///
/// # Safety
/// - As for [`scores`], which has run.
unsafe fn softmax(c: &Context<'_>, unit: &Unit<'_>, worker: usize) {
    let p = part(c, unit, worker);
    if unit.sequence.keys > 0 {
        // SAFETY: the tile's scores were written by the first pass. The matrix has the form
        // of weighted sums with the keys for dims.
        unsafe {
            (p.entries.softmax)(p.scores, unit.sequence.keys, &p.sums, c.choice.masked);
            (p.entries.finish)(&Sums { w: p.scores, ..p.sums }, unit.sequence.keys);
        }
    }
}

/// Third pass: `Y = P · V`.
///
/// # Safety
/// - As for [`softmax`], which has run.
unsafe fn product(c: &Context<'_>, unit: &Unit<'_>, worker: usize) {
    let p = part(c, unit, worker);
    let own = tile::worker_part(c, worker);
    let kv_head = c.problem.kv_head(unit.head);
    // SAFETY: weights were written by the second pass; regions are this worker's; rows are this unit's. The
    // bias only tells that weights may be zero by a mask, and is readable for the block.
    unsafe {
        for start in (0..unit.sequence.keys).step_by(c.choice.block) {
            let keys = start..unit.sequence.keys.min(start + c.choice.block);
            let weights = p.scores.add(start * p.width);
            let v = stage::values(c, unit.sequence, kv_head, &keys, own);
            let block = Block {
                keys: v.data,
                key_stride: v.stride,
                values: v.data,
                value_stride: v.stride,
                count: keys.len(),
                bias: if c.choice.masked { weights } else { std::ptr::null_mut() },
                cap: 0.0,
            };
            (p.entries.accumulate)(&p.tile, &block, weights, &p.sums, start == 0);
        }
        let state = (unit.sequence.keys > 0).then_some(p.sums);
        let scratch = own.wrapping_add(c.layout.rows.start);
        tile::finish(c, unit.sequence, unit.head, p.rows.clone(), p.width, p.entries, state, true, scratch);
    }
}
