//! Element types and headers of tensors in files, and errors from reading them.

use super::error::TensorError;
use elsa_core::dtype::DType;
use std::io;

/// The element type of a tensor in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// IEEE 754 binary64.
    F64,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16: the upper 16 bits of an f32.
    Bf16,
    /// One byte. Zero is false.
    Bool,
    /// Unsigned integers of 8 bits.
    U8,
    /// Signed integers of 32 bits.
    I32,
    /// Signed integers of 64 bits.
    I64,
}

impl Stored {
    /// Returns the size of one element in bytes.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Stored::Bool | Stored::U8 => 1,
            Stored::F16 | Stored::Bf16 => 2,
            Stored::F32 | Stored::I32 => 4,
            Stored::F64 | Stored::I64 => 8,
        }
    }

    /// Returns `f64`, `f32`, `f16`, `bf16`, `bool`, `u8`, `i32` or `i64`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Stored::F64 => "f64",
            Stored::F32 => DType::F32.name(),
            Stored::F16 => DType::F16.name(),
            Stored::Bf16 => DType::Bf16.name(),
            Stored::Bool => "bool",
            Stored::U8 => "u8",
            Stored::I32 => "i32",
            Stored::I64 => "i64",
        }
    }
}

impl From<DType> for Stored {
    fn from(dtype: DType) -> Stored {
        match dtype {
            DType::F32 => Stored::F32,
            DType::F16 => Stored::F16,
            DType::Bf16 => Stored::Bf16,
        }
    }
}

/// A tensor's header in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Element type.
    pub dtype: Stored,
    /// Sizes of the axes.
    pub shape: Vec<usize>,
    /// Size of the little-endian elements in bytes: `product(shape) · dtype.size()`.
    pub bytes: usize,
    /// `true` if the elements are stored in Fortran order (first axis fastest) and this order differs from C order.
    pub fortran: bool,
}

/// Error from reading a tensor.
#[derive(Debug)]
pub enum Fault {
    /// The content of the file is not the requested tensor.
    Content(TensorError),
    /// The file could not be read, or ended early.
    Io(io::Error),
    /// The system refused this many bytes of memory.
    Memory(usize),
}

impl From<TensorError> for Fault {
    fn from(error: TensorError) -> Fault {
        Fault::Content(error)
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        Fault::Io(error)
    }
}

/// Converts the axes of `shape` to `usize` and computes the size of the elements in bytes. Returns an error if either
/// overflows.
pub(super) fn byte_length(dtype: Stored, shape: &[u64]) -> Result<(Vec<usize>, usize), TensorError> {
    let overflow = || TensorError::Overflow { shape: shape.to_vec() };
    let sizes: Vec<usize> =
        shape.iter().map(|&n| usize::try_from(n)).collect::<Result<_, _>>().map_err(|_| overflow())?;
    // A stride is a product of axes, so the product of the nonzero axes must fit even if the tensor is empty.
    let nonzero = sizes.iter().filter(|&&n| n != 0).try_fold(dtype.size(), |a, &n| a.checked_mul(n));
    match nonzero {
        Some(n) if n <= isize::MAX as usize => {
            let bytes = if sizes.contains(&0) { 0 } else { n };
            Ok((sizes, bytes))
        }
        _ => Err(overflow()),
    }
}

/// Lists the first eight names in sorted order.
pub(super) fn listed(mut names: Vec<String>) -> String {
    names.sort_unstable();
    let more = if names.len() > 8 { ", ..." } else { "" };
    names.truncate(8);
    format!("{}{more}", names.join(", "))
}
