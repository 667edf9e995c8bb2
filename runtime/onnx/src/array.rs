//! Tensors with which the rewriter computes. Every element is stored as an f64; the element type that the tensor has in
//! the model is recorded.

use super::wire::{self, Field, Payload, WireError};
use half::{bf16, f16};
use std::rc::Rc;

/// Element type, by its number in ONNX.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kind(pub i64);

impl Kind {
    /// f32.
    pub const F32: Kind = Kind(1);
    /// 8-bit integers without a sign.
    pub const U8: Kind = Kind(2);
    /// 32-bit integers.
    pub const I32: Kind = Kind(6);
    /// 64-bit integers.
    pub const I64: Kind = Kind(7);
    /// Booleans.
    pub const BOOL: Kind = Kind(9);
    /// f16.
    pub const F16: Kind = Kind(10);
    /// f64.
    pub const F64: Kind = Kind(11);

    /// Returns the size of an element in `raw_data` in bytes, or `None` for types that the rewriter does not read.
    #[must_use]
    pub const fn size(self) -> Option<usize> {
        match self.0 {
            2 | 3 | 9 => Some(1),
            4 | 5 | 10 | 16 => Some(2),
            1 | 6 | 12 => Some(4),
            7 | 11 | 13 => Some(8),
            _ => None,
        }
    }

    /// Returns `true` if elements are floating-point numbers.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self.0, 1 | 10 | 11 | 16)
    }

    /// Returns the name of the type.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self.0 {
            1 => "f32",
            2 => "u8",
            3 => "i8",
            4 => "u16",
            5 => "i16",
            6 => "i32",
            7 => "i64",
            8 => "string",
            9 => "bool",
            10 => "f16",
            11 => "f64",
            12 => "u32",
            13 => "u64",
            16 => "bf16",
            _ => "of another type",
        }
    }

    /// Decodes the element at the start of `bytes`.
    fn element(self, bytes: &[u8]) -> f64 {
        fn first<const N: usize>(bytes: &[u8]) -> [u8; N] {
            let mut all = [0; N];
            all.copy_from_slice(&bytes[..N]);
            all
        }
        match self.0 {
            2 | 9 => f64::from(bytes[0]),
            3 => f64::from(bytes[0].cast_signed()),
            4 => f64::from(u16::from_le_bytes(first(bytes))),
            5 => f64::from(i16::from_le_bytes(first(bytes))),
            10 => f16::from_le_bytes(first(bytes)).to_f64(),
            16 => bf16::from_le_bytes(first(bytes)).to_f64(),
            1 => f64::from(f32::from_le_bytes(first(bytes))),
            6 => f64::from(i32::from_le_bytes(first(bytes))),
            12 => f64::from(u32::from_le_bytes(first(bytes))),
            7 => i64::from_le_bytes(first(bytes)) as f64,
            13 => u64::from_le_bytes(first(bytes)) as f64,
            _ => f64::from_le_bytes(first(bytes)),
        }
    }

    /// Appends an element to `raw_data`.
    pub fn write(self, x: f64, raw: &mut Vec<u8>) {
        match self.0 {
            2 | 9 => raw.push(x as u8),
            3 => raw.extend((x as i8).to_le_bytes()),
            4 => raw.extend((x as u16).to_le_bytes()),
            5 => raw.extend((x as i16).to_le_bytes()),
            10 => raw.extend(f16::from_f64(x).to_le_bytes()),
            16 => raw.extend(bf16::from_f64(x).to_le_bytes()),
            1 => raw.extend((x as f32).to_le_bytes()),
            6 => raw.extend((x as i32).to_le_bytes()),
            12 => raw.extend((x as u32).to_le_bytes()),
            7 => raw.extend((x as i64).to_le_bytes()),
            13 => raw.extend((x as u64).to_le_bytes()),
            _ => raw.extend(x.to_le_bytes()),
        }
    }

    /// Rounds `x` to this type.
    #[must_use]
    pub fn rounded(self, x: f64) -> f64 {
        match self.0 {
            1 => f64::from(x as f32),
            10 => f16::from_f64(x).to_f64(),
            16 => bf16::from_f64(x).to_f64(),
            9 => f64::from(u8::from(x != 0.0)),
            11 => x,
            _ => x.trunc(),
        }
    }
}

