//! Reads the elements of a tensor from a file into memory.
//!
//! [`read`] is the only path from the bytes of a file to a tensor. It trusts nothing in a file and never panics.
//! Elements are read directly into the memory in which they stay, aligned for their type. Files are not mapped: if
//! another process changes or truncates a mapped file, the reader can be killed.

use super::error::TensorError;
use super::memory::{self, Buffer};
use super::places::Places;
use super::source::Format;
use super::stored::{Fault, Header, Stored};
use super::{npy, npz, safetensors};
use bytemuck::{Pod, Zeroable};
use elsa_core::attention::mask;
use std::io::{self, Read, Seek};

/// Element types that an argument accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accept {
    /// f32, f16, bf16, f64.
    Float,
    /// Floating-point numbers that are added to scores; finite f64 values are clamped to the range of f32.
    Bias,
    /// bool, u8, i32, i64, f32, f16, bf16, f64.
    Mask,
    /// i64, i32.
    Lengths,
}

impl Accept {
    fn takes(self, dtype: Stored) -> bool {
        let float = matches!(dtype, Stored::F64 | Stored::F32 | Stored::F16 | Stored::Bf16);
        match self {
            Accept::Float | Accept::Bias => float,
            Accept::Mask => true,
            Accept::Lengths => matches!(dtype, Stored::I64 | Stored::I32),
        }
    }

    const fn allowed(self) -> &'static str {
        match self {
            Accept::Float | Accept::Bias => "f32, f16, f64 (bf16 in .safetensors), little-endian",
            Accept::Mask => "bool, u8, i32, i64, f32, f16, f64 (bf16 in .safetensors), little-endian",
            Accept::Lengths => "i64, i32, little-endian",
        }
    }

    /// Returns `fault` with its list of allowed types replaced by the types that `self` accepts.
    pub(super) fn narrowed(self, fault: TensorError) -> TensorError {
        match fault {
            TensorError::Type { found, .. } => TensorError::Type { found, allowed: self.allowed() },
            other => other,
        }
    }
}

/// Elements in memory.
#[derive(Clone, Debug)]
pub enum Data {
    /// Floating-point numbers; f64 values are rounded to f32.
    Float(Buffer),
    /// Booleans, one byte each; zero is false. Integers of a mask are converted to booleans.
    Bool(Vec<u8>),
    /// Integers, widened to 64 bits.
    Integer(Vec<i64>),
}

/// A tensor in memory.
#[derive(Clone, Debug)]
pub struct Contents {
    /// The element type in the file.
    pub stored: Stored,
    /// Sizes of the axes.
    pub shape: Vec<usize>,
    /// Elements in C order.
    pub data: Data,
    /// Number of finite f64 values that exceed the range of f32 and became infinite.
    pub overflows: usize,
}

/// Reads the tensor `name` from a file of `length` bytes. Requires that the read position of `file` is the start of the
/// file. The name is ignored for an `.npy` file, which contains a single tensor.
///
/// # Errors
/// Returns an error if the file is malformed or has no tensor of that name, if `accept` excludes the tensor's type, if
/// a read fails, or if the system refuses memory.
pub fn read(
    mut file: impl Read + Seek,
    length: u64,
    format: Format,
    name: Option<&str>,
    accept: Accept,
) -> Result<Contents, Fault> {
    let name = name.unwrap_or_default();
    match format {
        Format::Npy => {
            let header = npy::header(&mut file, length)?;
            elements(&mut file, header, accept)
        }
        Format::Npz => npz::member(file, length, name, |member, length| {
            let header = npy::header(member, length)?;
            elements(member, header, accept)
        }),
        Format::Safetensors => {
            let directory = safetensors::Directory::read(&mut file, length)?;
            let (header, start) = directory.find(name)?;
            file.seek(std::io::SeekFrom::Start(start))?;
            elements(&mut file, header, accept)
        }
    }
}

