//! Computes, for each row of a tile, a lower bound of the score of the row's *own* key, which is its key on the
//! diagonal.
//!
//! ```text
//! naive:  for each row i:  own[i] = own_score(q_i, k_j, cap, added(i, j))      j = offset + i
//! ```
//!
//! [`own_score`] computes the bound. It uses the queries that the tile has loaded. The own key of each row, and the
//! number added to its score, are read from their tensors in the element type of the tensor.

use super::context::{Context, TileRows};
use super::stage::for_past_and_new;
use super::traverse::inputs;
use crate::cpu::slices::elements_at;
use elsa_core::attention::traversal::own_score;
use elsa_core::attention::{Addends, Operand};

/// Writes a lower bound of the score of each row's own key to `to`; `−∞` if unknown.
///
/// # Safety
/// - The invariants of [`Context`] hold. The call has all keys. Present tensors have been written, and the tile's
///   queries have been loaded to `query`.
/// - One value for each column of the tile is writable at `to`.
pub(super) unsafe fn write_scores(c: &Context<'_>, tile: &TileRows<'_>, query: *const f32, to: *mut f32) {
    let (sequence, width, dim) = (tile.sequence, tile.width, c.problem.head_dim());
    let kv_head = c.problem.kv_head(tile.head);
    let (past, new) = (c.tensor(Operand::PastKey), c.source(Operand::Key));
    // SAFETY: the callee's clauses are those of this function.
    let added = unsafe { inputs(c) }.map(|(inputs, _)| Addends::new(c.problem, &inputs));
    for i in 0..width {
        let row = tile.rows.start + i;
        let (first, end) = sequence.range(row);
        let own = usize::try_from(sequence.offset().saturating_add_unsigned(row)).ok();
        let own = own.filter(|j| row < tile.rows.end && (first..end).contains(j)).zip(added.as_ref());
        let score = own.map_or(f32::NEG_INFINITY, |(j, added)| {
            let mut key = std::ptr::null();
            let keys = j..j + 1;
            for_past_and_new((past, sequence.past), (new, sequence.key0), &keys, |tensor, token, _, _| {
                key = tensor.row(sequence.batch, kv_head, token).cast_const();
            });
            // SAFETY: the row of the key has `dim` elements (*inputs*), is aligned to them, and is not written.
            let key = unsafe { elements_at(key, c.dtype, dim) };
            // SAFETY: the row's column in the tile has `dim` elements (clause).
            let product =
                |x: usize| unsafe { f64::from(query.add(x * width + i).read()) * f64::from(key.get(x)) };
            own_score((0..dim).map(product), c.cap, added.at(sequence.batch, tile.head, row, j))
        });
        // SAFETY: `to` has a value for each column of the tile (clause).
        unsafe { to.add(i).write(score) };
    }
}
