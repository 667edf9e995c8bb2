//! Prefetches the rows that will be read next into the cache, while other work runs.

use super::kernel::Ahead;
use crate::lanes::Lanes;
use core::ops::Range;

/// Size of a cache line in bytes.
const LINE: usize = 64;

/// Divides the rows of `ahead` into `whole` equal shares, and prefetches the cache lines of the shares whose indices
/// are in `part`.
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
