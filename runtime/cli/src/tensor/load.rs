//! Tensors read from files.

use super::source::Source;
use super::stored::{Parsed, Stored};
use super::{npy, safetensors};
use crate::error::{Error, TensorError};
use crate::memory::zeros;
use elsa_core::attention::MaskElements;
use elsa_core::dtype::{DType, Elements};
use elsa_runtime::MappedFile;
use half::{bf16, f16};
use std::ops::Range;
use std::path::Path;

/// Element types that an argument takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accept {
    /// f32, f16, bf16.
    Float,
    /// bool, f32, f16, bf16.
    Mask,
    /// i64, i32.
    Lengths,
}

impl Accept {
    fn takes(self, dtype: Stored) -> bool {
        match self {
            Accept::Float => dtype.float().is_some(),
            Accept::Mask => dtype.float().is_some() || dtype == Stored::Bool,
            Accept::Lengths => matches!(dtype, Stored::I64 | Stored::I32),
        }
    }

    const fn allowed(self) -> &'static str {
        match self {
            Accept::Float => "f32, f16 (bf16 in .safetensors), little-endian",
            Accept::Mask => "bool, f32, f16 (bf16 in .safetensors), little-endian",
            Accept::Lengths => "i64, i32, little-endian",
        }
    }

    /// `fault` with the types of this argument in place of those of the format.
    fn narrowed(self, fault: TensorError) -> TensorError {
        match fault {
            TensorError::Type { found, .. } => TensorError::Type { found, allowed: self.allowed() },
            other => other,
        }
    }
}

enum Data {
    Mapped(MappedFile, Range<usize>),
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

/// A tensor read from a file: mapped, or copied if its data are not aligned to their type.
pub struct Tensor {
    dtype: Stored,
    shape: Vec<usize>,
    data: Data,
}

impl Tensor {
    /// Reads the tensor at `source` for the flag `argument`.
    ///
    /// # Errors
    /// A file that cannot be read or mapped, that is malformed, or whose type `accept` does not take.
    pub fn load(argument: &'static str, source: &Source, accept: Accept) -> Result<Tensor, Error> {
        let path = &source.path;
        let file =
            MappedFile::open(path).map_err(|source| Error::Read { argument, path: path.clone(), source })?;
        let fail = |source| Error::Tensor { argument, path: path.clone(), source };
        let parsed =
            parse(&file, source.name.as_deref(), path).map_err(|fault| fail(accept.narrowed(fault)))?;
        let dtype = parsed.dtype;
        if !accept.takes(dtype) {
            return Err(fail(TensorError::Type { found: dtype.name().into(), allowed: accept.allowed() }));
        }
        let start = parsed.bytes.as_ptr() as usize - file.as_ptr() as usize;
        let range = if parsed.bytes.is_empty() { 0..0 } else { start..start + parsed.bytes.len() };
        let aligned = (parsed.bytes.as_ptr() as usize).is_multiple_of(dtype.size());
        let data = match (aligned || range.is_empty(), dtype) {
            (false, Stored::F32) => Data::F32(copy(argument, parsed.bytes)?),
            (false, Stored::F16) => Data::F16(copy(argument, parsed.bytes)?),
            (false, Stored::Bf16) => Data::Bf16(copy(argument, parsed.bytes)?),
            // Lengths are decoded one by one from any address.
            (_, Stored::Bool | Stored::I32 | Stored::I64) | (true, _) => {
                let shape = parsed.shape;
                return Ok(Tensor { dtype, shape, data: Data::Mapped(file, range) });
            }
        };
        Ok(Tensor { dtype, shape: parsed.shape, data })
    }

    /// Element type.
    #[must_use]
    pub fn dtype(&self) -> Stored {
        self.dtype
    }

    /// Sizes of the axes.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn bytes(&self) -> &[u8] {
        match &self.data {
            Data::Mapped(file, range) => &file[range.clone()],
            Data::F32(x) => bytemuck::cast_slice(x),
            Data::F16(x) => bytemuck::cast_slice(x),
            Data::Bf16(x) => bytemuck::cast_slice(x),
        }
    }

    /// The elements, if they are floating-point numbers. `load` has aligned them.
    #[must_use]
    pub fn elements(&self) -> Option<Elements<'_>> {
        let bytes = self.bytes();
        match self.dtype {
            _ if bytes.is_empty() => match self.dtype.float()? {
                DType::F32 => Some(Elements::F32(&[])),
                DType::F16 => Some(Elements::F16(&[])),
                DType::Bf16 => Some(Elements::Bf16(&[])),
            },
            Stored::F32 => bytemuck::try_cast_slice(bytes).ok().map(Elements::F32),
            Stored::F16 => bytemuck::try_cast_slice(bytes).ok().map(Elements::F16),
            Stored::Bf16 => bytemuck::try_cast_slice(bytes).ok().map(Elements::Bf16),
            _ => None,
        }
    }

    /// The elements as a mask, if they are booleans or floating-point numbers.
    #[must_use]
    pub fn mask(&self) -> Option<MaskElements<'_>> {
        match self.dtype {
            Stored::Bool => Some(MaskElements::Bool(self.bytes())),
            _ => self.elements().map(MaskElements::Additive),
        }
    }

    /// The elements as lengths, if they are integers.
    #[must_use]
    pub fn lengths(&self) -> Option<Vec<i64>> {
        let bytes = self.bytes();
        match self.dtype {
            Stored::I64 => Some(bytes.as_chunks().0.iter().map(|&x| i64::from_le_bytes(x)).collect()),
            Stored::I32 => {
                Some(bytes.as_chunks().0.iter().map(|&x| i64::from(i32::from_le_bytes(x))).collect())
            }
            _ => None,
        }
    }
}

fn copy<T: bytemuck::Pod>(argument: &'static str, bytes: &[u8]) -> Result<Vec<T>, Error> {
    let mut data: Vec<T> = zeros(argument, bytes.len() / size_of::<T>())?;
    bytemuck::cast_slice_mut(&mut data).copy_from_slice(bytes);
    Ok(data)
}

/// Parses `bytes` as `.safetensors` if the tensor has a name, else as `.npy`.
fn parse<'a>(bytes: &'a [u8], name: Option<&str>, path: &Path) -> Result<Parsed<'a>, TensorError> {
    log::debug!("parsing {} bytes of {}", bytes.len(), path.display());
    match name {
        Some(name) => safetensors::parse(bytes, name),
        None => npy::parse(bytes),
    }
}

// Elements are the bytes of the file.
#[cfg(target_endian = "big")]
compile_error!("tensor files are little-endian; allowed: little-endian machines");
