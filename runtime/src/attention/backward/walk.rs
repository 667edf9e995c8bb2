//! Traverses the keys in chunks for the backward pass. For each chunk, traverses the query tiles that attend the chunk.
//!
//! ```text
//! naive:  for each key block, for each query tile:  load both, compute, add to dq in memory
//! ```
//!
//! **Why the code differs.**
//!
//! 1. *Chunks of keys.* Eight blocks of keys and values, with their gradients, stay in the L2 cache while the query
//!    tiles of all heads that share the keys are processed. A tile is transposed once per chunk, not once per block.
//! 2. *The gradient of a tile's queries stays in the L1 cache* while the blocks of a chunk are processed. Between
//!    chunks it is stored in the gradient tensor, or in the copy of that tensor that belongs to the part.
//! 3. *Parts.* The keys of a head are divided into parts. [`part`] computes one of them; [`join`] adds the query
//!    gradients of all parts in order, and scales the sum.
//! 4. *Nothing is allocated.* All data is in the worker's region of the workspace, at the offsets of
//!    [`BackwardLayout`](elsa_core::attention::backward::BackwardLayout).

use super::context::Context;
use super::cover::cover;
use super::stage::{self, TileRows};
use crate::cpu::pool::Crew;
use elsa_core::attention::Sequence;
use elsa_core::attention::schedule::BLOCKS_PER_SEGMENT;
use elsa_kernels::attention::backward::{BackwardBlock, BackwardTile};
use std::ops::Range;

/// A task: one part of the keys of one key head in one sequence.
pub(super) struct KeyPart<'a> {
    pub sequence: &'a Sequence,
    pub kv_head: usize,
    pub part: usize,
}

/// Computes a task: the gradients of its keys and values, and the contribution of these keys to the query gradients.
/// Stops before the next tile if the call is cancelled.
///
/// # Safety
/// - The invariants of [`Context`] hold.
/// - No other worker has this task or this worker number.
pub(super) unsafe fn part(c: &Context<'_>, task: &KeyPart<'_>, worker: usize, crew: &Crew<'_>) {
    let (k, choice, sequence) = (&c.choice.kernel, c.choice, task.sequence);
    let (own, at) = (c.worker_part(worker), &c.layout.worker);
    let place = |start: usize| own.wrapping_add(start);
    let [d_keys, d_values] = [place(at.d_keys.start), place(at.d_values.start)];
    let (forward, views) = (c.problem.forward(), c.problem.spec());
    let group = forward.group();
    for (n, number) in choice.chunks(sequence.keys, task.part).enumerate() {
        let start = number * k.chunk();
        let keys = start..sequence.keys.min(start + k.chunk());
        // SAFETY: the keys are in the sequence, and the regions have room for a chunk (layout). The tile's rows are in
        // the sequence. This task alone writes the gradients of its keys, and the query gradients of its part.
        unsafe {
            let finite = stage::chunk(c, sequence, task.kv_head, &keys, own);
            d_keys.write_bytes(0, (keys.len() + k.tile_keys) * choice.head_row);
            d_values.write_bytes(0, (keys.len() + k.tile_keys) * choice.value_row);
            for head in task.kv_head * group..(task.kv_head + 1) * group {
                for first in (0..sequence.queries).step_by(k.rows) {
                    if crew.is_cancelled() {
                        return;
                    }
                    let rows = first..sequence.queries.min(first + k.rows);
                    let tile = TileRows { sequence, head, rows };
                    pass(c, &tile, &keys, &finite, (task.part, n == 0), own);
                }
            }
            let token = sequence.key0 + keys.start;
            for (view, from, width, factor, to) in [
                (&views.key, d_keys, choice.head_row, forward.scale(), c.d_key),
                (&views.value, d_values, choice.value_row, 1.0, c.d_value),
            ] {
                let to = to.wrapping_add(view.row(sequence.batch, task.kv_head, token));
                stage::store(from, width, keys.len(), view.dim(), factor, to, view.steps()[2]);
            }
        }
    }
}