/// Reads the header of the tensor `name` in a file of `length` bytes. Returns the contents without elements, the
/// header, and the offset of the elements in the file. The offset is `None` for a deflated member of an archive. The
/// elements are not read, so the checksum of an archive member is not compared.
///
/// # Errors
/// Returns the errors of [`read`].
pub fn header(
    mut file: impl Read + Seek,
    length: u64,
    format: Format,
    name: Option<&str>,
    accept: Accept,
) -> Result<(Contents, Header, Option<u64>), Fault> {
    let name = name.unwrap_or_default();
    let (header, start) = match format {
        Format::Npy => {
            let header = npy::header(&mut file, length)?;
            let start = length - header.bytes as u64;
            (header, Some(start))
        }
        Format::Npz => npz::header(file, length, name)?,
        Format::Safetensors => {
            let (header, start) = safetensors::Directory::read(&mut file, length)?.find(name)?;
            (header, Some(start))
        }
    };
    let none = Header { shape: Vec::new(), bytes: 0, fortran: false, ..header };
    let mut contents = elements(&mut io::empty(), none, accept)?;
    contents.shape = header.shape.clone();
    Ok((contents, header, start))
}

/// Reads the elements of a tensor into C order; `reader` yields them in the order that the header states.
pub(super) fn elements(reader: &mut dyn Read, header: Header, accept: Accept) -> Result<Contents, Fault> {
    let Header { dtype: stored, shape, bytes, fortran } = header;
    if !accept.takes(stored) {
        let found = stored.name().into();
        return Err(TensorError::Type { found, allowed: accept.allowed() }.into());
    }
    let count = bytes / stored.size();
    let places = || fortran.then(|| Places::of(&shape));
    let mut overflows = 0;
    let data = match stored {
        Stored::F32 => Data::Float(Buffer::F32(same(reader, count, places())?)),
        Stored::F16 => Data::Float(Buffer::F16(same(reader, count, places())?)),
        Stored::Bf16 => Data::Float(Buffer::Bf16(same(reader, count, places())?)),
        Stored::F64 if matches!(accept, Accept::Mask | Accept::Bias) => {
            Data::Float(Buffer::F32(convert(reader, count, places(), mask::rounded)?))
        }
        Stored::F64 => Data::Float(Buffer::F32(convert(reader, count, places(), |x: f64| {
            let rounded = x as f32;
            overflows += usize::from(x.is_finite() && !rounded.is_finite());
            rounded
        })?)),
        Stored::Bool | Stored::U8 => Data::Bool(same(reader, count, places())?),
        Stored::I64 if accept == Accept::Mask => {
            Data::Bool(convert(reader, count, places(), mask::attended)?)
        }
        Stored::I32 if accept == Accept::Mask => {
            Data::Bool(convert(reader, count, places(), |x: i32| mask::attended(x.into()))?)
        }
        Stored::I64 => Data::Integer(same(reader, count, places())?),
        Stored::I32 => Data::Integer(convert(reader, count, places(), |x: i32| i64::from(x))?),
    };
    Ok(Contents { stored, shape, data, overflows })
}

/// Number of bytes per read.
const CHUNK: usize = 1 << 18;

fn reserved<T>(count: usize) -> Result<Vec<T>, Fault> {
    memory::reserved(count).map_err(Fault::Memory)
}

/// Reads `count` elements without conversion, and stores them in the order of the file or at the positions of `places`.
fn same<T: Pod>(reader: &mut dyn Read, count: usize, places: Option<Places>) -> Result<Vec<T>, Fault> {
    if places.is_some() {
        return convert(reader, count, places, |x: T| x);
    }
    let mut data: Vec<T> = reserved(count)?;
    while data.len() < count {
        let start = data.len();
        data.resize(count.min(start + CHUNK / size_of::<T>()), T::zeroed());
        reader.read_exact(bytemuck::cast_slice_mut(&mut data[start..]))?;
    }
    Ok(data)
}

/// Reads `count` elements, converts each, and stores them in the order of the file or at the positions of `places`. At
/// most one chunk of unconverted elements is in memory at any time.
fn convert<S: Pod, T: Pod>(
    reader: &mut dyn Read,
    count: usize,
    mut places: Option<Places>,
    mut each: impl FnMut(S) -> T,
) -> Result<Vec<T>, Fault> {
    let mut data: Vec<T> = reserved(count)?;
    let size = count.min(CHUNK / size_of::<S>());
    let mut chunk: Vec<S> = reserved(size)?;
    chunk.resize(size, Zeroable::zeroed());
    if places.is_some() {
        data.resize(count, Zeroable::zeroed());
    }
    let mut done = 0;
    while done < count {
        let now = chunk.len().min(count - done);
        reader.read_exact(bytemuck::cast_slice_mut(&mut chunk[..now]))?;
        match &mut places {
            Some(places) => chunk[..now].iter().for_each(|&x| data[places.next()] = each(x)),
            None => data.extend(chunk[..now].iter().map(|&x| each(x))),
        }
        done += now;
    }
    Ok(data)
}

