//! Tensors in files: `.npy`, and `.safetensors` with the name of a tensor.
//!
//! The parsers ([`npy::parse`], [`safetensors::parse`]) take bytes and give back a [`Parsed`]: type, shape
//! and a slice of exactly as many bytes as the shape says. They believe nothing that a file says about
//! itself and never panic. [`Tensor::load`] maps a file, parses it and keeps the map; only data that do not
//! lie at an address fit for their type are copied.

pub mod npy;
pub mod output;
pub mod safetensors;

use crate::error::Error;
use elsa_core::attention::MaskElements;
use elsa_core::dtype::{DType, Elements};
use elsa_runtime::MappedFile;
use half::{bf16, f16};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The type of a stored tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 half precision.
    F16,
    /// The upper half of a single.
    Bf16,
    /// One byte; zero is false.
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

    /// Its usual name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Stored::F32 => "f32",
            Stored::F16 => "f16",
            Stored::Bf16 => "bf16",
            Stored::Bool => "bool",
            Stored::I32 => "i32",
            Stored::I64 => "i64",
        }
    }

    /// The element type of attention that it is, if it is one.
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

/// Why a file is not a tensor that an argument can take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// Bytes that do not make a file of that format.
    #[error("not a {format} file: {found}; allowed: {allowed}")]
    Format {
        /// `.npy` or `.safetensors`.
        format: &'static str,
        /// What was found.
        found: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// An element type that the argument cannot take.
    #[error("type {found}; allowed: {allowed}")]
    Type {
        /// The type as the file spells it.
        found: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// Axes stored first to last.
    #[error("Fortran order; allowed: C order")]
    FortranOrder,
    /// A payload of another length than the shape says.
    #[error("{found} bytes of data; allowed: {needed}, as the shape {shape:?} of {dtype} says")]
    Length {
        /// Bytes there are.
        found: usize,
        /// Bytes that the shape says.
        needed: usize,
        /// The shape.
        shape: Vec<usize>,
        /// The element type.
        dtype: &'static str,
    },
    /// A shape that no memory can hold.
    #[error("shape {shape:?}; allowed: a product that fits the address space")]
    Overflow {
        /// The shape as the file says it.
        shape: Vec<u64>,
    },
    /// A name that the file does not hold.
    #[error("no tensor '{name}'; allowed: {allowed}")]
    Name {
        /// The name that was asked for.
        name: String,
        /// Names that the file holds.
        allowed: String,
    },
    /// A tensor of another rank than the argument's.
    #[error("rank {found}; allowed: {allowed}")]
    Rank {
        /// Its rank.
        found: usize,
        /// What is allowed.
        allowed: &'static str,
    },
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

/// Bytes of a tensor of `shape`, unless it overflows.
fn byte_length(dtype: Stored, shape: &[u64]) -> Result<(Vec<usize>, usize), TensorError> {
    let overflow = || TensorError::Overflow { shape: shape.to_vec() };
    let sizes: Vec<usize> =
        shape.iter().map(|&n| usize::try_from(n)).collect::<Result<_, _>>().map_err(|_| overflow())?;
    // Zeros are left out of the product first: strides are products of the other axes and must fit as well.
    let nonzero = sizes.iter().filter(|&&n| n != 0).try_fold(dtype.size(), |a, &n| a.checked_mul(n));
    match nonzero {
        Some(n) if n <= isize::MAX as usize => {
            let bytes = if sizes.contains(&0) { 0 } else { n };
            Ok((sizes, bytes))
        }
        _ => Err(overflow()),
    }
}

/// Where a tensor lies, or is to be put: `path.npy`, or `path.safetensors#name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The file.
    pub path: PathBuf,
    /// The tensor's name in a `.safetensors` file; none for `.npy`.
    pub name: Option<String>,
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Source, String> {
        const ALLOWED: &str = "allowed: path.npy or path.safetensors#name";
        const EXTENSION: &str = ".safetensors";
        if text.is_empty() {
            return Err(format!("an empty path; {ALLOWED}"));
        }
        if let Some((path, name)) = text.split_once(".safetensors#") {
            if name.is_empty() {
                return Err(format!("an empty tensor name; {ALLOWED}"));
            }
            return Ok(Source { path: format!("{path}{EXTENSION}").into(), name: Some(name.into()) });
        }
        if text.ends_with(EXTENSION) {
            return Err(format!("no tensor name; {ALLOWED}"));
        }
        Ok(Source { path: text.into(), name: None })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{}#{name}", self.path.display()),
            None => write!(f, "{}", self.path.display()),
        }
    }
}

/// What an argument takes.
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
            Accept::Float => "f32, f16 (bf16 in .safetensors)",
            Accept::Mask => "bool, f32, f16 (bf16 in .safetensors)",
            Accept::Lengths => "i64, i32",
        }
    }
}

enum Data {
    Mapped(MappedFile, Range<usize>),
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

/// A tensor that was read: mapped, or copied where its data are not aligned to their type.
pub struct Tensor {
    dtype: Stored,
    shape: Vec<usize>,
    data: Data,
}

impl Tensor {
    /// Reads the tensor at `source` for the flag `argument`.
    ///
    /// # Errors
    /// A file that cannot be read or mapped, is not what it says, or is not of a type that `accept` takes.
    pub fn load(argument: &'static str, source: &Source, accept: Accept) -> Result<Tensor, Error> {
        let path = &source.path;
        let file =
            MappedFile::open(path).map_err(|source| Error::Read { argument, path: path.clone(), source })?;
        let fail = |source| Error::Tensor { argument, path: path.clone(), source };
        let parsed = parse(&file, source.name.as_deref(), path).map_err(fail)?;
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
            // Lengths are taken out one by one, whatever their address.
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

    /// The elements, unless they are not floating-point numbers. `load` has seen to their alignment.
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

    /// The elements of a mask, unless they are integers.
    #[must_use]
    pub fn mask(&self) -> Option<MaskElements<'_>> {
        match self.dtype {
            Stored::Bool => Some(MaskElements::Bool(self.bytes())),
            _ => self.elements().map(MaskElements::Additive),
        }
    }

    /// The elements of a list of lengths, unless it is not one.
    #[must_use]
    pub fn lengths(&self) -> Option<Vec<i64>> {
        let (eights, fours) = (self.bytes().as_chunks::<8>().0, self.bytes().as_chunks::<4>().0);
        match self.dtype {
            Stored::I64 => Some(eights.iter().map(|&x| i64::from_le_bytes(x)).collect()),
            Stored::I32 => Some(fours.iter().map(|&x| i64::from(i32::from_le_bytes(x))).collect()),
            _ => None,
        }
    }
}

fn copy<T: bytemuck::Pod>(argument: &'static str, bytes: &[u8]) -> Result<Vec<T>, Error> {
    let mut data: Vec<T> = crate::error::zeros(argument, bytes.len() / size_of::<T>())?;
    bytemuck::cast_slice_mut(&mut data).copy_from_slice(bytes);
    Ok(data)
}

/// Parses `bytes` as the format that the name of the source says.
fn parse<'a>(bytes: &'a [u8], name: Option<&str>, path: &Path) -> Result<Parsed<'a>, TensorError> {
    log::debug!("parsing {} bytes of {}", bytes.len(), path.display());
    match name {
        Some(name) => safetensors::parse(bytes, name),
        None => npy::parse(bytes),
    }
}

// Elements are cast from bytes as they lie in the file.
#[cfg(target_endian = "big")]
compile_error!("the tensor files are little-endian, and so must the machine be");
