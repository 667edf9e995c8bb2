//! Hillis and Steele's scan: in step `t` every element merges with the element `2^t` places before it.
//!
//! This implementation alternates between two buffers, as a thread block does in shared memory. Every element of the
//! next buffer is computed from the current one, elements without a partner are copied, and one barrier per step is
//! enough. The scan executes about `n log2 n` merges, compared with about `2 n` in [`super::blelloch`]. Its depth is
//! the smallest that is possible for prefixes.

use super::depth::ceil_log2;
use super::slots::{Slots, check_scratch};
use crate::argument::ArgumentError;

/// Returns the number of steps over `n` elements: `ceil(log2 n)`.
#[must_use]
pub const fn steps(n: usize) -> usize {
    ceil_log2(n)
}

/// Returns the element that merges with element `i` in a step: `next[i] ← now[source] ⊕ now[i]`. `None` means that
/// `next[i]` is a copy of `now[i]`.
#[must_use]
pub const fn source(step: usize, i: usize) -> Option<usize> {
    i.checked_sub(1 << step)
}

/// Returns the number of scratch elements that a scan of `n` elements needs, which is `n`.
#[must_use]
pub const fn scratch_len(n: usize) -> usize {
    n
}

/// Replaces every element by the prefix that ends with it.
///
/// # Errors
/// Returns an error if the scratch is shorter than [`scratch_len`].
pub fn inclusive<S: Slots + ?Sized>(slots: &mut S) -> Result<(), ArgumentError> {
    let n = slots.len();
    check_scratch(slots, scratch_len(n))?;
    between(slots, 0, n, n);
    Ok(())
}

/// Scans `n` elements like [`inclusive`]. The elements start at place `items`, and the `n` scratch places start at place
/// `scratch`.
pub(super) fn between<S: Slots + ?Sized>(slots: &mut S, items: usize, n: usize, scratch: usize) {
    let (mut now, mut next) = (items, scratch);
    for step in 0..steps(n) {
        for i in 0..n {
            slots.copy(now + i, next + i);
            if let Some(before) = source(step, i) {
                slots.combine(now + before, next + i);
            }
        }
        core::mem::swap(&mut now, &mut next);
    }
    if now != items {
        for i in 0..n {
            slots.copy(now + i, items + i);
        }
    }
}

/// Computes all prefixes and returns the place of the total, which is the last place; `None` if there are no elements.
///
/// # Errors
/// Returns an error if the scratch is shorter than [`scratch_len`].
pub fn reduce<S: Slots + ?Sized>(slots: &mut S) -> Result<Option<usize>, ArgumentError> {
    inclusive(slots)?;
    Ok(slots.len().checked_sub(1))
}

/// Returns the depth of [`inclusive`] and [`reduce`]: `ceil(log2 n)`.
#[must_use]
pub const fn depth(n: usize) -> usize {
    ceil_log2(n)
}
