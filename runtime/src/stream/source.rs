//! Where the bytes of tensors come from, and where they go.

use elsa_core::attention::Operand;
use std::io;

/// Where the bytes of tensors come from: files, a network, a callback. `N` names a tensor: an
/// [`Operand`](elsa_core::attention::Operand) of an attention call, or a weight of a layer.
///
/// A closure `FnMut(N, u64, &mut [u8]) -> io::Result<()>` is a source.
pub trait Source<N> {
    /// Fills `to` with the bytes of tensor `name` from byte `offset` on. A tensor's bytes are those of its elements in
    /// memory, little-endian, without a header.
    ///
    /// # Errors
    /// Whatever keeps the bytes from being read. A tensor that ends early is
    /// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof).
    fn read(&mut self, name: N, offset: u64, to: &mut [u8]) -> io::Result<()>;
}

impl<N, F: FnMut(N, u64, &mut [u8]) -> io::Result<()>> Source<N> for F {
    fn read(&mut self, name: N, offset: u64, to: &mut [u8]) -> io::Result<()> {
        self(name, offset, to)
    }
}

/// Where the bytes of outputs go: files, a network, a callback.
pub trait Sink {
    /// Takes the bytes of output `operand` from byte `offset` on. Every byte of an output's rows is handed over once;
    /// bytes between rows are not.
    ///
    /// # Errors
    /// Whatever keeps the bytes from being taken.
    fn write(&mut self, operand: Operand, offset: u64, from: &[u8]) -> io::Result<()>;

    /// Takes note that all outputs of a unit have been handed over. Units are finished in order.
    ///
    /// # Errors
    /// Whatever keeps it from doing so.
    fn finished(&mut self, unit: usize) -> io::Result<()> {
        let _ = unit;
        Ok(())
    }

    /// Is told of every part that has been computed.
    fn advanced(&mut self) {}
}

impl<F: FnMut(Operand, u64, &[u8]) -> io::Result<()>> Sink for F {
    fn write(&mut self, operand: Operand, offset: u64, from: &[u8]) -> io::Result<()> {
        self(operand, offset, from)
    }
}
