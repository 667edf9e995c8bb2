//! What a strip is as the tokens of a segment meet it.

use super::factor::multiply;
use super::kernel::{Segment, Strip};
use crate::lanes::{Lanes, MAX_LANES};

/// Most columns of a strip.
pub(super) const WIDEST: usize = 4 * MAX_LANES;

/// The row of a state that is absent.
static ZEROS: [f32; WIDEST] = [0.0; WIDEST];

/// The strip as the tokens of a segment find it. A single token reads it where it was and writes it where it is. For more of
/// them, and where the segment multiplies it first, it is brought there.
///
/// # Safety
/// - The clauses of [`Strip`] and [`Segment`].
#[inline(always)]
pub(super) unsafe fn entered<L: Lanes>(isa: L::Isa, strip: &Strip, segment: &Segment) -> Strip {
    let Strip { from, from_stride, .. } = *strip;
    let (from, from_stride) = if from.is_null() { (ZEROS.as_ptr(), 0) } else { (from, from_stride) };
    // SAFETY: `width` values of each row are readable at `from`, and writable at `state` (clauses). No strip is wider than a
    // row of zeros.
    unsafe {
        if let Some(enter) = &segment.enter {
            let to = (strip.state, strip.stride);
            multiply::<L>(isa, enter, (from, from_stride), to, segment.dim, strip.width);
        } else if from == strip.state {
            return *strip;
        } else if segment.tokens == 1 {
            return Strip { from, from_stride, ..*strip };
        } else {
            for r in 0..segment.dim {
                for x in (0..strip.width).step_by(L::N) {
                    L::load(isa, from.add(r * from_stride + x)).store(strip.state.add(r * strip.stride + x));
                }
            }
        }
    }
    Strip { from: strip.state, from_stride: strip.stride, ..*strip }
}
