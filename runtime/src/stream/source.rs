//! Sources of the bytes of tensors, and their destinations.

use super::excerpt::Excerpt;
use elsa_core::attention::Operand;
use std::io;
use std::ops::Range;

/// A source of the bytes of tensors: files, a network, a callback. `N` names a tensor: an
/// [`Operand`](elsa_core::attention::Operand) of an attention call, or a weight of a layer.
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

/// A destination of the bytes of outputs: files, a network, a callback.
pub trait Sink {
    /// Writes the bytes of output `operand` from byte `offset` on. Every byte of an output's rows is passed once;
    /// bytes between rows are not.
    ///
    /// # Errors
    /// Returns the cause if the bytes cannot be written.
    fn write(&mut self, operand: Operand, offset: u64, from: &[u8]) -> io::Result<()>;

    /// Notes that all outputs of a unit have been passed. Units are finished in order.
    ///
    /// # Errors
    /// Returns the cause if that fails.
    fn finished(&mut self, unit: usize) -> io::Result<()> {
        let _ = unit;
        Ok(())
    }

    /// Notes that a part has been computed.
    fn advanced(&mut self) {}
}

impl<F: FnMut(Operand, u64, &[u8]) -> io::Result<()>> Sink for F {
    fn write(&mut self, operand: Operand, offset: u64, from: &[u8]) -> io::Result<()> {
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

/// A source of the rows of tensors. Every [`Source`] is one: it receives requests for pieces that are contiguous in
/// the tensor and in memory. A source that computes its rows, or stores them in another form, implements whole
/// boxes instead.
pub trait RowSource {
    /// Fills the rows of `excerpt`, whose layout in `to` it describes. Excerpts without rows are requested as well.
    ///
    /// # Errors
    /// Returns the cause if the rows cannot be read.
    fn read_rows(&mut self, operand: Operand, excerpt: &Excerpt, to: &mut [u8]) -> Result<(), PieceError>;
}

impl<S: Source<Operand>> RowSource for S {
    fn read_rows(&mut self, operand: Operand, excerpt: &Excerpt, to: &mut [u8]) -> Result<(), PieceError> {
        excerpt.pieces(|offset, place| {
            let Some(piece) = to.get_mut(place.clone()) else {
                return Err(PieceError::outside(offset, &place));
            };
            let bytes = piece.len();
            self.read(operand, offset, piece).map_err(|source| PieceError { offset, bytes, source })
        })
    }
}

/// A destination of the rows of outputs. Every [`Sink`] is one: it receives pieces that are contiguous in the
/// tensor and in memory.
pub trait RowSink {
    /// Writes the rows of `excerpt`, whose layout in `from` it describes. Every row is passed once.
    ///
    /// # Errors
    /// Returns the cause if the rows cannot be written.
    fn write_rows(&mut self, operand: Operand, excerpt: &Excerpt, from: &[u8]) -> Result<(), PieceError>;

    /// Finishes a unit, like [`Sink::finished`].
    ///
    /// # Errors
    /// Returns the cause if that fails.
    fn unit_finished(&mut self, unit: usize) -> io::Result<()>;

    /// Counts a computed part, like [`Sink::advanced`].
    fn part_computed(&mut self);
}

impl<S: Sink> RowSink for S {
    fn write_rows(&mut self, operand: Operand, excerpt: &Excerpt, from: &[u8]) -> Result<(), PieceError> {
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
