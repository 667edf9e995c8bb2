//! Reduces adjacent elements in a balanced binary tree, with the least depth.
//!
//! In step `t` the totals of neighbouring runs of `2^t` elements merge. The total of a run is stored at its first
//! element. A run without a right neighbour stays unchanged, so a length that is not a power of two needs no merge
//! with the identity.

use super::depth::ceil_log2;
use super::slots::Slots;

/// Returns the number of steps over `n` elements: `ceil(log2 n)`.
#[must_use]
pub const fn steps(n: usize) -> usize {
    ceil_log2(n)
}

/// Returns merge `m` of a step as `(left, right)`: `items[left] ← items[left] ⊕ items[right]`. `None` if the step has
/// fewer merges.
#[must_use]
pub fn merge(n: usize, step: usize, m: usize) -> Option<(usize, usize)> {
    let run = 1usize << step;
    let left = m.checked_mul(run)?.checked_mul(2)?;
    let right = left.checked_add(run)?;
    (right < n).then_some((left, right))
}

/// Computes the total and returns its place, which is the first; `None` if there are no elements. The other elements
/// are overwritten.
pub fn reduce<S: Slots + ?Sized>(slots: &mut S) -> Option<usize> {
    let n = slots.len();
    for step in 0..steps(n) {
        for (left, right) in (0..).map_while(|m| merge(n, step, m)) {
            slots.combine(left, right);
            slots.swap(left, right);
        }
    }
    (n > 0).then_some(0)
}

/// Returns the depth of [`reduce`]: `ceil(log2 n)`, the least possible.
#[must_use]
pub const fn depth(n: usize) -> usize {
    ceil_log2(n)
}
