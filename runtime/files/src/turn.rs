//! Converts elements from Fortran order (first axis fastest) to C order.

use super::memory;
use super::part::Part;
use super::places::Places;
use super::stored::{Fault, Header};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Maximum size of a tile in bytes. A conversion keeps two tiles in memory.
const TILE: usize = 256 << 10;

/// Converts the elements of a tensor from Fortran order to C order: reads them from byte `start` of `from` on, and
/// writes them to `to`, one tile at a time.
///
/// # Errors
/// Returns [`TurnError::Unread`] if a read fails or the system refuses memory, and [`TurnError::Unwritten`] if a write
/// to `to` fails.
pub fn turn(from: &File, start: u64, header: &Header, to: &File) -> Result<(), TurnError> {
    let (shape, size) = (&header.shape, header.dtype.size());
    let whole: usize = shape.iter().product();
    if whole == 0 {
        return Ok(());
    }
    let mut tile = shape.clone();
    while tile.iter().product::<usize>() * size > TILE {
        match tile.iter_mut().max() {
            Some(most) if *most > 1 => *most = most.div_ceil(2),
            _ => break,
        }
    }
    let bytes = tile.iter().product::<usize>() * size;
    let buffer = || -> Result<Vec<u8>, TurnError> {
        let mut bytes_of = memory::reserved(bytes).map_err(Fault::Memory)?;
        bytes_of.resize(bytes, 0);
        Ok(bytes_of)
    };
    let (mut read, mut turned) = (buffer()?, buffer()?);
    let axes = shape.iter().zip(&tile);
    let tiles: Vec<usize> = axes.clone().map(|(n, tile)| n.div_ceil(*tile)).collect();
    for number in 0..tiles.iter().product() {
        // Tiles are numbered in C order, so their last axis is the fastest.
        let mut left: usize = number;
        let mut picks: Vec<Option<Vec<Range<usize>>>> = axes
            .clone()
            .zip(&tiles)
            .rev()
            .map(|((n, tile), count)| {
                let first = left % count * tile;
                left /= count;
                Some(std::iter::once(first..(first + tile).min(*n)).collect())
            })
            .collect();
        // The file's elements are in C order with respect to the reversed axes.
        let reversed: Vec<usize> = shape.iter().rev().copied().collect();
        let source = Part::of(&reversed, &picks)?;
        picks.reverse();
        let target = Part::of(shape, &picks)?;
        let mut at = 0;
        for range in source.ranges() {
            let piece = &mut read[at..at + range.len() * size];
            from.read_exact_at(piece, start + (range.start * size) as u64).map_err(Fault::Io)?;
            at += piece.len();
        }
        let mut places = Places::of(&target.shape);
        for element in read[..at].chunks_exact(size) {
            turned[places.next() * size..][..size].copy_from_slice(element);
        }
        at = 0;
        for range in target.ranges() {
            let piece = &turned[at..at + range.len() * size];
            to.write_all_at(piece, (range.start * size) as u64).map_err(TurnError::Unwritten)?;
            at += piece.len();
        }
    }
    Ok(())
}

/// Error from the conversion of elements to C order.
#[derive(Debug)]
pub enum TurnError {
    /// The elements cannot be read, or the system refuses memory.
    Unread(Fault),
    /// The elements cannot be written.
    Unwritten(std::io::Error),
}

impl From<Fault> for TurnError {
    fn from(fault: Fault) -> TurnError {
        TurnError::Unread(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::super::stored::Stored;
    use super::*;
    use std::io::{Read, Write};

    /// Computes the index along each axis of element `i` of a tensor that is stored in Fortran order.
    fn index(mut i: usize, shape: &[usize]) -> Vec<usize> {
        shape
            .iter()
            .map(|n| {
                let at = i % n;
                i /= n;
                at
            })
            .collect()
    }

    #[test]
    fn files_of_any_shape_are_turned_tile_by_tile() {
        for (shape, dtype) in [
            (vec![2, 3, 700, 65], Stored::F32),
            (vec![300, 299], Stored::F64),
            (vec![70_001, 3], Stored::F16),
            (vec![3, 100_003], Stored::F16),
            (vec![23, 1, 22, 24, 25], Stored::Bool),
            (vec![5], Stored::I64),
            (vec![], Stored::F32),
            (vec![4, 0, 2], Stored::F32),
        ] {
            let (count, size) = (shape.iter().product::<usize>(), dtype.size());
            let header = Header { dtype, shape: shape.clone(), bytes: count * size, fortran: true };
            let element = |i: usize| (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
            let mut from = tempfile::tempfile().unwrap();
            from.write_all(&[9; 77]).unwrap();
            let all: Vec<u8> = (0..count).flat_map(|i| element(i)[8 - size..].to_vec()).collect();
            from.write_all(&all).unwrap();
            let mut to = tempfile::tempfile().unwrap();
            turn(&from, 77, &header, &to).unwrap();
            let mut found = Vec::new();
            to.read_to_end(&mut found).unwrap();
            assert_eq!(found.len(), count * size);
            for i in 0..count {
                let place = index(i, &shape).iter().zip(&shape).fold(0, |place, (at, n)| place * n + at);
                assert_eq!(found[place * size..][..size], element(i)[8 - size..], "{shape:?} {i}");
            }
        }
    }
}