/// Adds the contribution of a chunk of keys to the gradients of a tile. The first chunk of a part overwrites the
/// gradient of the tile's queries; later chunks add to it.
///
/// # Safety
/// - The invariants of [`Context`] hold. `own` is the worker's region with the chunk `keys`, and no other worker writes
///   this part of the query gradients.
unsafe fn pass(
    c: &Context<'_>,
    tile: &TileRows<'_>,
    keys: &Range<usize>,
    finite: &[[bool; 2]; BLOCKS_PER_SEGMENT],
    (part, is_first): (usize, bool),
    own: *mut f32,
) {
    let (k, choice, at) = (&c.choice.kernel, c.choice, &c.layout.worker);
    let place = |start: usize| own.wrapping_add(start);
    let (to, stride) = c.query_gradient(part, tile.sequence.batch, tile.head, tile.token());
    let (dim, count) = (c.problem.forward().head_dim(), tile.rows.len());
    let (any, _) = tile.sequence.ranges(tile.rows.clone());
    // SAFETY: the tile's rows of the gradient belong to this worker (clause). The pointers of the tile and of the
    // blocks are valid as their contracts require, in regions with enough room (layout); *kernel*.
    unsafe {
        if any.start.max(keys.start) >= any.end.min(keys.end) {
            if is_first {
                (0..count).for_each(|i| to.add(i * stride).write_bytes(0, dim));
            }
            return;
        }
        let [finite_query, finite_upstream] = stage::tile(c, tile, own);
        let d_query = place(at.d_query.start);
        if is_first {
            d_query.write_bytes(0, choice.head_dim * k.rows);
        } else {
            for first in (0..k.rows).step_by(k.panel) {
                let here = count.saturating_sub(first).min(k.panel);
                let (src, dst) = (to.wrapping_add(first * stride), d_query.add(first * choice.head_dim));
                let transpose = c.kernel.primitives.transpose_in;
                transpose(src, stride, here, dim, choice.head_dim, k.panel, 1.0, dst);
            }
        }
        let (_, cap) = c.problem.forward().score_factors();
        let work = BackwardTile {
            query_columns: place(at.query_columns.start),
            upstream_columns: place(at.upstream_columns.start),
            query_rows: place(at.query_rows.start),
            upstream_rows: place(at.upstream_rows.start),
            statistics: place(at.statistics.start),
            d_query,
            scores: place(at.scores.start),
            probabilities: place(at.probabilities.start),
            d_scores: place(at.d_scores.start),
            d_scores_by_panel: place(at.d_scores_by_panel.start),
            head_dim: choice.head_dim,
            value_dim: choice.value_dim,
            head_row: choice.head_row,
            value_row: choice.value_row,
            finite_query,
            finite_upstream,
        };
        for (start, finite) in keys.clone().step_by(k.block).zip(finite) {
            let block = start..keys.end.min(start + k.block);
            let Some(bias) = cover(c, tile, &block, finite[1], place(at.bias.start)) else { continue };
            let row = start - keys.start;
            let block = BackwardBlock {
                keys: place(at.keys.start + row * choice.head_dim),
                values: place(at.values.start + row * choice.value_dim),
                d_keys: place(at.d_keys.start + row * choice.head_row),
                d_values: place(at.d_values.start + row * choice.value_row),
                count: block.len(),
                bias,
                cap,
                finite_keys: finite[0],
            };
            (c.kernel.step)(&work, &block);
        }
        for first in (0..count).step_by(k.panel) {
            let here = (count - first).min(k.panel);
            let src = d_query.add(first * choice.head_dim);
            (c.kernel.primitives.transpose_out)(src, k.panel, here, dim, to.add(first * stride), stride);
        }
    }
}

/// Adds the query gradients of a head from all parts, in order, and scales the sum.
///
/// # Safety
/// - The invariants of [`Context`] hold. All tasks are done, and no other worker has this sequence and head.
pub(super) unsafe fn join(c: &Context<'_>, sequence: &Sequence, head: usize) {
    let forward = c.problem.forward();
    let (parts, dim, scale) = (c.choice.parts_of(sequence.keys), forward.head_dim(), forward.scale());
    for i in 0..sequence.queries {
        let row = |part| c.query_gradient(part, sequence.batch, head, sequence.query0 + i).0;
        // SAFETY: row `i` of the gradient belongs to this worker (clause), and so does row `i` of every later part. If
        // there are keys, all these rows have been written.
        unsafe {
            let sum = std::slice::from_raw_parts_mut(row(0), dim);
            if parts == 0 {
                sum.fill(0.0);
            }
            for part in 1..parts {
                let more = std::slice::from_raw_parts(row(part).cast_const(), dim);
                sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
            }
            sum.iter_mut().for_each(|x| *x *= scale);
        }
    }
}
