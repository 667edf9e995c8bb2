//! Reads parts of tensors: selected indices along each axis.

use super::contents::{self, Accept, Contents};
use super::npz::CopyError;
use super::source::Format;
use super::stored::{Fault, Header};
use super::{npy, npz, safetensors};
use std::io::{self, Cursor, Read, Seek, SeekFrom};
use std::ops::Range;

/// A part of a tensor: the elements at selected indices along each axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Sizes of the part's axes.
    pub shape: Vec<usize>,
    /// Positions of the part's elements among all elements of the tensor, as ranges in the order of the part.
    ranges: Vec<Range<usize>>,
    /// Selected indices along each axis.
    spans: Vec<Vec<Range<usize>>>,
}

impl Part {
    /// Selects a part of a tensor of shape `shape`. `picks` contains a list of index ranges for each axis, and the part
    /// contains the indices in the order of these ranges. `None` selects the entire axis. Indices beyond the end of the
    /// axis are dropped.
    ///
    /// # Errors
    /// Returns an error if the system refuses memory for the ranges.
    pub fn of(shape: &[usize], picks: &[Option<Vec<Range<usize>>>]) -> Result<Part, Fault> {
        let spans: Vec<Vec<Range<usize>>> = shape
            .iter()
            .enumerate()
            .map(|(axis, &n)| match picks.get(axis) {
                Some(Some(pick)) => pick.iter().map(|span| span.start.min(n)..span.end.min(n)).collect(),
                _ => std::iter::once(0..n).collect(),
            })
            .collect();
        let sizes = spans.iter().map(|spans| spans.iter().map(Range::len).sum());
        let mut part = Part { shape: sizes.collect(), ranges: Vec::new(), spans: Vec::new() };
        if !part.shape.contains(&0) {
            part.descend(shape, &spans, 0)?;
        }
        part.spans = spans;
        Ok(part)
    }

    /// Returns the positions of the part's elements among all elements of the tensor, as ranges in the order of the part.
    #[must_use]
    pub(crate) fn ranges(&self) -> &[Range<usize>] {
        &self.ranges
    }

    /// Converts a part with positions in C order to the same part of a tensor of shape `shape` whose elements are
    /// stored in Fortran order. The part's elements are then also in Fortran order.
    fn in_fortran_order(self, shape: &[usize]) -> Result<Part, Fault> {
        let reversed: Vec<usize> = shape.iter().rev().copied().collect();
        let picks: Vec<_> = self.spans.into_iter().rev().map(Some).collect();
        Ok(Part { shape: self.shape, ..Part::of(&reversed, &picks)? })
    }

    /// Adds the positions of the selected elements of one subtensor to `self.ranges`. The subtensor begins at position
    /// `base`, its axes have the sizes `shape`, and `spans` contains the selected indices along each of these axes.
    fn descend(&mut self, shape: &[usize], spans: &[Vec<Range<usize>>], base: usize) -> Result<(), Fault> {
        let (Some((&n, below)), Some((here, deeper))) = (shape.split_first(), spans.split_first()) else {
            return self.push(base..base + 1);
        };
        let inner: usize = below.iter().product();
        let whole = deeper.iter().zip(below).all(|(spans, n)| matches!(&spans[..], [one] if one.len() == *n));
        for span in here {
            if whole {
                self.push(base + span.start * inner..base + span.end * inner)?;
            } else {
                for index in span.clone() {
                    self.descend(below, deeper, base + index * inner)?;
                }
            }
        }
        debug_assert!(here.iter().all(|span| span.end <= n));
        Ok(())
    }

    fn push(&mut self, range: Range<usize>) -> Result<(), Fault> {
        match self.ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => {
                let bytes = self.ranges.len().saturating_add(1).saturating_mul(size_of::<Range<usize>>());
                self.ranges.try_reserve(1).map_err(|_| Fault::Memory(bytes))?;
                self.ranges.push(range);
            }
        }
        Ok(())
    }
}

