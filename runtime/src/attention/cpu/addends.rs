//! Writes the values that mask, bias and windows add to the scores of a query tile and a key block.

use super::context::{Context, TileGroup, TileRows};
use crate::cpu::slices::elements_at;
use elsa_core::attention::{BiasView, MaskElements, MaskView, Operand, Sides, Windows};
use elsa_core::dtype::DType;
use elsa_kernels::attention::{Ahead, MaskTile, MeasuredRows, Seen};
use std::f32::consts::LOG2_E;
use std::f64::consts::LN_2;
use std::ops::Range;

/// The mask or the bias of a call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum MaskOf {
    Mask,
    Bias,
}

/// Returns the view and the address of the elements of the mask or bias `of`; `None` if the call does not have this
/// operand, or if the operand is a table.
fn dense(c: &Context<'_>, of: MaskOf) -> Option<(MaskView, *const u8)> {
    let (view, operand) = match (of, c.bias) {
        (MaskOf::Mask, _) => (c.mask?, Operand::Mask),
        (MaskOf::Bias, Some(BiasView::Dense(view))) => (view, Operand::Bias),
        (MaskOf::Bias, _) => return None,
    };
    Some((view, c.tensor(operand).data))
}

/// Returns a number that identifies the mask or bias rows of a head. Two heads have equal numbers if they share these
/// rows, even if they belong to different sequences.
pub(super) fn rows(c: &Context<'_>, of: MaskOf, batch: usize, head: usize) -> usize {
    dense(c, of).map_or(head, |(view, _)| view.row(batch, head, 0).start)
}

/// Returns the number of leading keys that both mask and bias cover; at most `keys`.
pub(super) fn reach(c: &Context<'_>, keys: usize) -> usize {
    let spec = c.problem.spec();
    let mask = spec.mask.map_or(keys, |mask| mask.reach(keys));
    spec.bias.map_or(mask, |bias| bias.reach(keys).min(mask))
}

/// Writes to `at` the values that mask or bias adds to the scores of a tile and the keys of a block, and returns how
/// these values affect the block.
///
/// # Safety
/// - The invariants of [`Context`] hold. A block of the widest tile is writable at `at`.
/// - If the bias is a table, `entries` is the worker's region that [`write_entries`] has filled for the tile's head.
pub(super) unsafe fn write(
    c: &Context<'_>,
    of: MaskOf,
    tile: &TileRows<'_>,
    keys: &Range<usize>,
    entries: *mut f32,
    at: *mut f32,
) -> Seen {
    let mut seen = Seen::Plain;
    let count = reach(c, tile.sequence.keys).min(keys.end).saturating_sub(keys.start);
    if count == 0 {
        return Seen::Nothing;
    }
    let Some((view, data)) = dense(c, of) else {
        let keys = keys.start..keys.start + count;
        // SAFETY: the callee's clauses are those of this function.
        return unsafe {
            match &c.problem.spec().windows {
                Some(windows) if c.choice.lines > 0 => slide(c, windows, tile, keys, entries, at),
                _ => look_up(c, tile, keys, entries, at),
            }
        };
    };
    let keys = keys.start..keys.start + count;
    let mask = MaskTile::of(&view, data, (tile.sequence.batch, tile.head), &tile.rows, &keys);
    // SAFETY: rows and keys are in the mask (*inputs*), and `at` has room for their bias (clause); *kernel*.
    unsafe { (c.kernel.bias)(&mask, tile.width, at, &mut seen) };
    seen
}

