//! Computes the bias of a query tile and a key block: the values that masks, biases, lengths, causality and windows add
//! to the scores of this tile and block.
//!
//! **The naive way** checks for every row and every key whether the row attends the key, and computes the addend.
//!
//! **Why the code differs.**
//!
//! 1. *Intervals first.* For lengths, causality and windows, the first and the last row of the tile decide whether a
//!    block is skipped or fully attended ([`covered`]). A bias is written only for a partially attended block.
//! 2. *The kernel converts a mask to a bias* and reports the kinds of its values: a block whose keys are all masked is
//!    skipped, and a block without a masked key needs no bias.
//! 3. *Values that tasks share are kept* ([`MaskCache`]). The values of a second mask, the sides of a shifted window, and
//!    the limits of the rows' key ranges are added to a copy of the kept values.
//! 4. *A mask row that all queries share stays a row*: the kernel adds each of its elements to complete vectors.

use super::addends::{self, MaskOf};
use super::context::{Context, TileRows};
use super::mask_cache::MaskCache;
use elsa_core::attention::schedule::{Coverage, covered, restrict};
use elsa_kernels::attention::{Seen, SideTile};
use std::ops::Range;

/// The values added to the scores of a query tile and a key block.
#[derive(Clone, Copy)]
pub(super) struct Bias {
    /// Values in the order `[key][width]`; null if nothing is added and every row attends every key.
    pub data: *const f32,
    /// `true` if all rows share the values; their order is then `[key]`.
    pub is_row: bool,
    /// `false` if no value is `−∞`.
    pub masks: bool,
}

impl Bias {
    /// The bias of a block in which every row attends every key and nothing is added.
    const NOTHING: Bias = Bias { data: std::ptr::null(), is_row: false, masks: false };
}

/// The worker's memory for two biases. Each region has room for a block of the widest tile; the second region exists
/// only if two biases are added.
#[derive(Clone, Copy)]
pub(super) struct Room {
    pub first: *mut f32,
    pub second: *mut f32,
}

impl Room {
    /// Returns the regions for biases in the worker's region `part`.
    pub fn of(c: &Context<'_>, part: *mut f32) -> Room {
        let [first, second] = [c.layout.bias, c.layout.second_bias].map(|span| part.wrapping_add(span.start));
        Room { first, second }
    }
}

/// Two results of the search for added values: the effect that the values found so far have on a block, and their
/// address.
type Found = (Seen, *const f32);

/// Computes the bias of the block `keys` for the tile that has index `place` in its group. Returns `None` if no row
/// attends a key.
///
/// # Safety
/// - The invariants of [`Context`] hold. `keys` is a block or the first keys of a block, and `to` is memory of the
///   worker.
/// - `cache` contains the worker's data for the task of the tile.
pub(super) unsafe fn cover(
    c: &Context<'_>,
    tile: &TileRows<'_>,
    keys: &Range<usize>,
    to: Room,
    (cache, place): (&MaskCache, usize),
) -> Option<Bias> {
    let (sequence, rows, width) = (tile.sequence, &tile.rows, tile.width);
    let ranges = sequence.ranges(rows.clone());
    match covered(c.problem, sequence, &ranges, keys) {
        Coverage::Skip => return None,
        Coverage::Full => return Some(Bias::NOTHING),
        Coverage::Partial => {}
    }
    let at = to.first;
    let (_, all) = ranges;
    let whole = all.start <= keys.start && keys.end <= all.end;
    let mut row = (Seen::Plain, std::ptr::null());
    if c.choice.row_mask {
        // SAFETY: the plan keeps a mask row, and the block has keys.
        row = unsafe { cache.row(c, keys.start) };
        if row.0 == Seen::Nothing {
            return None;
        }
    }
    // SAFETY: the callee's clauses are those of this function.
    let (mut seen, mut bias) = unsafe { of_tile(c, tile, keys, to, (cache, place)) };
    if seen == Seen::Nothing {
        return None;
    }
    let divided = !cache.sides.is_null();
    if row.0.is_written() {
        if seen == Seen::Plain && whole && !divided {
            return Some(Bias { data: row.1, is_row: true, masks: true });
        }
        // SAFETY: the callee's clauses are those of this function; the table entries are those of the cache.
        let spread = unsafe { write(c, MaskOf::Mask, tile, keys, cache, at) };
        // SAFETY: as for the call above; the bias of the tile is in the cache or in the second region.
        (seen, bias) = unsafe { together(c, width, keys, (seen, bias), spread, at) };
    }
    if divided {
        // SAFETY: there is a side for each of the task's tokens, and room for a tile's width after them (layout). The
        // region for the bias has room for a block of the widest tile.
        unsafe {
            let mut found = Seen::Biased;
            let sides = SideTile {
                rows: cache.sides.add(rows.start),
                keys: cache.sides.add(keys.start),
                count: keys.len(),
                bias: if seen == Seen::Plain { std::ptr::null() } else { bias },
            };
            (c.kernel.divide)(&sides, width, at, &mut found);
            match found {
                Seen::Nothing => return None,
                Seen::Plain => {}
                Seen::Added | Seen::Biased => (seen, bias) = (Seen::Biased, at.cast_const()),
            }
        }
    }
    match (seen, whole) {
        (Seen::Nothing, _) => return None,
        (Seen::Plain, true) => return Some(Bias::NOTHING),
        (_, true) => return Some(Bias { data: bias, is_row: false, masks: seen == Seen::Biased }),
        (_, false) => {}
    }
    // No row attends keys beyond the reach of mask and bias, and those keys have no bias.
    let written = if seen.is_written() { reach(c, tile, keys) } else { 0 };
    // SAFETY: the region has room for a block of the widest tile (layout), all of it initialised: workspaces begin as
    // zeros. The values of the first `written` keys have been written, either there or at `bias`.
    let slice = unsafe {
        if bias != at.cast_const() {
            at.copy_from(bias, written * width);
        }
        std::slice::from_raw_parts_mut(at, keys.len() * width)
    };
    slice[written * width..].fill(0.0);
    restrict(sequence, rows.clone(), keys.clone(), width, slice);
    Some(Bias { data: at, is_row: false, masks: true })
}

