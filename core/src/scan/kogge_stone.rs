//! Kogge and Stone's prefix network, in place.
//!
//! The network is that of [`super::hillis_steele`]: the same merges of the same elements at the same depth, and therefore
//! the same bits. Kogge and Stone's name comes from an adder, Hillis and Steele's from a data-parallel machine; the
//! implementations here differ in how they store the elements in memory. This implementation has a single buffer. Within a
//! step, elements are updated from the last to the first, so the partner at distance `2^t` still contains the value of the
//! previous step; elements without a partner stay unchanged. The lanes of a warp or of a vector execute the network in the
//! same way, in registers: all lanes read, then all lanes write. Machines that do not run in lock step need a barrier
//! between reading and writing, which makes the two buffers of Hillis and Steele cheaper.

use super::depth::ceil_log2;
use super::slots::Slots;

/// Returns the number of steps over `n` elements: `ceil(log2 n)`.
#[must_use]
pub const fn steps(n: usize) -> usize {
    ceil_log2(n)
}

/// Returns merge `m` of a step, counted from the last element, as `(before, at)`:
/// `items[at] ← items[before] ⊕ items[at]`. `None` if the step has fewer merges.
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

/// Computes all prefixes and returns the place of the total, which is the last place; `None` if there are no elements.
pub fn reduce<S: Slots + ?Sized>(slots: &mut S) -> Option<usize> {
    inclusive(slots);
    slots.len().checked_sub(1)
}

/// Returns the depth of [`inclusive`] and [`reduce`]: `ceil(log2 n)`.
#[must_use]
pub const fn depth(n: usize) -> usize {
    ceil_log2(n)
}
