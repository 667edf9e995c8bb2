//! Element types and tensors as files hold them.

use crate::error::TensorError;
use elsa_core::dtype::DType;

/// The element type of a tensor in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of an f32.
    Bf16,
    /// One byte. Zero is false.
    Bool,
    /// Signed integers of 32 bits.
    I32,
    /// Signed integers of 64 bits.
    I64,
}

impl Stored {
    /// Bytes of one element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Stored::Bool => 1,
            Stored::F16 | Stored::Bf16 => 2,
            Stored::F32 | Stored::I32 => 4,
            Stored::I64 => 8,
        }
    }

    /// `f32`, `f16`, `bf16`, `bool`, `i32` or `i64`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Stored::F32 => DType::F32.name(),
            Stored::F16 => DType::F16.name(),
            Stored::Bf16 => DType::Bf16.name(),
            Stored::Bool => "bool",
            Stored::I32 => "i32",
            Stored::I64 => "i64",
        }
    }

    /// The same type in attention, unless the elements are integers or booleans.
    #[must_use]
    pub const fn float(self) -> Option<DType> {
        match self {
            Stored::F32 => Some(DType::F32),
            Stored::F16 => Some(DType::F16),
            Stored::Bf16 => Some(DType::Bf16),
            _ => None,
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

/// A parsed tensor: its type, its shape, and exactly the bytes of its elements, little-endian in C order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parsed<'a> {
    /// Element type.
    pub dtype: Stored,
    /// Sizes of the axes.
    pub shape: Vec<usize>,
    /// `product(shape) · dtype.size()` bytes.
    pub bytes: &'a [u8],
}

/// The axes of `shape` and the bytes of its elements, unless either overflows.
pub(super) fn byte_length(dtype: Stored, shape: &[u64]) -> Result<(Vec<usize>, usize), TensorError> {
    let overflow = || TensorError::Overflow { shape: shape.to_vec() };
    let sizes: Vec<usize> =
        shape.iter().map(|&n| usize::try_from(n)).collect::<Result<_, _>>().map_err(|_| overflow())?;
    // Strides are products of the other axes, so the product without zeros must fit as well.
    let nonzero = sizes.iter().filter(|&&n| n != 0).try_fold(dtype.size(), |a, &n| a.checked_mul(n));
    match nonzero {
        Some(n) if n <= isize::MAX as usize => {
            let bytes = if sizes.contains(&0) { 0 } else { n };
            Ok((sizes, bytes))
        }
        _ => Err(overflow()),
    }
}
