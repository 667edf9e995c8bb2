//! The schedule: tiles over queries, blocks and segments over keys, and the merge tree.
//!
//! Keys are cut at multiples of the block size from the first key of the sequence, past included, and eight
//! blocks make a segment. A segment's keys fold into one state per row; the states of segments merge in the
//! balanced binary tree over segment numbers. Both cuts depend on the key's position alone, so a row meets
//! the same operations in the same order whatever tile it lies in, however many rows, heads, sequences or
//! threads there are; segments that a row does not attend are the identity and leave no trace.

use crate::mask::MaskElements;
use crate::problem::{Inputs, Problem, Sequence};
use core::ops::Range;

/// Blocks of keys that fold into one state before states merge.
pub const BLOCKS_PER_SEGMENT: usize = 8;

/// Query tiles of at most `vectors` vectors of `lanes` rows.
///
/// Tiles are as wide as they may be. The exception keeps a single vector from being left over after tiles of
/// three: then the last four vectors are two tiles of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiling {
    rows: usize,
    lanes: usize,
    vectors: usize,
    whole: usize,
    left: usize,
}

/// A query tile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryTile {
    /// Rows of the sequence.
    pub rows: Range<usize>,
    /// Vectors that hold them.
    pub vectors: usize,
}

impl Tiling {
    /// Tiles over `rows` rows.
    #[must_use]
    pub const fn new(rows: usize, lanes: usize, vectors: usize) -> Tiling {
        let all = rows.div_ceil(lanes);
        let spare = if vectors == 3 && all > 3 && all % 3 == 1 { 1 } else { 0 };
        let whole = all / vectors - spare;
        Tiling { rows, lanes, vectors, whole, left: all - whole * vectors }
    }

    /// Number of tiles.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.whole + self.left.div_ceil(self.left_width())
    }

    const fn left_width(&self) -> usize {
        if self.left == 4 { 2 } else { self.vectors }
    }

    /// Tile `t`, which must be below [`Tiling::count`].
    #[must_use]
    pub fn tile(&self, t: usize) -> QueryTile {
        let (first, vectors) = if t < self.whole {
            (t * self.vectors, self.vectors)
        } else {
            let done = (t - self.whole) * self.left_width();
            (self.whole * self.vectors + done, self.left_width().min(self.left - done))
        };
        let start = first * self.lanes;
        QueryTile { rows: start..self.rows.min(start + vectors * self.lanes), vectors }
    }
}

/// How much of a tile is attended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// Nothing: the tile costs nothing.
    Skip,
    /// Every key by every row: no mask is applied.
    Full,
    /// Some of it.
    Partial,
}

/// Coverage of `rows` × `keys` by lengths, causality and window. A problem with a mask is never `Full` here.
#[must_use]
pub fn coverage(problem: &Problem, sequence: &Sequence, rows: Range<usize>, keys: Range<usize>) -> Coverage {
    let (any, all) = sequence.ranges(rows);
    if keys.start.max(any.start) >= keys.end.min(any.end) {
        Coverage::Skip
    } else if problem.spec().mask.is_none() && all.start <= keys.start && keys.end <= all.end {
        Coverage::Full
    } else {
        Coverage::Partial
    }
}

/// Fills `bias` (`[key][width]`, one column a row of the tile) with what is added to the scores, in units of
/// `log 2`: zero where a row attends a key, `−∞` where it does not, the mask's value where it has one. Columns
/// past the last row are attended. Gives the coverage that results, so that a tile which a mask leaves whole
/// or empty is treated as such.
///
/// # Panics
/// When `bias` is shorter than `keys.len() · width`, or `width` than the rows.
pub fn fill_bias(
    problem: &Problem,
    inputs: &Inputs<'_>,
    sequence: &Sequence,
    head: usize,
    rows: Range<usize>,
    keys: Range<usize>,
    width: usize,
    bias: &mut [f32],
) -> Coverage {
    let bias = &mut bias[..keys.len() * width];
    let (_, all) = sequence.ranges(rows.clone());
    if all.start <= keys.start && keys.end <= all.end {
        bias.fill(0.0);
    } else {
        fill_ranges(sequence, &rows, &keys, width, bias);
    }
    if let (Some(view), Some(mask)) = (&problem.spec().mask, &inputs.mask) {
        let reach = view.reach(sequence.keys).min(keys.end);
        let span = keys.start..reach.max(keys.start);
        if view.same_for_all_queries() {
            let row = view.row(sequence.batch, head, 0);
            for (j, line) in span.zip(bias.chunks_exact_mut(width)) {
                let add = mask.bias(row.index(j)) * core::f32::consts::LOG2_E;
                if add != 0.0 {
                    for b in &mut line[..rows.len()] {
                        if *b != f32::NEG_INFINITY {
                            *b += add;
                        }
                    }
                }
            }
        } else {
            for (column, i) in rows.clone().enumerate() {
                let row = view.row(sequence.batch, head, i);
                add_row(mask, row.start, row.step, span.clone(), &mut bias[column..], width);
            }
        }
    }
    let mut attended = 0usize;
    let mut plain = 0usize;
    for line in bias.chunks_exact(width) {
        for b in &line[..rows.len()] {
            attended += usize::from(*b != f32::NEG_INFINITY);
            plain += usize::from(*b == 0.0);
        }
    }
    if attended == 0 {
        Coverage::Skip
    } else if plain == keys.len() * rows.len() {
        Coverage::Full
    } else {
        Coverage::Partial
    }
}

