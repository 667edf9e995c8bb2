//! Sources of the bytes of tensors, and their destinations.

use super::excerpt::Excerpt;
use std::io;
use std::ops::Range;

/// Source of the bytes of tensors: files, a network, a callback. `N` names a tensor: an operand of a call, or a weight
/// of a layer.
///
/// A closure `FnMut(N, u64, &mut [u8]) -> io::Result<()>` is a source.
pub trait Source<N> {
    /// Fills `to` with the bytes of tensor `name` from byte `offset` on. A tensor's bytes are those of its elements in
    /// memory, little-endian, without a header.
    ///
    /// # Errors
    /// Returns the cause if the bytes cannot be read. A tensor that ends early is
    /// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof).
    fn read(&mut self, name: N, offset: u64, to: &mut [u8]) -> io::Result<()>;
}

impl<N, F: FnMut(N, u64, &mut [u8]) -> io::Result<()>> Source<N> for F {
    fn read(&mut self, name: N, offset: u64, to: &mut [u8]) -> io::Result<()> {
        self(name, offset, to)
    }
}

/// Destination of the bytes of outputs: files, a network, a callback. `N` names an output.
pub trait Sink<N> {
    /// Takes the bytes of output `operand` from byte `offset` on. Every byte of an output's rows is handed over once;
    /// bytes between rows are not.
    ///
    /// # Errors
    /// Returns an error if the bytes cannot be taken.
    fn write(&mut self, operand: N, offset: u64, from: &[u8]) -> io::Result<()>;

    /// Records that all outputs of a unit have been passed. Units are finished in order.
    ///
    /// # Errors
    /// Returns the cause if that fails.
    fn finished(&mut self, unit: usize) -> io::Result<()> {
        let _ = unit;
        Ok(())
    }

    /// Records that a part has been computed.
    fn advanced(&mut self) {}
}

impl<N, F: FnMut(N, u64, &[u8]) -> io::Result<()>> Sink<N> for F {
    fn write(&mut self, operand: N, offset: u64, from: &[u8]) -> io::Result<()> {
        self(operand, offset, from)
    }
}

/// Error of a piece of a tensor that was not read or written.
#[derive(Debug, thiserror::Error)]
#[error("{bytes} bytes from byte {offset} on: {source}")]
pub struct PieceError {
    /// Offset of the first byte of the piece in its tensor.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: usize,
    /// Cause of the failure.
    pub source: io::Error,
}

impl PieceError {
    /// Creates the error of a piece outside the buffer.
    fn outside(offset: u64, place: &Range<usize>) -> PieceError {
        PieceError { offset, bytes: place.len(), source: io::ErrorKind::UnexpectedEof.into() }
    }
}

/// Source of the rows of tensors. Every [`Source`] is one: pieces are requested that are consecutive in the tensor and
/// in memory. A source that generates its rows, or stores them in another form than a tensor, supplies whole boxes.
pub trait RowSource<N> {
    /// Fills the rows of `excerpt`, which are arranged in `to` as it describes. Excerpts without rows are
    /// requested, too.
    ///
    /// # Errors
    /// Returns any error that keeps the rows from being read.
    fn read_rows(&mut self, operand: N, excerpt: &Excerpt, to: &mut [u8]) -> Result<(), PieceError>;
}

impl<N: Copy, S: Source<N>> RowSource<N> for S {
    fn read_rows(&mut self, operand: N, excerpt: &Excerpt, to: &mut [u8]) -> Result<(), PieceError> {
        excerpt.pieces(|offset, place| {
            let Some(piece) = to.get_mut(place.clone()) else {
                return Err(PieceError::outside(offset, &place));
            };
            let bytes = piece.len();
            self.read(operand, offset, piece).map_err(|source| PieceError { offset, bytes, source })
        })
    }
}

/// Destination of the rows of outputs. Every [`Sink`] is one: it receives pieces that are consecutive in the tensor
/// and in memory.
pub trait RowSink<N> {
    /// Receives the rows of `excerpt`, which are arranged in `from` as it describes. Every row is passed
    /// once.
    ///
    /// # Errors
    /// Returns any error that keeps the rows from being stored.
    fn write_rows(&mut self, operand: N, excerpt: &Excerpt, from: &[u8]) -> Result<(), PieceError>;

    /// Finishes a unit, like [`Sink::finished`].
    ///
    /// # Errors
    /// Returns the cause if that fails.
    fn unit_finished(&mut self, unit: usize) -> io::Result<()>;

    /// Counts a computed part, like [`Sink::advanced`].
    fn part_computed(&mut self);
}

impl<N: Copy, S: Sink<N>> RowSink<N> for S {
    fn write_rows(&mut self, operand: N, excerpt: &Excerpt, from: &[u8]) -> Result<(), PieceError> {
        excerpt.pieces(|offset, place| {
            let Some(piece) = from.get(place.clone()) else {
                return Err(PieceError::outside(offset, &place));
            };
            let bytes = piece.len();
            self.write(operand, offset, piece).map_err(|source| PieceError { offset, bytes, source })
        })
    }

    fn unit_finished(&mut self, unit: usize) -> io::Result<()> {
        self.finished(unit)
    }

    fn part_computed(&mut self) {
        self.advanced();
    }
}
