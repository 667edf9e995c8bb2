//! Kogge and Stone's prefix network, in place.
//!
//! It is the same network as [`super::hillis_steele`]: the same merges of the same elements at the same
//! depth, and so the same bits. The names come from different places (an adder, a data-parallel machine)
//! and the difference is how the network is laid into memory. Here there is one buffer. Within a step
//! elements are updated from the last to the first, so that the partner `2^t` before is still the one of
//! the step before; elements without a partner stay. That is also how lanes of a warp or of a
//! vector execute it: all read, then all write, in registers. Machines that do not run in lock step need a
//! barrier between reading and writing, and then the two buffers of Hillis and Steele cost less.

use super::depth::ceil_log2;
use super::slots::Slots;

/// Steps over `n` elements: `ceil(log2 n)`.
#[must_use]
pub const fn steps(n: usize) -> usize {
    ceil_log2(n)
}

/// Merge number `m` of a step, counted from the end: `items[at] ← items[before] ⊕ items[at]`, as
/// `(before, at)`. None when the step has fewer.
#[must_use]
pub fn merge(n: usize, step: usize, m: usize) -> Option<(usize, usize)> {
    let at = n.checked_sub(m + 1)?;
    Some((at.checked_sub(1 << step)?, at))
}

/// Replaces every element by the prefix that ends with it.
pub fn inclusive<S: Slots + ?Sized>(slots: &mut S) {
    let n = slots.len();
    for step in 0..steps(n) {
        for (before, at) in (0..n).map_while(|m| merge(n, step, m)) {
            slots.combine(before, at);
        }
    }
}

/// The place of the total, which is the last; `None` if there are no elements. All prefixes are computed.
pub fn reduce<S: Slots + ?Sized>(slots: &mut S) -> Option<usize> {
    inclusive(slots);
    slots.len().checked_sub(1)
}

/// Depth of [`inclusive`] and [`reduce`]: `ceil(log2 n)`.
#[must_use]
pub const fn depth(n: usize) -> usize {
    ceil_log2(n)
}