/// A dense tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// Type of the elements in the model.
    pub kind: Kind,
    /// Sizes of the axes.
    pub shape: Vec<usize>,
    /// Elements in C order; integers are exact up to `2^53`.
    pub data: Rc<Vec<f64>>,
}

impl Array {
    /// Creates a tensor. Requires that the length of `data` is the product of `shape`.
    #[must_use]
    pub fn new(kind: Kind, shape: Vec<usize>, data: Vec<f64>) -> Array {
        Array { kind, shape, data: Rc::new(data) }
    }

    /// Creates a tensor of integers with one axis.
    #[must_use]
    pub fn ints(values: impl IntoIterator<Item = usize>) -> Array {
        let data: Vec<f64> = values.into_iter().map(|n| n as f64).collect();
        Array::new(Kind::I64, vec![data.len()], data)
    }

    /// Returns the element of a one-element tensor; `None` for other tensors.
    #[must_use]
    pub fn scalar(&self) -> Option<f64> {
        if let [x] = self.data[..] { Some(x) } else { None }
    }
}

/// Returns the product of `shape`, or `None` if it exceeds `most`.
#[must_use]
pub fn count(shape: &[usize], most: usize) -> Option<usize> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(1usize, |n, &axis| n.checked_mul(axis)).filter(|&n| n <= most)
}

/// Storage of a tensor's elements.
#[derive(Clone, Debug)]
enum Store {
    /// Byte range of the field `raw_data` in the file.
    Raw(std::ops::Range<usize>),
    /// Repeated fields of a numeric type, such as `float_data`.
    Fields(Vec<Field>),
    /// Entries that locate the elements in another file. Each entry is a pair of a key and a value.
    External(Vec<(String, String)>),
}

/// A tensor as the model stores it, with elements that have not been read.
#[derive(Clone, Debug)]
pub struct Stored {
    /// Name in the model.
    pub name: String,
    /// Type of the elements.
    pub kind: Kind,
    /// Sizes of the axes.
    pub shape: Vec<usize>,
    store: Store,
}

/// Decodes the text in `range` of `file`.
///
/// # Errors
/// Returns an error for bytes that are not UTF-8.
pub fn text(file: &[u8], range: std::ops::Range<usize>) -> Result<String, WireError> {
    let at = range.start;
    let text =
        std::str::from_utf8(&file[range]).map_err(|_| WireError { what: "a text that is not UTF-8", at })?;
    Ok(text.to_owned())
}

impl Stored {
    /// Reads the tensor in `range` of `file`.
    ///
    /// # Errors
    /// Returns an error for bytes that are not a tensor, or for a shape that cannot fit in memory.
    pub fn read(file: &[u8], range: std::ops::Range<usize>) -> Result<Stored, WireError> {
        let at = range.start;
        let (mut dims, mut kind, mut name) = (Vec::new(), 0, String::new());
        let (mut numbers, mut raw, mut entries, mut external) = (Vec::new(), None, Vec::new(), false);
        for field in wire::fields(file, range)? {
            match field.number {
                1 => wire::ints(file, &field, &mut dims)?,
                2 => kind = field.int()?,
                8 => name = text(file, field.bytes()?)?,
                9 => raw = Some(field.bytes()?),
                13 => entries.push(entry(file, field.bytes()?)?),
                14 => external = field.int()? == 1,
                4 | 5 | 7 | 10 | 11 => numbers.push(field),
                _ => {}
            }
        }
        let shape: Option<Vec<usize>> = dims.iter().map(|&n| usize::try_from(n).ok()).collect();
        let what = "a tensor with more elements than memory can hold";
        let shape = shape.filter(|shape| count(shape, isize::MAX as usize / 16).is_some());
        let shape = shape.ok_or(WireError { what, at })?;
        let store = match (external, raw) {
            (true, _) => Store::External(entries),
            (false, Some(raw)) => Store::Raw(raw),
            (false, None) => Store::Fields(numbers),
        };
        Ok(Stored { name, kind: Kind(kind), shape, store })
    }

