//! What is read soon is brought to the cache meanwhile.

use super::kernel::Ahead;
use crate::lanes::Lanes;
use core::ops::Range;

/// Bytes that the cache takes at once.
const LINE: usize = 64;

/// Has the lines of a share of the rows brought to the cache: `part` of `whole`.
#[inline(always)]
pub fn fetch<L: Lanes>(isa: L::Isa, ahead: &Ahead, part: Range<usize>, whole: usize) {
    let row = |share: usize| ahead.rows * share.min(whole) / whole;
    for row in row(part.start)..row(part.end) {
        let at = ahead.data.wrapping_add(row * ahead.stride);
        for i in (0..ahead.bytes).step_by(LINE) {
            L::prefetch(isa, at.wrapping_add(i));
        }
        L::prefetch(isa, at.wrapping_add(ahead.bytes - 1));
    }
}