/// Returns the number of leading keys of a block that both mask and bias cover.
fn reach(c: &Context<'_>, tile: &TileRows<'_>, keys: &Range<usize>) -> usize {
    addends::reach(c, tile.sequence.keys).min(keys.end).saturating_sub(keys.start)
}

/// Computes the values that mask and bias add. A mask with a single row is not included. The returned values are in the
/// cache or in one of the two regions for a bias. If the mask has a single row and the values are not in the cache,
/// they are in the second region.
///
/// # Safety
/// - The conditions of [`cover`] hold.
unsafe fn of_tile(
    c: &Context<'_>,
    tile: &TileRows<'_>,
    keys: &Range<usize>,
    to: Room,
    (cache, place): (&MaskCache, usize),
) -> Found {
    let (keeps, spec) = (c.choice.keeps, c.problem.spec());
    let Room { first: at, second } = to;
    let mask = spec.mask.is_some() && !c.choice.row_mask;
    let bias = spec.bias.is_some();
    let mut found: Found = (Seen::Plain, std::ptr::null());
    // SAFETY: both regions and every kept block have room for a block of the widest tile (layout), and all belong to
    // the worker. The second region exists if two biases are added.
    unsafe {
        if keeps.any() {
            let all = keys.start..tile.sequence.keys.min(keys.start + c.choice.block);
            found = cache.tile(c, place, keys.start, |to| {
                let of = |of, to| write(c, of, tile, &all, cache, to);
                match (keeps.mask, keeps.bias) {
                    (true, true) => {
                        let mask = of(MaskOf::Mask, to);
                        let bias = of(MaskOf::Bias, second);
                        let (seen, at) = together(c, tile.width, &all, mask, bias, to);
                        if seen.is_written() && at != to.cast_const() {
                            to.copy_from_nonoverlapping(at, all.len() * tile.width);
                        }
                        seen
                    }
                    (true, false) => of(MaskOf::Mask, to).0,
                    (false, _) => of(MaskOf::Bias, to).0,
                }
            });
        }
        for (of, wanted) in [(MaskOf::Bias, bias && !keeps.bias), (MaskOf::Mask, mask && !keeps.mask)] {
            if wanted && found.0 != Seen::Nothing {
                // If a mask row or a second bias follows, the first bias is written to the second region.
                let first = of == MaskOf::Bias && c.choice.adds_two;
                let next = write(c, of, tile, keys, cache, if first { second } else { at });
                found = together(c, tile.width, keys, found, next, at);
            }
        }
    }
    found
}

/// Writes to `to` the values that mask or bias adds to the scores of a tile and a block.
///
/// # Safety
/// - The conditions of [`addends::write`] hold. The table entries are those of the cache.
unsafe fn write(
    c: &Context<'_>,
    of: MaskOf,
    tile: &TileRows<'_>,
    keys: &Range<usize>,
    cache: &MaskCache,
    to: *mut f32,
) -> Found {
    // SAFETY: the callee's clauses are those of this function.
    (unsafe { addends::write(c, of, tile, keys, cache.entries, to) }, to)
}

/// Combines two biases of a tile and a block: returns one of them, or their sum, which is written to `to`.
///
/// # Safety
/// - The invariants of [`Context`] hold. Each bias is readable for the keys that mask and bias cover. `to` is writable
///   for a block, and may be the address of one of the biases.
unsafe fn together(
    c: &Context<'_>,
    width: usize,
    keys: &Range<usize>,
    one: Found,
    other: Found,
    to: *mut f32,
) -> Found {
    match (one.0, other.0) {
        (Seen::Nothing, _) | (_, Seen::Nothing) => (Seen::Nothing, std::ptr::null()),
        (Seen::Plain, _) => other,
        (_, Seen::Plain) => one,
        _ => {
            let count = addends::reach(c, c.problem.keys()).min(keys.end).saturating_sub(keys.start);
            // SAFETY: both biases are readable for these keys, and `to` is writable for them (clauses); *kernel*.
            unsafe { (c.kernel.add)(one.1, other.1, count * width, to) };
            (Seen::Biased, to)
        }
    }
}