    /// Returns the entries that locate the elements in another file; `None` if the elements are in the model's file.
    #[must_use]
    pub fn external(&self) -> Option<&[(String, String)]> {
        if let Store::External(entries) = &self.store { Some(entries) } else { None }
    }

    /// Decodes the elements. Returns `None` if there are more than `most`, if the rewriter does not read their type, if
    /// they are in another file, or if their number does not match the shape.
    #[must_use]
    pub fn array(&self, file: &[u8], most: usize) -> Option<Array> {
        match &self.store {
            Store::Raw(range) => self.decode(&file[range.clone()], most),
            Store::Fields(fields) => {
                let n = count(&self.shape, most)?;
                let mut data = Vec::new();
                for field in fields {
                    self.numbers(file, field, &mut data)?;
                }
                (data.len() == n).then(|| Array::new(self.kind, self.shape.clone(), data))
            }
            Store::External(_) => None,
        }
    }

    /// Decodes the elements from `bytes`, which have the layout of `raw_data`. Returns `None` if there are more than
    /// `most`, if the rewriter does not read their type, or if their number does not match the shape.
    #[must_use]
    pub fn decode(&self, bytes: &[u8], most: usize) -> Option<Array> {
        let (n, size) = (count(&self.shape, most)?, self.kind.size()?);
        if n.checked_mul(size)? != bytes.len() {
            return None;
        }
        let data = bytes.chunks_exact(size).map(|bytes| self.kind.element(bytes)).collect();
        Some(Array::new(self.kind, self.shape.clone(), data))
    }

    /// Appends the elements in one repeated field to `data`.
    fn numbers(&self, file: &[u8], field: &Field, data: &mut Vec<f64>) -> Option<()> {
        match (field.number, &field.payload) {
            (4, Payload::Fixed32(bits)) => data.push(f64::from(f32::from_bits(*bits))),
            (10, Payload::Fixed64(bits)) => data.push(f64::from_bits(*bits)),
            (4 | 10, Payload::Bytes(range)) => {
                let (kind, size) = if field.number == 4 { (Kind::F32, 4) } else { (Kind::F64, 8) };
                let bytes = &file[range.clone()];
                bytes.len().is_multiple_of(size).then_some(())?;
                data.extend(bytes.chunks_exact(size).map(|bytes| kind.element(bytes)));
            }
            (5 | 7 | 11, _) => {
                let mut all = Vec::new();
                wire::ints(file, field, &mut all).ok()?;
                // The bits of 16-bit floats are stored in 32-bit integers.
                data.extend(all.into_iter().map(|x| match self.kind.0 {
                    10 | 16 => self.kind.element(&(x as u16).to_le_bytes()),
                    13 => x.cast_unsigned() as f64,
                    _ => x as f64,
                }));
            }
            _ => return None,
        }
        Some(())
    }
}

/// Reads a key and its value from the entry in `range` of `file`.
fn entry(file: &[u8], range: std::ops::Range<usize>) -> Result<(String, String), WireError> {
    let mut pair = (String::new(), String::new());
    for field in wire::fields(file, range)? {
        match field.number {
            1 => pair.0 = text(file, field.bytes()?)?,
            2 => pair.1 = text(file, field.bytes()?)?,
            _ => {}
        }
    }
    Ok(pair)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_read_as_they_were_written() {
        for kind in (0..=16).map(Kind).filter(|kind| kind.size().is_some()) {
            for x in [0.0, 1.0, 120.0] {
                let mut raw = vec![];
                kind.write(x, &mut raw);
                assert_eq!((raw.len(), kind.element(&raw)), (kind.size().unwrap(), x), "{}", kind.name());
            }
        }
    }
}
