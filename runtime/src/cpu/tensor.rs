//! A tensor of a call on the CPU.

use elsa_core::dtype::DType;
use elsa_core::view::View;

/// A tensor: its view, its type, and the address of its first byte. If only an excerpt of the tensor is in memory, this
/// is the address that the first byte would have if the complete tensor were in memory.
#[derive(Clone, Copy)]
pub struct CpuTensor {
    pub view: View,
    pub dtype: DType,
    pub data: *mut u8,
    /// `true` if the call has the tensor.
    pub present: bool,
}

impl CpuTensor {
    /// Creates a tensor whose elements begin at `data`. `data` is null if the call does not have the tensor.
    pub fn new(view: View, dtype: DType, data: *mut u8) -> CpuTensor {
        CpuTensor { view, dtype, data, present: !data.is_null() }
    }

    /// Returns the address of the first byte of a row.
    pub fn row(&self, batch: usize, head: usize, token: usize) -> *mut u8 {
        self.data.wrapping_add(self.view.row(batch, head, token) * self.dtype.size())
    }

    /// Returns the distance in elements from one token to the next; zero if there are fewer than two tokens.
    pub fn stride(&self) -> usize {
        self.view.steps()[2]
    }
}
