//! Blelloch's scan: up-sweep and down-sweep over a binary tree, in place, for any length.
//!
//! The tree cuts the elements at multiples of powers of two. A node of step `t` covers the existing elements of
//! `[m 2^{t+1}, (m+1) 2^{t+1})`; its left child covers the first `2^t` of them, its right child the remaining ones. The
//! value of a subtree is stored at its last element, so a right child and its parent share a place:
//!
//! ```text
//! up-sweep      steps 0, 1, …   items[last] ← items[mid] ⊕ items[last]
//! down-sweep    steps …, 1, 0   exclusive:  left ← parent's prefix,  right ← parent's prefix ⊕ left's total
//!                               inclusive:  items[mid] ← items[start − 1] ⊕ items[mid]  where start > 0
//! ```
//!
//! where `mid` is the last element of the left child. If the right child would be empty, there is no node, and the left
//! child represents both. A length that is not a power of two therefore needs no special case, no merge with the
//! identity and no padding. Elements keep their order throughout.
//!
//! The exclusive down-sweep starts from the identity at the root. The inclusive down-sweep passes inclusive prefixes
//! down the same tree. It needs neither the identity nor a second copy of the inputs, and is also known as the
//! Brent-Kung network.

use super::depth::ceil_log2;
use super::slots::Slots;

/// Returns the number of steps of either sweep over `n` elements: `ceil(log2 n)`.
#[must_use]
pub const fn steps(n: usize) -> usize {
    ceil_log2(n)
}

/// A node of the tree that has both children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// First element of the node.
    pub start: usize,
    /// Last element of the left child, where the left child's value is stored.
    pub mid: usize,
    /// Last element of the node, where the values of the right child and of the node are stored.
    pub last: usize,
}

/// Returns node `m` of step `step` over `n` elements; `None` if the step has fewer nodes.
#[must_use]
pub fn node(n: usize, step: usize, m: usize) -> Option<Node> {
    let half = 1usize << step;
    let start = m.checked_mul(half)?.checked_mul(2)?;
    let right = start.checked_add(half)?;
    (right < n).then(|| Node { start, mid: right - 1, last: n.min(right.saturating_add(half)) - 1 })
}

/// Iterates over the nodes of a step.
fn nodes(n: usize, step: usize) -> impl Iterator<Item = Node> {
    (0..).map_while(move |m| node(n, step, m))
}

/// Computes the total of every subtree and stores it in the last element of the subtree. The last element of `slots`
/// then contains the total of all elements.
pub fn up_sweep<S: Slots + ?Sized>(slots: &mut S) {
    let n = slots.len();
    for step in 0..steps(n) {
        for Node { mid, last, .. } in nodes(n, step) {
            slots.combine(mid, last);
        }
    }
}

/// Converts the totals of subtrees to exclusive prefixes. The last element must contain the prefix before all elements.
pub fn down_sweep<S: Slots + ?Sized>(slots: &mut S) {
    let n = slots.len();
    for step in (0..steps(n)).rev() {
        for Node { mid, last, .. } in nodes(n, step) {
            slots.combine(last, mid);
            slots.swap(mid, last);
        }
    }
}

/// Returns the place of the total, which is the last place; `None` if there are no elements. The other places then
/// contain totals of subtrees.
pub fn reduce<S: Slots + ?Sized>(slots: &mut S) -> Option<usize> {
    up_sweep(slots);
    slots.len().checked_sub(1)
}

/// Replaces every element by the prefix that ends before it; the first becomes the identity.
pub fn exclusive<S: Slots + ?Sized>(slots: &mut S) {
    up_sweep(slots);
    if let Some(last) = slots.len().checked_sub(1) {
        slots.identity(last);
    }
    down_sweep(slots);
}

/// Replaces every element by the prefix that ends with it.
pub fn inclusive<S: Slots + ?Sized>(slots: &mut S) {
    up_sweep(slots);
    let n = slots.len();
    for step in (0..steps(n)).rev() {
        for Node { start, mid, .. } in nodes(n, step) {
            if let Some(before) = start.checked_sub(1) {
                slots.combine(before, mid);
            }
        }
    }
}

/// Returns the depth of [`reduce`]: `ceil(log2 n)`.
#[must_use]
pub const fn reduction_depth(n: usize) -> usize {
    ceil_log2(n)
}

/// Returns the depth of [`exclusive`].
///
/// Let `k = ceil(log2 n)` and let `r = n − 2^{k−1}` be the number of elements of the root's right child. The prefix of
/// the root's right child is `k` merges deep: `k − 1` merges for the total of the root's left child, and one merge with
/// the identity. On the way down, a prefix that is at least as deep as the tree below it becomes deeper by
/// `floor(log2 r)`. The prefix of a left child is that of its parent, and the prefix of a right child has one more
/// merge. Only in a perfect tree does every step add a merge. Paths that stay in the left child behave like a scan of
/// `2^{k−1}` elements, whose depth is `2 (k − 1) − 1`:
///
/// ```text
/// max(k + floor(log2 r), 2k − 3)      2k − 1 for n = 2^k, 0 for one element
/// ```
///
/// Every path contains one merge with the identity.
#[must_use]
pub const fn exclusive_depth(n: usize) -> usize {
    if n <= 1 {
        return 0;
    }
    let k = ceil_log2(n);
    let right = k + (n - (1 << (k - 1))).ilog2() as usize;
    let left = (2 * k).saturating_sub(3);
    if right > left { right } else { left }
}

/// Returns the depth of [`inclusive`], with `k` and `r` as for [`exclusive_depth`]:
///
/// ```text
/// max(k, k − 1 + floor(log2 r), 2k − 4)      2k − 2 for n = 2^k from four elements on
/// ```
///
/// The root's total requires `k` merges. The total of the left child has the depth `k − 1`. It becomes the prefix of
/// the right child without a merge with the identity. The left child behaves like a scan of `2^{k−1}` elements.
#[must_use]
pub const fn inclusive_depth(n: usize) -> usize {
    if n <= 1 {
        return 0;
    }
    let k = ceil_log2(n);
    let right = k - 1 + (n - (1 << (k - 1))).ilog2() as usize;
    let left = (2 * k).saturating_sub(4);
    let most = if right > left { right } else { left };
    if most > k { most } else { k }
}
