//! Windows of a picture, as in Swin transformers. Each window is a sequence of the batch.
//!
//! A picture of `H × W` tokens is cut into windows of `h × w`; token `i` of a window is at `(i / w, i mod w)`. One call
//! computes all windows of all pictures: sequence `b` of the batch is window `b mod ((H / h) (W / w))` of its picture, in
//! row-major order.
//!
//! # Relative positions
//!
//! The entry of a relative-position table for query token `(r, c)` and key token `(r', c')` of a window is
//!
//! ```text
//! (r − r' + h − 1) (2 w − 1) + (c − c' + w − 1)
//! ```
//!
//! so a table has `(2 h − 1) (2 w − 1)` entries. The entry equals `P(i) − P(j) + P(h w − 1)` with
//! `P(t) = (t / w) (2 w − 1) + t mod w`, so no index of pairs is stored.
//!
//! # Shifted windows
//!
//! With a shift `(a, b)` the caller has rolled the picture by `(−a, −b)`. In the windows at the bottom of the picture,
//! the last `a` rows then come from the top of the picture; in the windows at the right, the last `b` columns come from
//! the left. A token only attends tokens on the same side of these boundaries. The mask follows from the position of
//! the window and is never stored.

use crate::argument::ArgumentError;
use core::ops::Range;

/// The windows of a picture. Each size is a number of rows and a number of columns, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Windows {
    /// Size of the picture, `[H, W]`: multiples of the window's size.
    pub picture: [usize; 2],
    /// Size of a window, `[h, w]`. The tokens of a window are the queries and the keys of a sequence, in row-major order.
    pub size: [usize; 2],
    /// Rows and columns by which the picture was rolled, each less than the window's size; zeros if windows are not
    /// shifted.
    pub shift: [usize; 2],
}

/// The division of a shifted window into sides, by a boundary between two rows and a boundary between two columns. In a
/// direction that is not divided, the boundary is the end of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sides {
    /// Number of columns of the window.
    columns: usize,
    /// First row after the boundary; the number of rows if rows are not divided.
    row: usize,
    /// First column after the boundary; the number of columns if columns are not divided.
    column: usize,
}

impl Sides {
    /// Returns the side of `token`, 0 to 3. Tokens on the same side attend each other.
    #[inline]
    #[must_use]
    pub const fn of(&self, token: usize) -> u8 {
        (token / self.columns >= self.row) as u8 * 2 + (token % self.columns >= self.column) as u8
    }

    /// Returns the common side of `tokens`, which must not be empty; `None` if they are on different sides.
    #[must_use]
    pub fn common(&self, mut tokens: Range<usize>) -> Option<u8> {
        let first = self.of(tokens.next()?);
        tokens.all(|token| self.of(token) == first).then_some(first)
    }
}

impl Windows {
    /// Returns the number of tokens per window.
    #[must_use]
    pub const fn tokens(&self) -> usize {
        self.size[0] * self.size[1]
    }

    /// Returns the number of windows per picture.
    #[must_use]
    pub const fn count(&self) -> usize {
        (self.picture[0] / self.size[0]) * (self.picture[1] / self.size[1])
    }

    /// Returns the number of entries of a relative-position table.
    #[must_use]
    pub const fn entries(&self) -> usize {
        (2 * self.size[0] - 1) * (2 * self.size[1] - 1)
    }

    /// Returns `P(token)`, the number from which indices into a relative-position table are computed: the entry for query
    /// token `i` and key token `j` is `P(i) + P(tokens − 1) − P(j)`.
    #[inline]
    #[must_use]
    pub const fn place(&self, token: usize) -> usize {
        (token / self.size[1]) * (2 * self.size[1] - 1) + token % self.size[1]
    }

    /// Returns the index, in a relative-position table, of the entry for query token `i` and key token `j`.
    #[inline]
    #[must_use]
    pub const fn entry(&self, i: usize, j: usize) -> usize {
        self.place(i) + self.place(self.tokens() - 1) - self.place(j)
    }

    /// Returns the division of the window of sequence `batch` into sides; `None` if all tokens of the window attend each
    /// other.
    #[must_use]
    pub const fn sides(&self, batch: usize) -> Option<Sides> {
        let [rows, columns] = [self.picture[0] / self.size[0], self.picture[1] / self.size[1]];
        let window = batch % (rows * columns);
        let below = window / columns == rows - 1 && self.shift[0] > 0;
        let right = window % columns == columns - 1 && self.shift[1] > 0;
        if !below && !right {
            return None;
        }
        let [h, w] = self.size;
        Some(Sides {
            columns: w,
            row: if below { h - self.shift[0] } else { h },
            column: if right { w - self.shift[1] } else { w },
        })
    }