/// Returns the shape of the tensor `name` in a file of `length` bytes without reading its elements.
///
/// # Errors
/// Returns the errors of [`read`](super::read).
pub fn shape(
    mut file: impl Read + Seek,
    length: u64,
    format: Format,
    name: Option<&str>,
) -> Result<Vec<usize>, Fault> {
    let name = name.unwrap_or_default();
    match format {
        Format::Npy => Ok(npy::header(&mut file, length)?.shape),
        Format::Npz => Ok(npz::header(file, length, name)?.0.shape),
        Format::Safetensors => {
            Ok(safetensors::Directory::read(&mut file, length)?.find(name).map(|(header, _)| header.shape)?)
        }
    }
}

/// Reads one part of a tensor; `part` computes the part from the tensor's shape. If the file is an `.npy` or a
/// `.safetensors` file, only the bytes of the part are read. A stored member of an `.npz` file is first read once to
/// compare its checksum, and a deflated member is first unpacked into memory.
///
/// # Errors
/// Returns the errors of [`read`](super::read).
pub fn read_part(
    mut file: impl Read + Seek,
    length: u64,
    format: Format,
    name: Option<&str>,
    accept: Accept,
    part: &dyn Fn(&[usize]) -> Result<Part, Fault>,
) -> Result<Contents, Fault> {
    let name = name.unwrap_or_default();
    match format {
        Format::Npy => {
            let header = npy::header(&mut file, length)?;
            let start = file.stream_position()?;
            select(file, start, header, accept, part)
        }
        Format::Npz => {
            if let (header, Some(start)) = npz::header(&mut file, length, name)? {
                npz::copy(&mut file, length, name, io::sink()).map_err(|fault| match fault {
                    CopyError::Unread(fault) => fault,
                    CopyError::Unwritten(e) => e.into(),
                })?;
                return select(file, start, header, accept, part);
            }
            let (header, bytes) = npz::member(file, length, name, |member, length| {
                let header = npy::header(member, length)?;
                let mut bytes = Vec::new();
                bytes.try_reserve_exact(header.bytes).map_err(|_| Fault::Memory(header.bytes))?;
                member.take(header.bytes as u64).read_to_end(&mut bytes)?;
                Ok((header, bytes))
            })?;
            select(Cursor::new(bytes), 0, header, accept, part)
        }
        Format::Safetensors => {
            let directory = safetensors::Directory::read(&mut file, length)?;
            let (header, start) = directory.find(name)?;
            select(file, start, header, accept, part)
        }
    }
}

/// Reads the part of a tensor; the tensor's elements start at byte `start` of `file`.
fn select(
    file: impl Read + Seek,
    start: u64,
    header: Header,
    accept: Accept,
    part: &dyn Fn(&[usize]) -> Result<Part, Fault>,
) -> Result<Contents, Fault> {
    let mut part = part(&header.shape)?;
    if header.fortran {
        part = part.in_fortran_order(&header.shape)?;
    }
    let Part { shape, ranges, .. } = part;
    let size = header.dtype.size();
    let bytes = ranges.iter().map(|range| range.len() * size).sum();
    let mut chosen = Chosen { file, start, size, ranges: ranges.into_iter(), left: 0 };
    contents::elements(&mut chosen, Header { shape, bytes, ..header }, accept)
}

/// Reader that yields the bytes of the selected ranges of elements, one range after another.
struct Chosen<F> {
    file: F,
    start: u64,
    size: usize,
    ranges: std::vec::IntoIter<Range<usize>>,
    /// Number of unread bytes in the current range.
    left: usize,
}