/// Returns an upper bound of the magnitude that mask and bias together add to any score of a tile, in natural-log
/// units. The bound is not finite if an added value is NaN or `+∞`; values of `−∞` are ignored.
///
/// # Safety
/// - The invariants of [`Context`] hold. `entries` meets the conditions of [`write`].
pub(super) unsafe fn largest(c: &Context<'_>, tile: &TileRows<'_>, entries: *const f32) -> f64 {
    let mut sum = 0.0;
    for (of, operand) in [(MaskOf::Mask, Operand::Mask), (MaskOf::Bias, Operand::Bias)] {
        let Some(dtype) = c.problem.added_type(operand) else { continue };
        let (any, _) = tile.sequence.ranges(tile.rows.clone());
        let keys = any.start..any.end.min(reach(c, tile.sequence.keys));
        if keys.is_empty() {
            continue;
        }
        let (rows, unit) = match dense(c, of) {
            Some((view, data)) => {
                let row = view.row(tile.sequence.batch, tile.head, tile.rows.start);
                let alike = view.same_for_all_queries();
                let rows = MeasuredRows {
                    data: data.wrapping_add(row.index(keys.start) * view.kind().size()),
                    dtype,
                    stride: view.strides()[2],
                    rows: if alike { 1 } else { tile.rows.len() },
                    dim: if row.step == 0 { 1 } else { keys.len() },
                };
                (rows, 1.0)
            }
            None => {
                let rows = MeasuredRows {
                    data: entries.cast(),
                    dtype: DType::F32,
                    stride: 0,
                    rows: 1,
                    dim: c.choice.entries,
                };
                // The entries are in base-2 units, and rounded.
                (rows, LN_2 * (1.0 + 1e-6))
            }
        };
        let mut most = 0.0f32;
        // SAFETY: the measured elements are in the mask (*inputs*), or are the table entries in their region (clause);
        // *kernel*.
        unsafe { (c.kernel.measure.addends)(&rows, &raw mut most) };
        sum += f64::from(most) * unit;
    }
    sum
}

/// Returns the mask elements to prefetch for a tile and a block of keys. Returns no elements if the mask is read more
/// than once. If `keys` is empty, returns the elements of the first mask rows of the next head.
pub(super) fn ahead(c: &Context<'_>, tile: &TileRows<'_>, keys: &Range<usize>) -> Ahead {
    let (choice, of) = (c.choice, MaskOf::Mask);
    let Some((view, data)) = dense(c, of).filter(|_| !choice.row_mask && !choice.keeps.mask) else {
        return Ahead::NOTHING;
    };
    let (batch, rows) = (tile.sequence.batch, tile.rows.start);
    let row = view.row(batch, tile.head, rows);
    let size = view.kind().size();
    let stride = view.strides()[2] * size;
    // The rows of the next head begin after the last row of this one.
    let (first, count) = match keys.is_empty() {
        true => {
            (view.row(batch, tile.head, 0).start + tile.sequence.queries * view.strides()[2], choice.block)
        }
        false => (row.index(keys.start), keys.len()),
    };
    let count = count.min(view.reach(c.problem.keys()));
    if row.step == 0 || count == 0 {
        return Ahead::NOTHING;
    }
    Ahead { data: data.wrapping_add(first * size), stride, rows: tile.rows.len(), bytes: count * size }
}

/// Writes to `at` the values that a mask with one row per task adds to the scores of a block's keys, and returns how
/// these values affect the block.
///
/// # Safety
/// - The invariants of [`Context`] hold. `keys.len()` values are writable at `at`.
pub(super) unsafe fn row(c: &Context<'_>, task: &TileGroup<'_>, keys: &Range<usize>, at: *mut f32) -> Seen {
    let tile = TileRows { sequence: task.sequence, head: task.heads.start, rows: 0..1, width: 1 };
    // SAFETY: the callee's clauses are those of this function, for a tile of one row; a mask needs no table entries.
    unsafe { write(c, MaskOf::Mask, &tile, keys, std::ptr::null_mut(), at) }
}

/// Writes a head's entries of the bias table to `to`, in base-2 units. Finite entries are clamped.
///
/// # Safety
/// - The invariants of [`Context`] hold. The bias is a table, and one value for each of its entries is writable at
///   `to`.
pub(super) unsafe fn write_entries(c: &Context<'_>, head: usize, to: *mut f32) {
    let Some(BiasView::Table(table)) = c.problem.spec().bias else { return };
    let (data, len) = (c.tensor(Operand::Bias).data, table.entries * table.heads);
    // SAFETY: the elements of the table are readable (*inputs*), and the region has room for its entries (clause).
    unsafe {
        let elements = MaskElements::Additive(elements_at(data, table.dtype, len));
        for entry in 0..table.entries {
            to.add(entry).write(elements.bias(entry * table.heads + head) * LOG2_E);
        }
    }
}

