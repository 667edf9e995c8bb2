//! Computes the bias of a query tile and a key block: the sum of all values that masks, biases, lengths, causality and
//! windows add to the scores of this tile and block.

use super::context::Context;
use super::stage::TileRows;
use elsa_core::attention::schedule::{Coverage, coverage, restrict};
use elsa_core::attention::{Addends, MaskElements, MaskView};
use elsa_kernels::attention::{MaskTile, Seen};
use std::ops::Range;

/// Writes the bias of a query tile and a key block to `to`, and returns its address. The address is null if nothing is
/// added. Returns `None` if no row attends a key. Tile columns without a row attend no key. `finite` is `true` if all
/// keys and values of the block are finite.
///
/// # Safety
/// - The invariants of [`Context`] hold. `keys` is a block of the sequence, and `to` is the worker's region for a bias.
pub(super) unsafe fn cover(
    c: &Context<'_>,
    tile: &TileRows<'_>,
    keys: &Range<usize>,
    finite: bool,
    to: *mut f32,
) -> Option<*const f32> {
    let (problem, sequence, rows) = (c.problem.forward(), tile.sequence, &tile.rows);
    let width = c.choice.kernel.rows;
    let partial = match coverage(problem, sequence, rows.clone(), keys.clone()) {
        Coverage::Skip => return None,
        // Tile columns without a row hold zeros, and zero times a non-finite key or value is NaN.
        Coverage::Full if finite || rows.len() == width => return Some(std::ptr::null()),
        Coverage::Full => false,
        Coverage::Partial => true,
    };
    // SAFETY: the initialised region (*workspace*) has room for a block of a tile (layout) and belongs to the worker
    // (clause).
    let bias = unsafe { std::slice::from_raw_parts_mut(to, keys.len() * width) };
    let mut written = 0;
    if partial && problem.modifies(sequence.batch) {
        let reach = sequence.reach().min(keys.end).saturating_sub(keys.start);
        let spec = problem.spec();
        match (spec.mask.zip(c.inputs.forward.mask), spec.bias.is_some() || spec.windows.is_some()) {
            (Some((view, elements)), false) => {
                let (keys, to) = (keys.start..keys.start + reach, bias.as_mut_ptr());
                // SAFETY: the region has room for all keys (clause), and `keys` are those that the mask covers.
                match unsafe { mask(c, tile, &view, &elements, keys, to) } {
                    Seen::Nothing => return None,
                    Seen::Plain => {}
                    Seen::Added | Seen::Biased => written = reach,
                }
            }
            _ => {
                written = reach;
                let added = Addends::new(problem, &c.inputs.forward);
                for (line, j) in bias.chunks_exact_mut(width).zip(keys.start..keys.start + reach) {
                    for (x, i) in line.iter_mut().zip(rows.clone()) {
                        *x = added.at(sequence.batch, tile.head, i, j);
                    }
                }
            }
        }
    }
    bias[written * width..].fill(0.0);
    if partial {
        restrict(sequence, rows.clone(), keys.clone(), width, bias);
    }
    if rows.len() < width {
        bias.chunks_exact_mut(width).for_each(|line| line[rows.len()..].fill(f32::NEG_INFINITY));
    }
    Some(to)
}

/// Writes to `to` the values that the mask adds to a tile's scores for `keys`, and returns how the mask affects the
/// tile. The mask must cover all of `keys`.
///
/// # Safety
/// - The invariants of [`Context`] hold. `keys` are keys of the sequence, and not more than one block. `to` is a region
///   of the worker.
unsafe fn mask(
    c: &Context<'_>,
    tile: &TileRows<'_>,
    view: &MaskView,
    elements: &MaskElements<'_>,
    keys: Range<usize>,
    to: *mut f32,
) -> Seen {
    if keys.is_empty() {
        return Seen::Nothing;
    }
    let head = (tile.sequence.batch, tile.head);
    let mask = MaskTile::of(view, elements.as_ptr(), head, &tile.rows, &keys);
    let mut seen = Seen::Plain;
    // SAFETY: rows and keys are in the mask (*inputs*), and `to` has room for their bias (clause); *kernel*.
    unsafe { (c.kernel.bias)(&mask, c.choice.kernel.rows, to, &mut seen) };
    seen
}
