//! Where the bytes of tensors come from.

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