/// Writes the bias of a tile and the keys of a block: finds each value in the bias table through the index. Columns of
/// the tile that have no row repeat the last row.
///
/// # Safety
/// - The conditions of [`write`] hold. The bias is a table with an index.
unsafe fn look_up(
    c: &Context<'_>,
    tile: &TileRows<'_>,
    keys: Range<usize>,
    entries: *const f32,
    at: *mut f32,
) -> Seen {
    let (width, last, most) = (tile.width, tile.rows.len() - 1, c.choice.entries - 1);
    let index = c.tensor(Operand::BiasIndex).data.cast::<i64>();
    let (mut any, mut plain) = (false, true);
    for column in 0..width {
        let row = (tile.rows.start + column.min(last)) * c.index_stride;
        for key in keys.clone() {
            // SAFETY: the index has an entry for each query and key (*inputs*), `entries` has every entry of the table,
            // and the value is in the block at `at` (clauses).
            unsafe {
                let entry = index.wrapping_add(row + key).read_unaligned().max(0) as usize;
                let x = entries.add(entry.min(most)).read();
                any |= x != f32::NEG_INFINITY;
                plain &= x == 0.0;
                at.add((key - keys.start) * width + column).write(x);
            }
        }
    }
    match (any, plain) {
        (false, _) => Seen::Nothing,
        (true, true) => Seen::Plain,
        (true, false) => Seen::Biased,
    }
}

/// Copies `n` values, four at a time.
///
/// # Safety
/// - `n` rounded up to a multiple of four values are readable at `from` and writable at `to`.
#[inline(always)]
unsafe fn copy_quads(from: *const f32, n: usize, to: *mut f32) {
    for i in (0..n).step_by(4) {
        // SAFETY: `from` and `to` have these four values (clause).
        unsafe { to.add(i).cast::<[f32; 4]>().write(from.add(i).cast::<[f32; 4]>().read()) };
    }
}

/// Writes the bias of a tile and the keys of a block, for a table whose entries are determined by the positions of
/// query and key in a window. Columns of the tile that have no row contain unrelated entries.
///
/// For the keys in one column `c'` of the window, the entries for row distance `r − r'` and query column `c` are laid
/// out as `[row distance][c]`. The values that a key adds to consecutive queries are then contiguous.
///
/// # Safety
/// - The conditions of [`write`] hold. The bias is a table without an index.
unsafe fn slide(
    c: &Context<'_>,
    windows: &Windows,
    tile: &TileRows<'_>,
    keys: Range<usize>,
    entries: *mut f32,
    at: *mut f32,
) -> Seen {
    let [h, w] = windows.size;
    let (rows, width) = (&tile.rows, tile.width);
    let last = keys.end - 1;
    // `distances` contains the sum of `h − 1` and each row distance that occurs between the rows of the tile and the keys.
    let distances = rows.start / w + h - 1 - last / w..(rows.end - 1) / w + h - keys.start / w;
    let lines = entries.wrapping_add(c.choice.entries);
    for column in 0..w {
        // `from..to` are the window rows whose key in this column is one of `keys`.
        let from = keys.start / w + usize::from(keys.start % w > column);
        let to = last / w + usize::from(last % w >= column);
        if from >= to {
            continue;
        }
        // SAFETY: the entries of the table are followed by a line of `w` values for each distance, and by room for the
        // width of a tile (layout). Each line overwrites the excess values that the copy of the previous line wrote.
        // For each key, the tile's values begin in a line of one of the `distances`, and the bias of the block has room
        // for them (clauses).
        unsafe {
            for distance in distances.clone() {
                let entry = entries.add(distance * (2 * w - 1) + w - 1 - column);
                copy_quads(entry, w, lines.add(distance * w));
            }
            for row in from..to {
                let line = lines.add((h - 1 - row) * w + rows.start);
                let to = at.add((row * w + column - keys.start) * width);
                if width.is_multiple_of(4) {
                    copy_quads(line, width, to);
                } else {
                    to.copy_from_nonoverlapping(line, width);
                }
            }
        }
    }
    Seen::Biased
}

/// Writes `len` numbers to `to`: for each token of a shifted window, the number of the part of the window (its side) to
/// which the token belongs, then copies of the last token's number.
///
/// # Safety
/// - `len` values are writable at `to`.
pub(super) unsafe fn write_sides(sides: &Sides, tokens: usize, len: usize, to: *mut f32) {
    for token in 0..len {
        let side = sides.of(token.min(tokens - 1));
        // SAFETY: `to` has room for `len` values (clause), and `token` is less than `len`.
        unsafe { to.add(token).write(f32::from(side)) };
    }
}
