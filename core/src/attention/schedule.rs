//! The schedule: tiles over queries, blocks and segments over keys, and the merge tree.
//!
//! Keys are cut at multiples of the block size from the first key of the sequence, past included, and eight
//! blocks make a segment. A segment's keys fold into one state per row; the states of segments merge in the
//! balanced binary tree over segment numbers. Both cuts depend on the key's position alone, so a row meets
//! the same operations in the same order whatever tile it lies in, however many rows, heads, sequences or
//! threads there are; segments that a row does not attend are the identity and leave no trace.

use super::data::Inputs;
use super::mask::MaskElements;
use super::problem::Problem;
use super::sequence::Sequence;
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
}
