//! Sources from which the bytes of tensors are read, and destinations to which they are written.

use super::excerpt::Excerpt;
use std::io;
use std::ops::Range;

/// Source of the bytes of tensors, such as files, a network or a callback. `N` names a tensor: an operand of a call, or
/// a weight of a layer.
///
/// A closure `FnMut(N, u64, &mut [u8]) -> io::Result<()>` is a source.
pub trait Source<N> {
    /// Fills `to` with the bytes of tensor `name` from byte `offset` on. The bytes of a tensor are its elements as
    /// stored in memory, little-endian, without a header.
    ///
    /// # Errors
    /// Returns the cause if the bytes cannot be read. If the stored bytes of a tensor end before the requested range
    /// does, returns [`UnexpectedEof`](io::ErrorKind::UnexpectedEof).
    fn read(&mut self, name: N, offset: u64, to: &mut [u8]) -> io::Result<()>;
}

impl<N, F: FnMut(N, u64, &mut [u8]) -> io::Result<()>> Source<N> for F {
    fn read(&mut self, name: N, offset: u64, to: &mut [u8]) -> io::Result<()> {
        self(name, offset, to)
    }
}

/// Destination of the bytes of outputs, such as files, a network or a callback. `N` names an output.
pub trait Sink<N> {
    /// Writes the bytes of output `operand` from byte `offset` on. Every byte of an output's rows is passed exactly
    /// once; bytes between rows are never passed.
    ///
    /// # Errors
    /// Returns the cause if the bytes cannot be written.
    fn write(&mut self, operand: N, offset: u64, from: &[u8]) -> io::Result<()>;

    /// Records that all outputs of a unit have been written. Units finish in order.
    ///
    /// # Errors
    /// Returns the cause if recording fails.
    fn finished(&mut self, unit: usize) -> io::Result<()> {
        let _ = unit;
        Ok(())
    }

    /// Records that one more part of the run has been computed.
    fn advanced(&mut self) {}
}

impl<N, F: FnMut(N, u64, &[u8]) -> io::Result<()>> Sink<N> for F {
    fn write(&mut self, operand: N, offset: u64, from: &[u8]) -> io::Result<()> {
        self(operand, offset, from)
    }
}

/// Error from reading or writing a piece of a tensor.
#[derive(Debug, thiserror::Error)]
#[error("{bytes} bytes from byte {offset} on: {source}")]
pub struct PieceError {
    /// Offset of the piece's first byte in the tensor.
    pub offset: u64,
    /// Size of the piece in bytes.
    pub bytes: usize,
    /// Cause of the failure.
    pub source: io::Error,
}

impl PieceError {
    /// Creates the error for the piece at `offset`, whose destination `place` is not within the buffer.
    fn outside(offset: u64, place: &Range<usize>) -> PieceError {
        PieceError { offset, bytes: place.len(), source: io::ErrorKind::UnexpectedEof.into() }
    }
}

/// Source of the rows of tensors. Every [`Source`] implements this trait by reading one piece after another. Each piece
/// is contiguous in the tensor and in the buffer. Some sources generate their rows, or store them in a layout that
/// differs from the tensor's. Such a source implements this trait itself and supplies complete boxes.
pub trait RowSource<N> {
    /// Fills the rows of `excerpt` in the buffer `to`, in the layout that the excerpt describes. May also be called for
    /// excerpts without rows.
    ///
    /// # Errors
    /// Returns an error if a row cannot be read.
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

/// Destination of the rows of outputs. Every [`Sink`] implements this trait by receiving one piece after another. Each
/// piece is contiguous in the tensor and in the buffer.
pub trait RowSink<N> {
    /// Writes the rows of `excerpt` from the buffer `from`, in the layout that the excerpt describes. Every row is
    /// passed exactly once.
    ///
    /// # Errors
    /// Returns an error if a row cannot be written.
    fn write_rows(&mut self, operand: N, excerpt: &Excerpt, from: &[u8]) -> Result<(), PieceError>;

    /// Records that all outputs of a unit have been written, like [`Sink::finished`].
    ///
    /// # Errors
    /// Returns the cause if recording fails.
    fn unit_finished(&mut self, unit: usize) -> io::Result<()>;

    /// Records that one more part of the run has been computed, like [`Sink::advanced`].
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
