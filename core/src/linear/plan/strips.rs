//! Divides the value columns of a state into strips.

use core::ops::Range;

/// Widths of the strips that divide columns: wide strips first, then narrow ones. The last strip may be padded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strips {
    /// Number of columns of a wide strip.
    pub wide: usize,
    /// Number of columns of a narrow strip.
    pub narrow: usize,
}

/// A strip of columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripColumns {
    /// Index of the strip's first column.
    pub first: usize,
    /// Number of columns of the strip, including padding.
    pub width: usize,
}

impl Strips {
    /// Creates strips with `wide` columns per wide strip and `narrow` columns per narrow strip. Both are at least one.
    #[must_use]
    pub const fn new(wide: usize, narrow: usize) -> Strips {
        let narrow = if narrow == 0 { 1 } else { narrow };
        Strips { wide: if wide < narrow { narrow } else { wide }, narrow }
    }

    /// Returns the number of strips that `columns` columns are divided into.
    #[must_use]
    pub const fn count(&self, columns: usize) -> usize {
        columns / self.wide + (columns % self.wide).div_ceil(self.narrow)
    }

    /// Returns the strip with index `index` of the strips into which `columns` columns are divided.
    #[must_use]
    pub const fn strip(&self, columns: usize, index: usize) -> StripColumns {
        let wide = columns / self.wide;
        match index < wide {
            true => StripColumns { first: index * self.wide, width: self.wide },
            false => {
                StripColumns { first: wide * self.wide + (index - wide) * self.narrow, width: self.narrow }
            }
        }
    }

    /// Returns the total width, including padding, of the strips into which `columns` columns are divided.
    #[must_use]
    pub const fn padded(&self, columns: usize) -> usize {
        let wide = columns / self.wide * self.wide;
        wide + (columns - wide).div_ceil(self.narrow) * self.narrow
    }

    /// Returns the columns, including padding, of the strips with the indices `range`, if `columns` columns are divided
    /// into strips.
    #[must_use]
    pub const fn columns(&self, columns: usize, range: &Range<usize>) -> Range<usize> {
        if range.start >= range.end {
            return 0..0;
        }
        let last = self.strip(columns, range.end - 1);
        self.strip(columns, range.start).first..last.first + last.width
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strips_cover_every_column_once() {
        for (wide, narrow) in [(32, 16), (16, 16), (8, 4), (64, 16), (1, 1)] {
            let strips = Strips::new(wide, narrow);
            for columns in 1..200 {
                let count = strips.count(columns);
                let mut next = 0;
                for index in 0..count {
                    let strip = strips.strip(columns, index);
                    assert_eq!(strip.first, next);
                    assert!(strip.width == wide || strip.width == narrow);
                    assert!(strip.first < columns, "an empty strip");
                    next += strip.width;
                }
                assert_eq!(next, strips.padded(columns));
                assert!((columns..columns + narrow).contains(&next));
                assert_eq!(strips.columns(columns, &(0..count)), 0..next);
                assert_eq!(strips.columns(columns, &(1..1)), 0..0);
            }
        }
    }
}