    /// Returns `true` if query token `i` of sequence `batch` attends key token `j`.
    #[inline]
    #[must_use]
    pub fn attends(&self, batch: usize, i: usize, j: usize) -> bool {
        self.sides(batch).is_none_or(|sides| sides.of(i) == sides.of(j))
    }

    /// Returns `true` if the windows are shifted. Some windows are then divided into sides whose tokens do not attend each
    /// other.
    #[must_use]
    pub const fn is_shifted(&self) -> bool {
        self.shift[0] > 0 || self.shift[1] > 0
    }

    /// Checks that the windows match a batch of `batch` sequences with `queries` query tokens and `keys` key tokens.
    pub(super) fn check(&self, batch: usize, queries: usize, keys: usize) -> Result<(), ArgumentError> {
        use ArgumentError as E;
        for (a, axis) in ["height", "width"].into_iter().enumerate() {
            let (size, picture, shift) = (self.size[a], self.picture[a], self.shift[a]);
            if size == 0 {
                return Err(E::Zero { argument: "windows.size", axis });
            }
            if picture == 0 {
                return Err(E::Zero { argument: "windows.picture", axis });
            }
            if !picture.is_multiple_of(size) {
                let (argument, of) = ("windows.picture", "windows.size");
                return Err(E::Multiple { argument, axis, found: picture, allowed: size, of });
            }
            if shift >= size {
                return Err(E::Count { argument: "windows.shift", found: shift, min: 0, max: size - 1 });
            }
        }
        // Sizes whose product overflows have more tokens than any tensor.
        let tokens = self.size[0].saturating_mul(self.size[1]);
        for (allowed, of) in [(queries, "q"), (keys, "k")] {
            if tokens != allowed {
                let (argument, axis) = ("windows.size", "tokens");
                return Err(E::Mismatch { argument, axis, found: tokens, allowed, of });
            }
        }
        let count = (self.picture[0] / self.size[0]).saturating_mul(self.picture[1] / self.size[1]);
        if !batch.is_multiple_of(count) {
            let (argument, of) = ("q", "windows.picture in windows");
            return Err(E::Multiple { argument, axis: "batch", found: batch, allowed: count, of });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_those_of_coordinates() {
        for size in [[1, 1], [7, 7], [2, 5], [5, 2], [8, 8]] {
            let windows = Windows { picture: size, size, shift: [0, 0] };
            let [h, w] = size;
            let mut seen = [false; 15 * 15];
            for i in 0..h * w {
                for j in 0..h * w {
                    let (down, across) = (i / w + h - 1 - j / w, i % w + w - 1 - j % w);
                    assert_eq!(windows.entry(i, j), down * (2 * w - 1) + across);
                    seen[windows.entry(i, j)] = true;
                }
            }
            assert_eq!(seen.iter().filter(|seen| **seen).count(), windows.entries());
            assert!(seen[..windows.entries()].iter().all(|seen| *seen));
        }
    }

    /// Compares the sides with regions numbered over the entire picture, as in Swin's reference: three bands in each
    /// direction.
    #[test]
    fn sides_are_the_regions_of_the_picture() {
        for (picture, size, shift) in
            [([14, 21], [7, 7], [3, 3]), ([4, 6], [2, 3], [1, 0]), ([4, 6], [4, 2], [0, 1])]
        {
            let windows = Windows { picture, size, shift };
            let band = |x: usize, a: usize| match x {
                x if x < picture[a] - size[a] => 0,
                x if x < picture[a] - shift[a] => 1,
                _ => 2,
            };
            let across = picture[1] / size[1];
            for batch in 0..2 * windows.count() {
                let window = batch % windows.count();
                let region = |t: usize| {
                    let (r, c) =
                        (window / across * size[0] + t / size[1], window % across * size[1] + t % size[1]);
                    (band(r, 0), band(c, 1))
                };
                let mut divided = false;
                for i in 0..windows.tokens() {
                    for j in 0..windows.tokens() {
                        let same = region(i) == region(j);
                        assert_eq!(windows.attends(batch, i, j), same, "{windows:?} {batch} {i} {j}");
                        divided |= !same;
                    }
                }
                assert_eq!(windows.sides(batch).is_some(), divided);
            }
        }
    }

    #[test]
    fn tokens_on_one_side_have_it_in_common() {
        let windows = Windows { picture: [4, 4], size: [4, 4], shift: [1, 2] };
        let sides = windows.sides(0).unwrap();
        assert_eq!([0..2, 2..4, 12..14, 14..16].map(|tokens| sides.common(tokens)), [0, 1, 2, 3].map(Some));
        assert_eq!([1..3, 0..16, 3..3].map(|tokens| sides.common(tokens)), [None; 3]);
    }
}
