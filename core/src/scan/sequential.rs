//! One element after the other.
//!
//! Fewest merges of all (`n − 1`), greatest depth. The exclusive form starts from the identity and merges
//! the first element with it.

use crate::monoid::Monoid;

/// The total; the identity of no elements.
pub fn reduce<M: Monoid>(items: &[M]) -> M {
    let Some((first, rest)) = items.split_first() else { return M::identity() };
    rest.iter().fold(first.clone(), |before, x| before.combine(x))
}

/// Replaces every element by the prefix that ends with it.
pub fn inclusive<M: Monoid>(items: &mut [M]) {
    for i in 1..items.len() {
        items[i] = items[i - 1].combine(&items[i]);
    }
}

/// Replaces every element by the prefix that ends before it, the first by the identity.
pub fn exclusive<M: Monoid>(items: &mut [M]) {
    let mut before = M::identity();
    for x in items {
        let next = before.combine(x);
        *x = core::mem::replace(&mut before, next);
    }
}

/// Depth of [`reduce`]: `n − 1`.
#[must_use]
pub const fn reduction_depth(n: usize) -> usize {
    n.saturating_sub(1)
}

/// Depth of [`inclusive`]: `n − 1`.
#[must_use]
pub const fn inclusive_depth(n: usize) -> usize {
    n.saturating_sub(1)
}

/// Depth of [`exclusive`]: `n − 1`, one of them with the identity.
#[must_use]
pub const fn exclusive_depth(n: usize) -> usize {
    n.saturating_sub(1)
}
