//! Merges the states of attention segments in a tree: segments arrive in order, and each subtree is merged as soon as
//! it is complete.
//!
//! For segments `0, 1, 2, …` the tree is the balanced tree of [`super::tree`]. The caller's slots store the states, so
//! the size of an element may be known only at run time.

use super::depth::ceil_log2;

/// The merge tree over segments, as a stack of pending states, for segments that arrive in order.
///
/// The stack contains no states; it records only which segments the caller's slots represent. The caller provides
/// [`MergeStack::capacity`] slots: a new segment is computed into the slot that [`MergeStack::push`] returns, and a
/// merge always combines the last two slots. The result is the balanced tree over all segment numbers, in which the
/// identity replaces segments that were not pushed.
///
/// For two neighbours on the stack, consider the highest bit in which their segment numbers differ. These bits decrease
/// strictly from the bottom of the stack to its top, so one integer stores all of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct MergeStack {
    /// The segment that was pushed last; `None` if there was none.
    last: Option<usize>,
    /// Set of the highest bits in which the segment numbers of neighbours on the stack differ.
    parts: usize,
}

impl MergeStack {
    /// Returns the number of slots that a stack for `segments` segments needs.
    #[must_use]
    pub const fn capacity(segments: usize) -> usize {
        1 + depth(segments)
    }

    /// Returns the number of slots in use.
    #[must_use]
    pub const fn len(&self) -> usize {
        if self.is_empty() { 0 } else { self.parts.count_ones() as usize + 1 }
    }

    /// Returns `true` if no segment has been pushed.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.last.is_none()
    }

    /// Empties the stack.
    pub const fn clear(&mut self) {
        *self = MergeStack { last: None, parts: 0 };
    }

    /// Adds segment `c` and returns its slot. `c` must be greater than all earlier segments. Subtrees that are complete
    /// by then are merged first: each call `merge(slot)` must compute slot ← slot ⊕ (slot + 1).
    pub fn push(&mut self, c: usize, merge: impl FnMut(usize)) -> usize {
        if let Some(last) = self.last {
            // All subtrees below this bit are complete.
            let bit = 1 << (last ^ c).checked_ilog2().unwrap_or(0);
            self.join(bit - 1, merge);
            self.parts |= bit;
        }
        self.last = Some(c);
        self.len() - 1
    }

    /// Merges all pending states into slot zero. Returns `true` if any segment has been pushed.
    pub fn finish(&mut self, merge: impl FnMut(usize)) -> bool {
        self.join(usize::MAX, merge);
        !self.is_empty()
    }

    /// Merges, from the top down, the neighbours on the stack whose highest differing bit is one of `bits`. All other
    /// bits in `parts` must be higher.
    fn join(&mut self, bits: usize, mut merge: impl FnMut(usize)) {
        let stay = (self.parts & !bits).count_ones() as usize;
        (stay..self.parts.count_ones() as usize).rev().for_each(&mut merge);
        self.parts &= !bits;
    }
}

/// Returns the number of merges on the longest path through the tree over `segments` segments:
/// `ceil(log2 segments)`.
#[must_use]
pub const fn depth(segments: usize) -> usize {
    ceil_log2(segments)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// Step between tested sizes. Miri is slow, so it checks fewer sizes.
    const STRIDE: usize = if cfg!(miri) { 13 } else { 1 };

    /// Writes the expected tree as nested text: the part that covers the segments `lo..hi`, by recursion. Returns
    /// `false` if no segment in this range is present.
    fn tree(present: &[bool], lo: usize, hi: usize, out: &mut heapless::String<4096>) -> bool {
        if hi - lo == 1 {
            if lo < present.len() && present[lo] {
                core::fmt::Write::write_fmt(out, format_args!("{lo}")).unwrap();
                return true;
            }
            return false;
        }
        let (mut a, mut b) = (heapless::String::new(), heapless::String::new());
        let mid = usize::midpoint(lo, hi);
        match (tree(present, lo, mid, &mut a), tree(present, mid, hi, &mut b)) {
            (true, true) => core::fmt::Write::write_fmt(out, format_args!("({a}+{b})")).unwrap(),
            (true, false) => out.push_str(&a).unwrap(),
            (false, true) => out.push_str(&b).unwrap(),
            (false, false) => return false,
        }
        true
    }

    #[test]
    fn stack_is_the_tree_over_positions() {
        let mut random = Random::new(1);
        for n in (1..=40usize).step_by(STRIDE) {
            for round in 0..20usize.div_ceil(STRIDE) {
                let mut present = [false; 40];
                for p in &mut present[..n] {
                    *p = round == 0 || random.below(2) == 1;
                }
                let mut slots: [heapless::String<4096>; 8] =
                    core::array::from_fn(|_| heapless::String::new());
                let mut stack = MergeStack::default();
                let merge = |slots: &mut [heapless::String<4096>; 8], s: usize| {
                    let mut t: heapless::String<4096> = heapless::String::new();
                    core::fmt::Write::write_fmt(&mut t, format_args!("({}+{})", slots[s], slots[s + 1]))
                        .unwrap();
                    slots[s] = t;
                };
                for c in (0..n).filter(|c| present[*c]) {
                    let slot = stack.push(c, |s| merge(&mut slots, s));
                    assert!(slot < MergeStack::capacity(n));
                    slots[slot].clear();
                    core::fmt::Write::write_fmt(&mut slots[slot], format_args!("{c}")).unwrap();
                }
                let any = stack.finish(|s| merge(&mut slots, s));
                let mut want = heapless::String::new();
                assert_eq!(tree(&present[..n], 0, n.next_power_of_two(), &mut want), any);
                if any {
                    assert_eq!(slots[0], want);
                }
            }
        }
        assert_eq!([1, 2, 3, 4, 5, 8, 9].map(depth), [0, 1, 2, 2, 3, 3, 4]);
    }
}
