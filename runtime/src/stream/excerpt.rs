//! Copies a box of rows from a tensor to a buffer, and describes the layout of the box in the buffer.

use elsa_core::view::View;
use std::ops::Range;

/// A box of rows of a tensor, and its layout in a buffer. Counts and strides are in elements of `size` bytes. Row
/// `(b, h, t)` of the box begins at element `at + b·to[0] + h·to[1] + t·to[2]` of the buffer.
#[derive(Clone, Copy, Debug)]
pub struct Excerpt {
    /// The tensor.
    pub tensor: View,
    /// Size of an element in bytes.
    pub size: usize,
    /// Batch index, head and token of the first row.
    pub first: [usize; 3],
    /// Number of rows along the axes of batch, heads and tokens.
    pub count: [usize; 3],
    /// Index of the excerpt's first element within a row of the tensor.
    pub start: usize,
    /// Number of elements that the excerpt contains from each row.
    pub len: usize,
    /// Strides of the axes of batch, heads and tokens in the buffer.
    pub to: [usize; 3],
    /// Index in the buffer at which the first row begins.
    pub at: usize,
}

impl Excerpt {
    /// Returns the strides of the axes of batch, heads and tokens for a buffer that has room for `room` rows along each
    /// of these axes. Each row has `len` elements. Heads and tokens are in the same order as in the tensor, so that
    /// contiguous elements remain contiguous.
    #[must_use]
    pub fn strides(tensor: &View, room: [usize; 3], len: usize) -> [usize; 3] {
        let [_, head, token, _] = tensor.strides();
        let rows = room[1].saturating_mul(room[2]).saturating_mul(len);
        match tensor.heads() > 1 && head < token {
            true => [rows, len, room[1].saturating_mul(len)],
            false => [rows, room[2].saturating_mul(len), len],
        }
    }

    /// Calls `each(offset in the tensor, range in the buffer)`, both in bytes, for every piece that is contiguous both
    /// in the tensor and in the buffer.
    ///
    /// # Errors
    /// Returns the first error of `each`.
    pub fn pieces<E>(&self, mut each: impl FnMut(u64, Range<usize>) -> Result<(), E>) -> Result<(), E> {
        if self.len == 0 || self.count.contains(&0) {
            return Ok(());
        }
        let (mut offset, mut place) = (0usize, 0..0usize);
        // The inner axis is the one with the smaller stride.
        let heads_inside = self.to[1] < self.to[2] && self.count[1] > 1;
        let (outer, inner) = if heads_inside { (2, 1) } else { (1, 2) };
        for b in 0..self.count[0] {
            for o in 0..self.count[outer] {
                for i in 0..self.count[inner] {
                    let (h, t) = if heads_inside { (i, o) } else { (o, i) };
                    let row = self.tensor.row(self.first[0] + b, self.first[1] + h, self.first[2] + t);
                    let from = (row + self.start) * self.size;
                    let to = (self.at + b * self.to[0] + h * self.to[1] + t * self.to[2]) * self.size;
                    if from == offset + place.len() && to == place.end && !place.is_empty() {
                        place.end += self.len * self.size;
                        continue;
                    }
                    if !place.is_empty() {
                        each(offset as u64, place)?;
                    }
                    (offset, place) = (from, to..to + self.len * self.size);
                }
            }
        }
        each(offset as u64, place)
    }

    /// Returns the byte range of the rows in the buffer; `None` if there are no rows, or on overflow.
    #[must_use]
    pub fn place(&self) -> Option<Range<usize>> {
        if self.len == 0 || self.count.contains(&0) {
            return None;
        }
        let mut last = self.at;
        for (count, distance) in self.count.iter().zip(self.to) {
            last = last.checked_add((count - 1).checked_mul(distance)?)?;
        }
        let end = last.checked_add(self.len)?.checked_mul(self.size)?;
        Some(self.at * self.size..end)
    }

    /// Returns the offset in bytes from the start of the tensor to the first row of the excerpt.
    #[must_use]
    pub fn offset(&self) -> u64 {
        let [batch, head, token] = self.first;
        ((self.tensor.row(batch, head, token) + self.start) * self.size) as u64
    }

    /// Returns the number of bytes in the excerpt.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.count.iter().product::<usize>() * self.len * self.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elsa_core::view::Layout;

    /// Copies an excerpt in pieces. Checks every copied element, and that the number of pieces is `pieces`.
    fn check(layout: Layout, dims: &[usize], first: [usize; 3], count: [usize; 3], pieces: usize) {
        let tensor = View::dense("x", layout, dims, None).unwrap();
        let data: Vec<u8> = (0..tensor.extent()).map(|i| (i % 251) as u8).collect();
        let to = Excerpt::strides(&tensor, [count[0], count[1], count[2] + 1], tensor.dim());
        let excerpt = Excerpt { tensor, size: 1, first, count, start: 0, len: tensor.dim(), to, at: 3 };
        let mut buffer = vec![255u8; 3 + count[0] * count[1] * (count[2] + 1) * tensor.dim()];
        let mut seen = 0;
        let done: Result<(), ()> = excerpt.pieces(|offset, place| {
            seen += 1;
            let from = offset as usize;
            let n = place.len();
            buffer[place].copy_from_slice(&data[from..from + n]);
            Ok(())
        });
        assert_eq!((done, seen), (Ok(()), pieces), "{layout:?}");
        let reach: usize = count.iter().zip(to).map(|(n, distance)| n.saturating_sub(1) * distance).sum();
        let place = (!count.contains(&0)).then(|| 3..3 + reach + tensor.dim());
        assert_eq!(excerpt.place(), place);
        assert_eq!(excerpt.offset() as usize, tensor.row(first[0], first[1], first[2]));
        for b in 0..count[0] {
            for h in 0..count[1] {
                for t in 0..count[2] {
                    let from = tensor.row(first[0] + b, first[1] + h, first[2] + t);
                    let at = 3 + b * to[0] + h * to[1] + t * to[2];
                    assert_eq!(buffer[at..at + tensor.dim()], data[from..from + tensor.dim()]);
                }
            }
        }
    }

    #[test]
    fn what_is_consecutive_is_one_piece() {
        check(Layout::Bhnd, &[2, 3, 7, 5], [0, 1, 2], [2, 2, 4], 4);
        check(Layout::Bnhd, &[2, 7, 3, 5], [0, 0, 2], [2, 3, 4], 2);
        check(Layout::Bnhd, &[2, 7, 3, 5], [1, 1, 0], [1, 2, 4], 4);
        check(Layout::Bhnd, &[2, 3, 7, 5], [1, 2, 6], [1, 1, 1], 1);
        check(Layout::Bhnd, &[2, 3, 7, 5], [1, 2, 6], [1, 1, 0], 0);
    }
}