// The bytes of a file become elements without a byte swap.
#[cfg(target_endian = "big")]
compile_error!("tensor files are little-endian; allowed: little-endian machines");

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    fn file<T: Pod>(dtype: Stored, data: &[T]) -> Vec<u8> {
        let mut file = Vec::new();
        npy::write_header(&mut file, dtype, &[data.len()]).unwrap();
        file.extend(bytemuck::cast_slice::<T, u8>(data));
        file
    }

    fn load(file: &[u8], accept: Accept) -> Result<Contents, Fault> {
        read(Cursor::new(file), file.len() as u64, Format::Npy, None, accept)
    }

    /// Number of f32 elements that fill two chunks and a part of a third.
    const MANY: usize = CHUNK / 4 * 2 + 77;

    #[test]
    fn f64_is_rounded_to_nearest_and_overflow_is_counted() {
        let mut data: Vec<f64> = (0..MANY).map(|i| 1.0 + i as f64 * 1e-9).collect();
        (data[3], data[4], data[5], data[6]) = (1e300, f64::NEG_INFINITY, -3.5e38, f64::NAN);
        let contents = load(&file(Stored::F64, &data), Accept::Float).unwrap();
        assert_eq!((contents.stored, contents.overflows), (Stored::F64, 2));
        let Data::Float(Buffer::F32(x)) = contents.data else { panic!() };
        assert_eq!(x.len(), MANY);
        for (x, y) in x.iter().zip(&data) {
            assert!(*x == *y as f32 || y.is_nan() && x.is_nan(), "{x} {y}");
        }
    }

    #[test]
    fn every_chunk_lands_in_its_place() {
        let data: Vec<f32> = (0..MANY).map(|i| i as f32).collect();
        let Data::Float(Buffer::F32(x)) = load(&file(Stored::F32, &data), Accept::Float).unwrap().data else {
            panic!()
        };
        assert_eq!(x, data);
        let data: Vec<i32> = (0..MANY as i32).map(|i| i - 9).collect();
        let Data::Integer(x) = load(&file(Stored::I32, &data), Accept::Lengths).unwrap().data else {
            panic!()
        };
        assert!(x.iter().zip(&data).all(|(x, y)| *x == i64::from(*y)) && x.len() == MANY);
    }

    #[test]
    fn a_file_that_ends_while_it_is_read_is_an_error() {
        let whole = file(Stored::F32, &vec![1.0f32; MANY]);
        for cut in [0, 5, 40, whole.len() / 2, whole.len() - 1] {
            // `read` receives the length that the file had before it was truncated.
            let short = Cursor::new(&whole[..cut]);
            let fault = read(short, whole.len() as u64, Format::Npy, None, Accept::Float).unwrap_err();
            assert!(
                matches!(&fault, Fault::Io(e) if e.kind() == std::io::ErrorKind::UnexpectedEof),
                "{fault:?}"
            );
        }
    }

    #[test]
    fn arguments_take_their_own_types() {
        let byte = file(Stored::U8, &[0u8, 2, 255]);
        let masks = [
            (byte.clone(), [0, 2, 255]),
            (file(Stored::I64, &[0i64, 1 << 32, -1]), [0, 1, 1]),
            (file(Stored::I32, &[0i32, 256, i32::MIN]), [0, 1, 1]),
        ];
        for (bytes, want) in masks {
            assert!(matches!(load(&bytes, Accept::Mask).unwrap().data, Data::Bool(x) if x == want));
        }
        let least = file(Stored::F64, &[f64::MIN, f64::NEG_INFINITY, 0.5]);
        for accept in [Accept::Mask, Accept::Bias] {
            let contents = load(&least, accept).unwrap();
            let Data::Float(Buffer::F32(x)) = contents.data else { panic!("{accept:?}") };
            assert_eq!((x, contents.overflows), (vec![f32::MIN, f32::NEG_INFINITY, 0.5], 0), "{accept:?}");
        }
        for (bytes, accept) in [(byte, Accept::Float), (file(Stored::F64, &[1f64]), Accept::Lengths)] {
            let fault = load(&bytes, accept).unwrap_err();
            assert!(matches!(fault, Fault::Content(TensorError::Type { .. })), "{fault:?}");
        }
    }
}
