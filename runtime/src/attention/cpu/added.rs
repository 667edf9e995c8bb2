//! What mask, bias and windows add to the scores, as the bias of a tile and a block.

use super::context::{Context, Task, TileRows};
use elsa_core::attention::{BiasView, MaskElements, MaskView, Operand, Sides};
use elsa_core::dtype::{DType, Elements};
use elsa_kernels::attention::{MaskTile, Seen};
use std::f32::consts::LOG2_E;
use std::ops::Range;

/// The mask or the bias of a call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum MaskOf {
    Mask,
    Bias,
}

/// The view of the mask, or of a bias that is not a table, and where its elements are.
fn dense(c: &Context<'_>, of: MaskOf) -> Option<(MaskView, *const u8)> {
    let spec = c.problem.spec();
    let (view, operand) = match (of, spec.bias) {
        (MaskOf::Mask, _) => (spec.mask?, Operand::Mask),
        (MaskOf::Bias, Some(BiasView::Dense(view))) => (view, Operand::Bias),
        (MaskOf::Bias, _) => return None,
    };
    Some((view, c.tensor(operand).data))
}

/// A number that tells the rows of a head apart from those of other elements: two heads of two sequences have the same one
/// if they have the same rows.
pub(super) fn rows(c: &Context<'_>, of: MaskOf, batch: usize, head: usize) -> usize {
    dense(c, of).map_or(head, |(view, _)| view.row(batch, head, 0).start)
}

/// The keys that mask and bias cover.
pub(super) fn reach(c: &Context<'_>, keys: usize) -> usize {
    let spec = c.problem.spec();
    let mask = spec.mask.map_or(keys, |mask| mask.reach(keys));
    spec.bias.map_or(mask, |bias| bias.reach(keys).min(mask))
}

/// Writes what mask or bias adds to a tile and the keys of a block to `at`, and says what was seen.
///
/// # Safety
/// - The invariants of [`Context`]. A block of the widest tile is writable at `at`.
/// - `entries` are those of [`write_entries`] for the tile's head, where the bias is a table.
pub(super) unsafe fn write(
    c: &Context<'_>,
    of: MaskOf,
    tile: &TileRows<'_>,
    keys: &Range<usize>,
    entries: *const f32,
    at: *mut f32,
) -> Seen {
    let mut seen = Seen::Plain;
    let count = reach(c, tile.sequence.keys).min(keys.end).saturating_sub(keys.start);
    if count == 0 {
        return Seen::Nothing;
    }
    let Some((view, data)) = dense(c, of) else {
        // SAFETY: the same clauses.
        return unsafe { look_up(c, tile, keys.start..keys.start + count, entries, at) };
    };
    let row = view.row(tile.sequence.batch, tile.head, tile.rows.start);
    let mask = MaskTile {
        data: data.wrapping_add(row.index(keys.start) * view.kind().size()),
        kind: view.kind(),
        stride: if view.same_for_all_queries() { 0 } else { view.strides()[2] },
        same_for_all_keys: row.step == 0,
        before: keys.start * row.step,
        rows: tile.rows.len(),
        keys: count,
    };
    // SAFETY: rows and keys lie in the mask (*inputs*), and there is room for their bias (clause); *kernel*.
    unsafe { (c.kernel.bias)(&mask, tile.width, at, &mut seen) };
    seen
}

/// Writes what the mask's row of a task adds to the keys of a block to `at`, and says what was seen.
///
/// # Safety
/// - The invariants of [`Context`]. As many values as keys are writable at `at`.
pub(super) unsafe fn row(c: &Context<'_>, task: &Task<'_>, keys: &Range<usize>, at: *mut f32) -> Seen {
    let tile = TileRows { sequence: task.sequence, head: task.head, rows: 0..1, width: 1 };
    // SAFETY: the same clauses, for a tile of one row; a mask has no entries.
    unsafe { write(c, MaskOf::Mask, &tile, keys, std::ptr::null(), at) }
}

/// Writes the entries of a table that a head has to `to`, in base-2 units, finite ones limited.
///
/// # Safety
/// - The invariants of [`Context`]. The bias is a table, and as many values as it has entries are writable at `to`.
pub(super) unsafe fn write_entries(c: &Context<'_>, head: usize, to: *mut f32) {
    let Some(BiasView::Table(table)) = c.problem.spec().bias else { return };
    let (data, len) = (c.tensor(Operand::Bias).data, table.entries * table.heads);
    // SAFETY: the table is readable for its elements (*inputs*); entries lie in the region (clause).
    unsafe {
        let elements = MaskElements::Additive(match table.dtype {
            DType::F32 => Elements::F32(std::slice::from_raw_parts(data.cast(), len)),
            DType::F16 => Elements::F16(std::slice::from_raw_parts(data.cast(), len)),
            DType::Bf16 => Elements::Bf16(std::slice::from_raw_parts(data.cast(), len)),
        });
        for entry in 0..table.entries {
            to.add(entry).write(elements.bias(entry * table.heads + head) * LOG2_E);
        }
    }
}

/// Looks up the bias of a tile and the keys of a block. Columns past the last row repeat it.
///
/// # Safety
/// - As for [`write`]; the bias is a table.
unsafe fn look_up(
    c: &Context<'_>,
    tile: &TileRows<'_>,
    keys: Range<usize>,
    entries: *const f32,
    at: *mut f32,
) -> Seen {
    let (width, last) = (tile.width, tile.rows.len() - 1);
    let most = c.choice.entries - 1;
    let (mut any, mut plain) = (false, true);
    let mut put = |column: usize, key: usize, entry: usize| {
        // SAFETY: an entry of the table; a value of the block (clauses).
        unsafe {
            let x = entries.add(entry.min(most)).read();
            any |= x != f32::NEG_INFINITY;
            plain &= x == 0.0;
            at.add((key - keys.start) * width + column).write(x);
        }
    };
    let index = c.tensor(Operand::BiasIndex).data.cast::<i64>();
    if index.is_null() {
        let Some(windows) = &c.problem.spec().windows else { return Seen::Nothing };
        let [rows, columns] = windows.size;
        let step = 2 * columns - 1;
        // The places of keys count down as those of queries count up.
        for column in 0..width {
            let place = windows.place(tile.rows.start + column.min(last)) + windows.place(rows * columns - 1);
            let (mut row, mut along) = (keys.start / columns, keys.start % columns);
            for key in keys.clone() {
                put(column, key, place - (row * step + along));
                along += 1;
                if along == columns {
                    (row, along) = (row + 1, 0);
                }
            }
        }
    } else {
        let all = c.problem.keys();
        for column in 0..width {
            let row = (tile.rows.start + column.min(last)) * all;
            for key in keys.clone() {
                // SAFETY: the index has an entry for each query and key (*inputs*).
                let entry = unsafe { index.add(row + key).read_unaligned() };
                put(column, key, entry.max(0) as usize);
            }
        }
    }
    match (any, plain) {
        (false, _) => Seen::Nothing,
        (true, true) => Seen::Plain,
        (true, false) => Seen::Biased,
    }
}

/// Writes the sides of the tokens of a window, and after them that of the last one, up to `len` numbers.
///
/// # Safety
/// - `len` values are writable at `to`.
pub(super) unsafe fn write_sides(sides: &Sides, tokens: usize, len: usize, to: *mut f32) {
    for token in 0..len {
        let side = sides.of(token.min(tokens.saturating_sub(1)));
        // SAFETY: value `token` of `len` (clause).
        unsafe { to.add(token).write(f32::from(side)) };
    }
}