/// Adds the mask's elements of one row to a column of the bias. What is masked already stays so, even where
/// the mask holds NaN or `+∞`.
fn add_row(
    mask: &MaskElements<'_>,
    start: usize,
    step: usize,
    keys: Range<usize>,
    column: &mut [f32],
    width: usize,
) {
    for (j, b) in keys.zip(column.iter_mut().step_by(width)) {
        if *b != f32::NEG_INFINITY {
            *b += mask.bias(start + j * step) * core::f32::consts::LOG2_E;
        }
    }
}

fn fill_ranges(
    sequence: &Sequence,
    rows: &Range<usize>,
    keys: &Range<usize>,
    width: usize,
    bias: &mut [f32],
) {
    // Ends relative to the tile fit 32 bits; columns past the last row attend everything.
    const LANES: usize = 16;
    for first in (0..width).step_by(LANES) {
        let take = LANES.min(width - first);
        let mut start = [0i32; LANES];
        let mut end = [i32::MAX; LANES];
        for column in 0..take {
            let i = rows.start + first + column;
            if i < rows.end {
                let (s, e) = sequence.range(i);
                start[column] = s.clamp(keys.start, keys.end).abs_diff(keys.start) as i32;
                end[column] = e.clamp(keys.start, keys.end).abs_diff(keys.start) as i32;
            }
        }
        for (j, line) in bias.chunks_exact_mut(width).enumerate() {
            let j = j as i32;
            for ((b, s), e) in line[first..first + take].iter_mut().zip(&start).zip(&end) {
                *b = if j >= *s && j < *e { 0.0 } else { f32::NEG_INFINITY };
            }
        }
    }
}

/// The merge tree over segments as a stack of pending states, for segments that arrive in order.
///
/// It holds no states, only which segments those of the caller's slots stand for. The caller keeps
/// [`MergeStack::capacity`] slots: a new segment is folded into slot [`MergeStack::len`] after
/// [`MergeStack::push`], merges always take the last two. The result is the balanced tree over segment
/// numbers whose missing leaves are identities.
#[derive(Clone, Debug, Default)]
pub struct MergeStack {
    /// A segment of each slot's subtree.
    leaves: heapless::Vec<usize, { usize::BITS as usize + 1 }>,
}

impl MergeStack {
    /// Slots that `segments` segments need.
    #[must_use]
    pub const fn capacity(segments: usize) -> usize {
        1 + depth(segments)
    }

    /// Slots in use.
    #[must_use]
    pub fn len(&self) -> usize {
        self.leaves.len()
    }

    /// Whether no segment was taken in.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leaves.is_empty()
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.leaves.clear();
    }

    /// Announces segment `c`, which must be greater than all before. Subtrees that it completes merge first:
    /// `merge(slot)` is called for slot ← slot ⊕ (slot + 1). Gives the slot of the new segment.
    pub fn push(&mut self, c: usize, mut merge: impl FnMut(usize)) -> usize {
        while let [.., before, last] = self.leaves[..] {
            // `last` is complete up to the highest level at which it and `c` part.
            let level = (last ^ c).checked_ilog2().unwrap_or(0);
            if before >> level != last >> level {
                break;
            }
            self.leaves.pop();
            merge(self.leaves.len() - 1);
        }
        let slot = self.leaves.len();
        // There are never more pending subtrees than levels, and one more than the bits of a number are kept.
        let _ = self.leaves.push(c);
        slot
    }

    /// Merges what is pending, so that slot zero holds the whole. Says whether there is anything.
    pub fn finish(&mut self, mut merge: impl FnMut(usize)) -> bool {
        while self.leaves.len() > 1 {
            self.leaves.pop();
            merge(self.leaves.len() - 1);
        }
        !self.leaves.is_empty()
    }
}

/// Merges on the longest path through the tree over `segments` segments: `ceil(log2 segments)`.
#[must_use]
pub const fn depth(segments: usize) -> usize {
    if segments <= 1 { 0 } else { (segments - 1).ilog2() as usize + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Miri interprets, and looks at fewer sizes.
    const STRIDE: usize = if cfg!(miri) { 13 } else { 1 };

    #[test]
    fn tiles_cover_all_rows_once() {
        for (lanes, vectors) in [(1, 2), (4, 3), (8, 2), (16, 3)] {
            for rows in (0..400).step_by(STRIDE) {
                let t = Tiling::new(rows, lanes, vectors);
                let mut next = 0;
                for i in 0..t.count() {
                    let tile = t.tile(i);
                    assert_eq!(tile.rows.start, next);
                    assert!(!tile.rows.is_empty() && tile.vectors <= vectors);
                    assert_eq!(tile.vectors, tile.rows.len().div_ceil(lanes));
                    next = tile.rows.end;
                }
                assert_eq!(next, rows);
            }
        }
        let widths = |rows| -> [usize; 3] {
            let t = Tiling::new(rows, 16, 3);
            core::array::from_fn(|i| if i < t.count() { t.tile(i).vectors } else { 0 })
        };
        assert_eq!(widths(64), [2, 2, 0]);
        assert_eq!(widths(112), [3, 2, 2]);
        assert_eq!(widths(16), [1, 0, 0]);
    }

    /// The tree by recursion: the value of the smallest dyadic interval that covers `lo..hi`, as nested text.
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
        let mut seed = 1u32;
        for n in (1..=40usize).step_by(STRIDE) {
            for round in 0..20usize.div_ceil(STRIDE) {
                let mut present = [false; 40];
                for p in &mut present[..n] {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    *p = round == 0 || seed >> 31 == 1;
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
