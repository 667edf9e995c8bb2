//! The sequential scan: one element after another.
//!
//! It has the fewest merges (`n − 1`) and the greatest depth of all algorithms. The exclusive form starts from the
//! identity and merges the first element with it. The last element takes part in no merge, so its place stores the
//! running prefix.

use super::slots::Slots;

/// Computes all prefixes and returns the place of the total; `None` if there are no elements.
pub fn reduce<S: Slots + ?Sized>(slots: &mut S) -> Option<usize> {
    inclusive(slots);
    slots.len().checked_sub(1)
}

/// Replaces every element by the prefix that ends with it.
pub fn inclusive<S: Slots + ?Sized>(slots: &mut S) {
    for i in 1..slots.len() {
        slots.combine(i - 1, i);
    }
}

/// Replaces every element by the prefix that ends before it; the first becomes the identity.
pub fn exclusive<S: Slots + ?Sized>(slots: &mut S) {
    let Some(last) = slots.len().checked_sub(1) else { return };
    slots.identity(last);
    for i in 0..last {
        slots.combine(last, i);
        slots.swap(last, i);
    }
}

/// Returns the depth of [`reduce`]: `n − 1`.
#[must_use]
pub const fn reduction_depth(n: usize) -> usize {
    n.saturating_sub(1)
}

/// Returns the depth of [`inclusive`]: `n − 1`.
#[must_use]
pub const fn inclusive_depth(n: usize) -> usize {
    n.saturating_sub(1)
}

/// Returns the depth of [`exclusive`]: `n − 1`, including one merge with the identity.
#[must_use]
pub const fn exclusive_depth(n: usize) -> usize {
    n.saturating_sub(1)
}
