//! What a strip is as the tokens of a segment meet it.

use super::factor::multiply;
use super::kernel::{Segment, Strip};
use crate::lanes::{Lanes, MAX_LANES};

/// Most columns of a strip.
pub(super) const WIDEST: usize = 4 * MAX_LANES;

/// The row of a state that is absent.
static ZEROS: [f32; WIDEST] = [0.0; WIDEST];

/// Zeroes the rows of a strip that belong to no key, of `width` values each, `stride` apart: there the product of a zero with
/// what is not finite, which is NaN, may have been added, and would reach every answer.
///
/// # Safety
/// - The rows of the segment's `dim` past its own are writable from those of `state` on.
#[inline(always)]
pub(super) unsafe fn clear_padding(state: *mut f32, stride: usize, width: usize, segment: &Segment) {
    for r in segment.rows..segment.dim {
        // SAFETY: row `r` (clause). Zero bytes are f32 zeros.
        unsafe { state.add(r * stride).write_bytes(0, width) };
    }
}

/// The strip with a place for the state before the segment, also where there is none.
#[inline(always)]
pub(super) fn found(strip: &Strip) -> Strip {
    match strip.from.is_null() {
        true => Strip { from: ZEROS.as_ptr(), from_stride: 0, ..*strip },
        false => *strip,
    }
}

/// Brings a strip of [`found`] from where it was to where it is, multiplied if the segment multiplies it first.
///
/// # Safety
/// - The clauses of [`Strip`] and [`Segment`].
#[inline(always)]
pub(super) unsafe fn place<L: Lanes>(isa: L::Isa, strip: &Strip, segment: &Segment) {
    let Strip { from, from_stride, .. } = *strip;
    // SAFETY: `width` values of each row are readable at `from`, and writable at `state` (clauses). No strip is wider than a
    // row of zeros.
    unsafe {
        if let Some(enter) = &segment.enter {
            let to = (strip.state, strip.stride);
            multiply::<L>(isa, enter, (from, from_stride), to, segment.rows, strip.width);
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
