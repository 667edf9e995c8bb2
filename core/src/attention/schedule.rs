//! The schedule: tiles over queries, blocks and segments over keys, and the merge tree.
//!
//! Keys are cut into blocks, and eight blocks make a segment. The keys of a segment are folded into one state per row,
//! block by block. The states of segments merge in the balanced binary tree over segment numbers. Query rows are cut
//! into tiles, whose rows are computed together.
//!
//! **The naive way** starts the blocks of a tile at the first key that the tile attends, and divides the keys
//! evenly among workers. The order of additions in a row then depends on the other rows of the tile and on the machine.
//!
//! **Why the code differs.**
//!
//! 1. *Keys are cut by position alone*: at multiples of the block size from the first key of the sequence,
//!    including the past. A row executes the same operations in the same order in any tile, and for any number of
//!    rows, heads, sequences or threads.
//! 2. *The tree is over segment numbers.* A segment that a row does not attend has the identity as its state, and merging
//!    it keeps all bits. Segments bound the longest chain of additions, and the tree only adds its depth.
//! 3. *Tiles only affect speed.* The rows of a tile are lanes of vectors and never mix, so [`Tiling`] may choose
//!    any widths.
//! 4. *Intervals decide coverage.* Lengths, causality and window restrict each row to an interval of keys whose ends never
//!    decrease with the row. The first and last rows of a tile therefore decide whether the tile attends none, all or some
//!    of the keys in a range ([`coverage`], [`restrict`]). Only masks, biases and the sides of shifted windows are
//!    evaluated key by key ([`divide`]).

use super::problem::Problem;
use super::sequence::Sequence;
use super::windows::Sides;
use core::ops::Range;

/// Number of blocks per segment. The keys of a segment are folded into one state before states merge.
pub const BLOCKS_PER_SEGMENT: usize = 8;

/// Cuts query rows into tiles of at most `vectors` vectors of `lanes` rows.
///
/// Every tile except the last is `vectors` vectors wide. There is one other exception: if tiles of three vectors would
/// leave a single vector, the last four vectors form two tiles of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiling {
    rows: usize,
    lanes: usize,
    vectors: usize,
    whole: usize,
    left: usize,
}

/// A query tile: consecutive query rows that are computed together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryTile {
    /// The rows, as indices within the sequence.
    pub rows: Range<usize>,
    /// Number of vectors that the rows occupy.
    pub vectors: usize,
}

impl Tiling {
    /// Cuts `rows` rows into tiles.
    #[must_use]
    pub const fn new(rows: usize, lanes: usize, vectors: usize) -> Tiling {
        let all = rows.div_ceil(lanes);
        let spare = if vectors == 3 && all > 3 && all % 3 == 1 { 1 } else { 0 };
        let whole = all / vectors - spare;
        Tiling { rows, lanes, vectors, whole, left: all - whole * vectors }
    }

    /// Returns the number of tiles.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.whole + self.left.div_ceil(self.left_width())
    }

    const fn left_width(&self) -> usize {
        if self.left == 4 { 2 } else { self.vectors }
    }

    /// Returns tile `t`, which must be less than [`Tiling::count`].
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

/// Extent to which the query rows of a tile attend a range of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// No row attends any key, so the tile can skip these keys.
    Skip,
    /// Every row attends every key, and no mask, bias or sides of a shifted window apply key by key. The kernel adds
    /// nothing to the scores.
    Full,
    /// Any other case. The kernel adds a bias to the scores.
    Partial,
}

/// Returns the coverage of the given rows and keys, as determined by lengths, causality and window. Masks, biases and
/// the sides of a shifted window are not evaluated: if they apply key by key, the result is never `Full`.
#[must_use]
pub fn coverage(problem: &Problem, sequence: &Sequence, rows: Range<usize>, keys: Range<usize>) -> Coverage {
    covered(problem, sequence, &sequence.ranges(rows), &keys)
}

/// Returns [`coverage`] for rows whose intervals are known: `ranges` are the result of [`Sequence::ranges`].
#[inline]
#[must_use]
pub fn covered(
    problem: &Problem,
    sequence: &Sequence,
    (any, all): &(Range<usize>, Range<usize>),
    keys: &Range<usize>,
) -> Coverage {
    if keys.start.max(any.start) >= keys.end.min(any.end) {
        Coverage::Skip
    } else if !problem.modifies(sequence.batch) && all.start <= keys.start && keys.end <= all.end {
        Coverage::Full
    } else {
        Coverage::Partial
    }
}

/// Writes `−∞` to `bias` (`[key][width]`, one column per row of the tile) where lengths, causality or window
/// exclude a key from a row, and leaves the other elements unchanged.
///
/// # Panics
/// Panics if `bias` is shorter than `keys.len() · width`, or if `width` is less than the number of rows.
pub fn restrict(sequence: &Sequence, rows: Range<usize>, keys: Range<usize>, width: usize, bias: &mut [f32]) {
    // Bounds relative to the tile fit in 32 bits. Columns past the last row attend every key.
    const LANES: usize = 16;
    let bias = &mut bias[..keys.len() * width];
    // Keys that every row attends keep their elements.
    let (_, all) = sequence.ranges(rows.clone());
    let all = all.start.saturating_sub(keys.start)..all.end.saturating_sub(keys.start);
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
        for (j, line) in bias.chunks_exact_mut(width).enumerate().filter(|(j, _)| !all.contains(j)) {
            let j = j as i32;
            for ((b, s), e) in line[first..first + take].iter_mut().zip(&start).zip(&end) {
                *b = if j >= *s && j < *e { *b } else { f32::NEG_INFINITY };
            }
        }
    }
}

/// Writes `−∞` to `bias` (`[key][width]`, one column per row of the tile) where a query and a key are on different
/// sides of a shifted window, and leaves the other elements unchanged.
///
/// # Panics
/// Panics if `bias` is shorter than `keys.len() · width`, or if `width` is less than the number of rows.
pub fn divide(sides: &Sides, rows: Range<usize>, keys: Range<usize>, width: usize, bias: &mut [f32]) {
    const LANES: usize = 16;
    let bias = &mut bias[..keys.len() * width];
    for first in (0..width).step_by(LANES) {
        let take = LANES.min(width - first);
        // Columns past the last row may have any side.
        let own: [u8; LANES] = core::array::from_fn(|column| sides.of(rows.start + first + column));
        for (line, key) in bias.chunks_exact_mut(width).zip(keys.clone()) {
            let side = sides.of(key);
            for (b, own) in line[first..first + take].iter_mut().zip(&own) {
                *b = if *own == side { *b } else { f32::NEG_INFINITY };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Step between the tested sizes. Miri is slow, so it tests fewer sizes.
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
}
