//! Computes the baseline for comparisons: materialises the score matrix, then the softmax, then the product.
//!
//! It makes three passes over all tiles and waits for all workers after each pass. The inner loops are those of the
//! fused traversal, so a comparison measures only the cost of writing the matrix to memory.

use super::bias::{Room, cover};
use super::context::{Context, Shared, TileGroup, TileRows};
use super::finish::{Finished, finish};
use super::mask_cache::MaskCache;
use super::{stage, walk};
use crate::cpu::pool::Crew;
use crate::error::RunError;
use elsa_kernels::attention::{Ahead, Block, Entries, Sums, Tile};

/// A tile, and the rows of the score matrix that belong to it.
struct MatrixTile<'a> {
    rows: TileRows<'a>,
    entries: &'a Entries,
    tile: Tile,
    scores: *mut f32,
    sums: Sums,
    /// The worker's region of the workspace. `scratch` is the part of this region for rows.
    own: *mut f32,
    scratch: *mut f32,
    cache: MaskCache,
}

impl<'a> MatrixTile<'a> {
    /// Creates the tile of a task. Its scratch memory is in the regions of `worker`.
    ///
    /// # Safety
    /// - The invariants of [`Context`] hold. No other worker has this worker number.
    unsafe fn of(c: &Context<'a>, task: &TileGroup<'a>, worker: usize) -> MatrixTile<'a> {
        let (l, choice) = (c.layout, c.choice);
        let own = c.worker_part(worker);
        let tile = choice.tiling(task.sequence.queries).tile(task.tiles.start);
        let width = tile.vectors * c.kernel.spec.lanes;
        let [_, keys, _] = choice.extent;
        let matrix = (keys + 8).next_multiple_of(16) * choice.width();
        let state = c.base.wrapping_add(l.all_tiles.start + task.number * l.tile.state.len);
        MatrixTile {
            rows: TileRows { sequence: task.sequence, head: task.heads.start, rows: tile.rows, width },
            entries: &c.kernel.entries[tile.vectors - 1],
            tile: Tile {
                query: own.wrapping_add(l.tiles.start + l.tile.query.start),
                weights: own.wrapping_add(l.weights.start),
                pad: own.wrapping_add(l.pad.start),
                head_dim: choice.head_dim,
                value_dim: choice.value_dim,
            },
            scores: c.base.wrapping_add(l.scores.start + task.number * matrix),
            sums: walk::sums(state, width),
            own,
            scratch: own.wrapping_add(l.rows.start),
            // SAFETY: `own` is this worker's region (clause).
            cache: unsafe { MaskCache::of(c, task, own) },
        }
    }
}

/// Computes all tasks with `workers` workers.
///
/// # Errors
/// Returns an error if a worker panicked, or if the call was cancelled.
pub(super) fn run(shared: &Shared<'_>, workers: usize, crew: &Crew<'_>) -> Result<(), RunError> {
    let (c, n) = (shared.context, shared.count());
    let pass = |task: unsafe fn(&Context<'_>, &MatrixTile<'_>)| {
        crew.divide(workers, n, &|worker, number| {
            // SAFETY: `Context::new` established the invariants. Each task is one tile, which has its own rows of the
            // matrix and its own state. Each task belongs to one worker. Each pass waits for the previous one.
            unsafe { task(c, &MatrixTile::of(c, &shared.task(number), worker)) }
        })
    };
    pass(scores)?;
    pass(softmax)?;
    pass(product)
}

/// Computes the first pass: `S = Q · K^T`, with masks and biases added.
///
/// # Safety
/// - The invariants of [`Context`] hold. No other worker has this tile.
unsafe fn scores(c: &Context<'_>, p: &MatrixTile<'_>) {
    let sequence = p.rows.sequence;
    let kv_head = c.problem.kv_head(p.rows.head);
    let width = p.rows.width;
    // SAFETY: the regions belong to this worker and have room for a block, and the matrix has room for a tile's scores
    // and eight more rows (layout). The keys are in the sequence.
    unsafe {
        stage::load_query(c, &p.rows, p.scratch, p.tile.query.cast_mut());
        for start in (0..sequence.keys).step_by(c.choice.block) {
            let keys = start..sequence.keys.min(start + c.choice.block);
            let to = p.scores.add(start * width);
            let Some(bias) = cover(c, &p.rows, &keys, Room::of(c, p.own), (&p.cache, 0)) else {
                // Kernels that hold keys in lanes also read the scores up to the next multiple of 16 keys.
                for x in 0..keys.len().next_multiple_of(16) * width {
                    to.add(x).write(f32::NEG_INFINITY);
                }
                continue;
            };
            let k = stage::keys(c, sequence, kv_head, &keys, p.own);
            let block = Block {
                keys: k.data,
                key_stride: k.stride,
                values: k.data,
                value_stride: k.stride,
                count: keys.len(),
                bias: bias.data,
                shares_bias: bias.is_row,
                masks: bias.masks,
                ahead: Ahead::NOTHING,
                largest: 0.0,
                cap: c.cap,
            };
            (p.entries.scores)(&p.tile, &block, to, std::ptr::null_mut());
        }
    }
}

/// Computes the second pass: `P = exp(S − max) / Σ exp(S − max)`.
///
/// # Safety
/// - The clauses of [`scores`] hold, and `scores` has run.
unsafe fn softmax(_: &Context<'_>, p: &MatrixTile<'_>) {
    let keys = p.rows.sequence.keys;
    if keys > 0 {
        // SAFETY: the first pass wrote the tile's scores. The matrix has the layout of weighted sums, except that it
        // has a line per key instead of a line per dim.
        unsafe {
            (p.entries.softmax)(p.scores, keys, &p.sums);
            (p.entries.finish)(&Sums { w: p.scores, ..p.sums }, keys);
        }
    }
}

/// Computes the third pass: `Y = P · V`.
///
/// # Safety
/// - The clauses of [`softmax`] hold, and `softmax` has run.
unsafe fn product(c: &Context<'_>, p: &MatrixTile<'_>) {
    let sequence = p.rows.sequence;
    let kv_head = c.problem.kv_head(p.rows.head);
    // SAFETY: the second pass wrote the weights. The regions belong to this worker and the rows to this task.
    unsafe {
        p.sums.w.write_bytes(0, p.tile.value_dim * p.rows.width);
        for start in (0..sequence.keys).step_by(c.choice.block) {
            let keys = start..sequence.keys.min(start + c.choice.block);
            let weights = p.scores.add(start * p.rows.width);
            let Some(bias) = cover(c, &p.rows, &keys, Room::of(c, p.own), (&p.cache, 0)) else { continue };
            let v = stage::values(c, sequence, kv_head, &keys, p.own);
            let mut block = Block {
                keys: v.data,
                key_stride: v.stride,
                values: v.data,
                value_stride: v.stride,
                count: keys.len(),
                bias: bias.data,
                shares_bias: bias.is_row,
                masks: bias.masks,
                ahead: Ahead::NOTHING,
                largest: 0.0,
                cap: 0.0,
            };
            if bias.masks {
                (c.kernel.largest)(&block.clone(), c.choice.value_dim, &mut block.largest);
            }
            (p.entries.accumulate)(&p.tile, &block, weights, &p.sums, [false, false]);
        }
        let state = if sequence.keys > 0 { Finished::Normalised(p.sums) } else { Finished::Empty };
        finish(c, &p.rows, p.entries, (state, None), p.scratch);
    }
}
