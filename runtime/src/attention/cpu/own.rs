//! What the own key of each row of a tile scores at least: the key on the row's diagonal.
//!
//! ```text
//! naive:  for each row i:  own[i] = own_score(q_i, k_j, cap, bias[j][i])      j = offset + i
//! ```
//!
//! [`own_score`] is the rule. The tile's queries are read as they were loaded, and keys where they are, in whatever type. What is
//! added is the bias of the block that holds the key, as the walk covers it: a tile has one or two such blocks.

use super::bias::{Room, cover};
use super::context::{Context, TileRows};
use super::kept::Kept;
use super::stage::for_past_and_new;
use elsa_core::attention::Operand;
use elsa_core::attention::traversal::{own_blocks, own_score};
use elsa_core::dtype::DType;
use half::{bf16, f16};

/// Element `x` of a row at `data`.
///
/// # Safety
/// - The row has the element, and is aligned to one.
unsafe fn element(data: *const u8, dtype: DType, x: usize) -> f32 {
    // SAFETY: the clause.
    unsafe {
        match dtype {
            DType::F32 => data.cast::<f32>().add(x).read(),
            DType::F16 => data.cast::<f16>().add(x).read().to_f32(),
            DType::Bf16 => data.cast::<bf16>().add(x).read().to_f32(),
        }
    }
}

/// Writes the least scores of the own keys of a tile's rows to `to`, `−∞` where they are not known.
///
/// # Safety
/// - The invariants of [`Context`], of a call that has all keys. The tile's queries have been loaded to `query`, and `room` is the
///   worker's. `kept` is what the worker keeps for the task of the tile, which is at `place` in its group.
/// - As many values as the tile is wide are writable at `to`.
pub(super) unsafe fn write_scores(
    c: &Context<'_>,
    tile: &TileRows<'_>,
    query: *const f32,
    room: Room,
    (kept, place): (&Kept, usize),
    to: *mut f32,
) {
    let (sequence, width, dim) = (tile.sequence, tile.width, c.problem.head_dim());
    // SAFETY: as many values (clause).
    (0..width).for_each(|i| unsafe { to.add(i).write(f32::NEG_INFINITY) });
    let kv_head = c.problem.kv_head(tile.head);
    let (past, new) = (c.tensor(Operand::PastKey), c.source(Operand::Key));
    for block in own_blocks(sequence, &tile.rows, c.choice.block) {
        let start = block * c.choice.block;
        let keys = start..(start + c.choice.block).min(sequence.reach());
        if keys.is_empty() {
            continue;
        }
        // SAFETY: the block has keys of the sequence, and the worker's regions hold one (layout; clauses).
        let Some(bias) = (unsafe { cover(c, tile, &keys, room, (kept, place)) }) else { continue };
        for i in 0..tile.rows.len() {
            let row = tile.rows.start + i;
            let Ok(j) = usize::try_from(sequence.offset().saturating_add_unsigned(row)) else { continue };
            let (first, end) = sequence.range(row);
            if !(first.max(keys.start)..end.min(keys.end)).contains(&j) {
                continue;
            }
            let at = if bias.is_row { j - keys.start } else { (j - keys.start) * width + i };
            // SAFETY: the element of the key and the row, where there is a bias.
            let added = if bias.data.is_null() { 0.0 } else { unsafe { bias.data.add(at).read() } };
            let mut key = std::ptr::null();
            for_past_and_new(
                (past, sequence.past),
                (new, sequence.key0),
                &(j..j + 1),
                |tensor, token, _, _| {
                    key = tensor.row(sequence.batch, kv_head, token, c.dtype).cast_const();
                },
            );
            // SAFETY: the row of the key (*inputs*) and the column of the tile's row have as many elements (clause).
            let product = |x: usize| unsafe {
                f64::from(query.add(x * width + i).read()) * f64::from(element(key, c.dtype, x))
            };
            // SAFETY: value `i` of as many as rows (clause).
            unsafe { to.add(i).write(own_score((0..dim).map(product), c.cap, added)) };
        }
    }
}