impl<F: Read + Seek> Read for Chosen<F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.left == 0 {
            let Some(range) = self.ranges.next() else { return Ok(0) };
            self.file.seek(SeekFrom::Start(self.start + (range.start * self.size) as u64))?;
            self.left = range.len() * self.size;
        }
        let most = buffer.len().min(self.left);
        let read = self.file.read(&mut buffer[..most])?;
        self.left -= read;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::super::stored::Stored;
    use super::*;
    use crate::Data;
    use crate::memory::Buffer;

    /// Builds an `.npy` file whose elements are consecutive numbers.
    fn file(shape: &[usize]) -> Vec<u8> {
        let mut file = Vec::new();
        npy::write_header(&mut file, Stored::F32, shape).unwrap();
        for i in 0..shape.iter().product() {
            file.extend((i as f32).to_le_bytes());
        }
        file
    }

    #[test]
    fn parts_are_the_picked_indices_in_order() {
        let shape = [2, 3, 7, 2];
        for picks in [
            vec![None, None, Some(vec![5..7, 0..2]), None],
            vec![None, None, Some(vec![1..2, 0..0]), Some(vec![1..2, 0..0])],
            vec![None, Some(vec![2..3, 0..1]), Some(vec![3..9, 0..1])],
            vec![Some(vec![1..2, 0..0])],
            vec![None, None, Some(vec![])],
            vec![],
        ] {
            let bytes = file(&shape);
            let part = |shape: &[usize]| Part::of(shape, &picks);
            let contents =
                read_part(Cursor::new(&bytes), bytes.len() as u64, Format::Npy, None, Accept::Float, &part);
            let contents = contents.unwrap();
            let lists: Vec<Vec<usize>> = (0..4)
                .map(|axis| match picks.get(axis) {
                    Some(Some(spans)) => {
                        spans.iter().cloned().flatten().filter(|i| *i < shape[axis]).collect()
                    }
                    _ => (0..shape[axis]).collect(),
                })
                .collect();
            let mut want = Vec::new();
            for a in &lists[0] {
                for b in &lists[1] {
                    for c in &lists[2] {
                        want.extend(lists[3].iter().map(|d| (((a * 3 + b) * 7 + c) * 2 + d) as f32));
                    }
                }
            }
            assert_eq!(contents.shape, lists.iter().map(Vec::len).collect::<Vec<_>>());
            let Data::Float(Buffer::F32(x)) = contents.data else { panic!() };
            assert_eq!(x, want, "{picks:?}");
            // The same elements, stored in Fortran order, yield the same part.
            let axes: String = shape.iter().map(|n| format!("{n}, ")).collect();
            let header = format!("{{'descr': '<f4', 'fortran_order': True, 'shape': ({axes}), }}");
            let mut turned = b"\x93NUMPY\x01\x00".to_vec();
            turned.extend((header.len() as u16).to_le_bytes());
            turned.extend(header.as_bytes());
            for i in 0..84 {
                let (a, b, c, d) = (i % 2, i / 2 % 3, i / 6 % 7, i / 42);
                turned.extend(((((a * 3 + b) * 7 + c) * 2 + d) as f32).to_le_bytes());
            }
            let part =
                read_part(Cursor::new(&turned), turned.len() as u64, Format::Npy, None, Accept::Float, &part);
            let Data::Float(Buffer::F32(x)) = part.unwrap().data else { panic!() };
            assert_eq!(x, want, "{picks:?}");
            let found = super::shape(Cursor::new(&bytes), bytes.len() as u64, Format::Npy, None).unwrap();
            assert_eq!(found, shape);
        }
    }

    /// Checks that only the bytes of the part are read.
    #[test]
    fn the_rest_is_not_read() {
        struct Counted(Cursor<Vec<u8>>, usize);
        impl Read for Counted {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let read = self.0.read(buffer)?;
                self.1 += read;
                Ok(read)
            }
        }
        impl Seek for Counted {
            fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
                self.0.seek(to)
            }
        }
        let bytes = file(&[4, 1000, 8]);
        let length = bytes.len() as u64;
        let mut counted = Counted(Cursor::new(bytes), 0);
        let part = |shape: &[usize]| Part::of(shape, &[None, Some(vec![900..910, 3..8])]);
        let contents = read_part(&mut counted, length, Format::Npy, None, Accept::Float, &part).unwrap();
        assert_eq!(contents.shape, [4, 15, 8]);
        assert_eq!(counted.1, 128 + 4 * 15 * 8 * 4);
    }
}
