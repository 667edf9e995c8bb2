//! Prepares the state of a strip at the start of a segment.

use super::factor::multiply;
use super::kernel::{Segment, Strip};
use crate::lanes::{Lanes, MAX_LANES};

/// Largest number of columns in a strip.
pub(super) const WIDEST: usize = 4 * MAX_LANES;

/// Row of zeros, used for an absent state.
static ZEROS: [f32; WIDEST] = [0.0; WIDEST];

/// Zeroes the padding rows of a strip, which belong to no dim of a key. Products of zeros with values that are not
/// finite may have written NaN to these rows, and every later output would then be NaN. A row has `width` values; rows
/// are `stride` apart.
///
/// # Safety
/// - In the strip at `state`, the rows from the segment's `rows` to its `dim` are writable.
#[inline(always)]
pub(super) unsafe fn clear_padding(state: *mut f32, stride: usize, width: usize, segment: &Segment) {
    for r in segment.rows..segment.dim {
        // SAFETY: row `r` is writable (clause). Zero bytes are f32 zeros.
        unsafe { state.add(r * stride).write_bytes(0, width) };
    }
}

/// Returns a copy of `strip` whose previous state is readable. If the previous state is absent, rows of zeros replace
/// it.
#[inline(always)]
pub(super) fn readable(strip: &Strip) -> Strip {
    match strip.from.is_null() {
        true => Strip { from: ZEROS.as_ptr(), from_stride: 0, ..*strip },
        false => *strip,
    }
}

/// Copies a strip from its previous location to its new location, and multiplies it by the factors at the start of the
/// segment, if there are any. The strip must have been returned by [`readable`].
///
/// # Safety
/// - The clauses of [`Strip`] and [`Segment`] hold.
#[inline(always)]
pub(super) unsafe fn place<L: Lanes>(isa: L::Isa, strip: &Strip, segment: &Segment) {
    let Strip { from, from_stride, .. } = *strip;
    // SAFETY: `width` values of each row are readable at `from`, and writable at `state` (clauses). No strip is wider than a
    // row of zeros.
    unsafe {
        if let Some(entry) = &segment.entry {
            let to = (strip.state, strip.stride);
            multiply::<L>(isa, entry, (from, from_stride), to, segment.rows, strip.width);
            clear_padding(strip.state, strip.stride, strip.width, segment);
        } else {
            for r in 0..segment.dim {
                for x in (0..strip.width).step_by(L::N) {
                    L::load(isa, from.add(r * from_stride + x)).store(strip.state.add(r * strip.stride + x));
                }
            }
        }
    }
}
