//! The `.safetensors` format: eight bytes with the length of a JSON header, the header, the elements.
//!
//! Tensors whose bytes overlap or leave gaps are refused. A shape that does not match the number of the tensor's bytes
//! is also refused. A tensor may have an unknown element type: the number of its bytes is then not checked, so the
//! tensor can be kept and the other tensors can be read. The reader and writer of the `safetensors` crate are not used.
//! The crate's reader requires the entire file as a slice, needs many times the header's size in memory, and refuses
//! files with unknown types. The crate's writer builds the entire file in memory.

use super::error::TensorError;
use super::infos::{Entries, Info, Type};
use super::source::METADATA;
use super::stored::{Fault, Header, Stored, byte_length, listed};
use ::safetensors::tensor::Dtype;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use std::io::{self, Read, Seek, SeekFrom, Write};

/// Longest header that is read or written, in bytes. The header of a model with a thousand tensors has about 100,000
/// bytes.
const MAX_HEADER: usize = 10_000_000;

/// Size in bytes of the field with the length of the header.
const LENGTH: u64 = 8;

fn format(found: impl Into<String>, allowed: &'static str) -> TensorError {
    TensorError::Format { format: ".safetensors", found: found.into(), allowed }
}

/// The header of a file.
#[derive(Debug)]
pub struct Directory {
    /// The file's metadata, as JSON text.
    text: Option<Box<RawValue>>,
    /// Tensors by byte offset, lowest first.
    tensors: Vec<(String, Info)>,
    /// Offset of the elements in the file.
    start: u64,
}

impl Directory {
    /// Reads the header of a file of `length` bytes.
    ///
    /// # Errors
    /// Returns an error for a header that is malformed or too long, or for elements that do not fit a file of this length.
    pub fn read(reader: &mut impl Read, length: u64) -> Result<Directory, Fault> {
        const ALLOWED: &str = "a header whose offsets and shapes are those of the data";
        if length < LENGTH {
            return Err(format("too short", ALLOWED).into());
        }
        let mut size = [0; LENGTH as usize];
        reader.read_exact(&mut size)?;
        let size = u64::from_le_bytes(size);
        if size > length - LENGTH {
            return Err(format("a header longer than the file", ALLOWED).into());
        }
        let size = match usize::try_from(size) {
            Ok(size) if size <= MAX_HEADER => size,
            _ => return Err(format(format!("a header of {size} bytes"), "at most 10000000 bytes").into()),
        };
        let mut header = Vec::new();
        header.try_reserve_exact(size).map_err(|_| Fault::Memory(size))?;
        header.resize(size, 0);
        reader.read_exact(&mut header)?;
        let refused = |found: String| format(found, ALLOWED);
        let Entries { text, mut tensors } = serde_json::from_slice(&header)
            .map_err(|_| refused("a header that is not the JSON of tensors".into()))?;
        drop(header);
        tensors.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        if let Some([(name, _), ..]) = tensors.windows(2).find(|two| two[0].0 == two[1].0) {
            return Err(refused(format!("'{name}' twice")).into());
        }
        tensors.sort_by_key(|(_, info)| info.data_offsets);
        let mut end = 0;
        for (name, info) in &tensors {
            info.check(name, end).map_err(refused)?;
            end = info.data_offsets.1;
        }
        let start = LENGTH + size as u64;
        if (end as u64).checked_add(start) != Some(length) {
            return Err(refused("data of another length than the header gives".into()).into());
        }
        Ok(Directory { text, tensors, start })
    }

    /// Finds the tensor `name` and returns its header and the offset of its elements in the file.
    ///
    /// # Errors
    /// Returns an error if the file has no tensor of that name, or if the type of its elements is not supported.
    pub fn find(&self, name: &str) -> Result<(Header, u64), TensorError> {
        let found = self.tensors.iter().find(|(found, _)| found == name);
        let (_, info) = found.ok_or_else(|| TensorError::Name {
            name: name.into(),
            allowed: listed(self.tensors.iter().map(|(name, _)| name.clone()).collect()),
        })?;
        let other = |found: String| {
            Err(TensorError::Type { found, allowed: "F32, F16, BF16, F64, BOOL, U8, I64, I32" })
        };
        let dtype = match &info.dtype {
            Type::Known(Dtype::F64) => Stored::F64,
            Type::Known(Dtype::F32) => Stored::F32,
            Type::Known(Dtype::F16) => Stored::F16,
            Type::Known(Dtype::BF16) => Stored::Bf16,
            Type::Known(Dtype::BOOL) => Stored::Bool,
            Type::Known(Dtype::U8) => Stored::U8,
            Type::Known(Dtype::I32) => Stored::I32,
            Type::Known(Dtype::I64) => Stored::I64,
            Type::Known(dtype) => return other(format!("{dtype:?}")),
            Type::Other(name) => return other(name.clone()),
        };
        let sizes: Vec<u64> = info.shape.iter().map(|&n| n as u64).collect();
        let (shape, bytes) = byte_length(dtype, &sizes)?;
        Ok((Header { dtype, shape, bytes, fortran: false }, self.start + info.data_offsets.0 as u64))
    }
}

/// A tensor to write: name, type, shape, elements.
pub type Named<'a> = (&'a str, Stored, &'a [usize], &'a [u8]);

/// Source of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The new tensor at this index.
    New(usize),
    /// The kept file. The elements start at this byte offset.
    Kept(u64),
}

/// Location of a tensor's elements in the new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Byte offset in the new file.
    pub start: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// Source of the bytes.
    pub from: Origin,
}

/// Layout of a new file whose elements have yet to be written.
#[derive(Debug)]
pub struct EntryLayout {
    /// The bytes before the first element: the length field and the JSON.
    pub header: Vec<u8>,
    /// Tensors by byte offset, lowest first. The last tensor ends at the end of the file.
    pub pieces: Vec<Piece>,
    /// Length of the file in bytes.
    pub length: u64,
}

impl EntryLayout {
    /// Lays out a file that contains the new tensors `tensors` (name, type and shape), every tensor of `kept` whose
    /// name differs from theirs, and the metadata of `kept`.
    ///
    /// # Errors
    /// Returns an error for a header of more than ten million bytes, or a shape whose size in bytes overflows.
    pub fn new(kept: Option<&Directory>, tensors: &[(&str, Stored, &[usize])]) -> io::Result<EntryLayout> {
        let old = kept.into_iter().flat_map(|directory| {
            directory.tensors.iter().map(|(name, info)| {
                let from = Origin::Kept(directory.start + info.data_offsets.0 as u64);
                (name.clone(), info.clone(), from)
            })
        });
        let mut all: Vec<(String, Info, Origin)> =
            old.filter(|(name, ..)| tensors.iter().all(|(new, ..)| new != name)).collect();
        for (i, &(name, dtype, shape)) in tensors.iter().enumerate() {
            let sizes: Vec<u64> = shape.iter().map(|n| *n as u64).collect();
            let (shape, bytes) = byte_length(dtype, &sizes).map_err(io::Error::other)?;
            let info = Info { dtype: Type::Known(file_type(dtype)), shape, data_offsets: (0, bytes) };
            all.push((name.to_string(), info, Origin::New(i)));
        }
        // Tensors of larger types come first, so that every tensor is aligned.
        all.sort_by(|(a, x, _), (b, y, _)| {
            (y.bits(), y.known()).cmp(&(x.bits(), x.known())).then_with(|| a.cmp(b))
        });
        let mut end = 0;
        for (_, info, _) in &mut all {
            let bytes = info.bytes();
            info.data_offsets = (end, end + bytes);
            end += bytes;
        }
        let text = kept.and_then(|directory| directory.text.as_deref());
        let mut json = serde_json::to_vec(&Written { text, tensors: &all })?;
        json.resize(json.len().next_multiple_of(8), b' ');
        if json.len() > MAX_HEADER {
            return Err(io::Error::other(format!("a header of {} bytes; allowed: {MAX_HEADER}", json.len())));
        }
        let header = [&(json.len() as u64).to_le_bytes()[..], &json].concat();
        let start = header.len() as u64;
        let pieces = all.iter().map(|(_, info, from)| {
            let (first, end) = info.data_offsets;
            Piece { start: start + first as u64, bytes: (end - first) as u64, from: *from }
        });
        Ok(EntryLayout { pieces: pieces.collect(), length: start + end as u64, header })
    }
}

/// Copies `bytes` bytes of a kept file, starting at byte offset `at`, to `writer`.
///
/// # Errors
/// Returns errors of reading and writing, and an error if the file ends early.
pub fn keep(mut file: impl Read + Seek, at: u64, bytes: u64, writer: &mut impl Write) -> io::Result<()> {
    file.seek(SeekFrom::Start(at))?;
    match io::copy(&mut file.take(bytes), writer)? < bytes {
        true => Err(io::ErrorKind::UnexpectedEof.into()),
        false => Ok(()),
    }
}

/// Writes a file that contains the new tensors `tensors`, every tensor of `kept` whose name differs from theirs, and
/// the metadata of `kept`.
///
/// # Errors
/// Returns errors of writing and reading, an error if a kept file ends early, and the errors of [`EntryLayout::new`].
pub fn write<R: Read + Seek>(
    writer: &mut impl Write,
    kept: Option<(&Directory, R)>,
    tensors: &[Named<'_>],
) -> io::Result<()> {
    let (kept, mut file) = kept.unzip();
    let shapes: Vec<_> = tensors.iter().map(|&(name, dtype, shape, _)| (name, dtype, shape)).collect();
    let form = EntryLayout::new(kept, &shapes)?;
    writer.write_all(&form.header)?;
    for piece in &form.pieces {
        match (piece.from, &mut file) {
            (Origin::New(i), _) => writer.write_all(tensors.get(i).map_or(&[], |(.., bytes)| bytes))?,
            (Origin::Kept(at), Some(file)) => keep(file, at, piece.bytes, writer)?,
            (Origin::Kept(_), None) => {}
        }
    }
    Ok(())
}

fn file_type(dtype: Stored) -> Dtype {
    match dtype {
        Stored::F64 => Dtype::F64,
        Stored::F32 => Dtype::F32,
        Stored::F16 => Dtype::F16,
        Stored::Bf16 => Dtype::BF16,
        Stored::Bool => Dtype::BOOL,
        Stored::U8 => Dtype::U8,
        Stored::I32 => Dtype::I32,
        Stored::I64 => Dtype::I64,
    }
}

/// Header of a new file, for serialization.
struct Written<'a> {
    text: Option<&'a RawValue>,
    tensors: &'a [(String, Info, Origin)],
}

impl Serialize for Written<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if let Some(text) = self.text {
            map.serialize_entry(METADATA, text)?;
        }
        for (name, info, _) in self.tensors {
            map.serialize_entry(name, info)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::safetensors::SafeTensors;
    use std::io::Cursor;

    fn open(bytes: &[u8]) -> Result<Directory, TensorError> {
        match Directory::read(&mut &bytes[..], bytes.len() as u64) {
            Ok(directory) => Ok(directory),
            Err(Fault::Content(error)) => Err(error),
            Err(other) => panic!("{other:?}"),
        }
    }

    /// Parses a complete file; returns the header and the bytes of the tensor `name`.
    fn parse<'a>(bytes: &'a [u8], name: &str) -> Result<(Header, &'a [u8]), TensorError> {
        let (header, start) = open(bytes)?.find(name)?;
        let data = &bytes[start as usize..][..header.bytes];
        Ok((header, data))
    }

    fn written(tensors: &[Named<'_>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        write::<Cursor<Vec<u8>>>(&mut bytes, None, tensors).unwrap();
        bytes
    }

    fn good() -> Vec<u8> {
        written(&[("mask", Stored::Bool, &[3], &[1, 0, 1]), ("q", Stored::Bf16, &[2, 4], &[9; 16])])
    }

    fn file(header: &str, payload: &[u8]) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), payload].concat()
    }

    #[test]
    fn what_is_written_is_read() {
        let bytes = good();
        let (header, data) = parse(&bytes, "q").unwrap();
        assert_eq!((header.dtype, &header.shape[..], data), (Stored::Bf16, &[2, 4][..], &[9u8; 16][..]));
        assert_eq!(parse(&bytes, "mask").unwrap().1, [1, 0, 1]);
        // The `safetensors` crate reads the same tensors.
        let read = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(
            (read.tensor("q").unwrap().dtype(), read.tensor("q").unwrap().shape()),
            (Dtype::BF16, &[2, 4][..])
        );
        assert_eq!(read.tensor("mask").unwrap().data(), [1, 0, 1]);
    }

    #[test]
    fn tensors_with_other_names_are_kept_with_the_text() {
        let header = concat!(
            r#"{"a":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[0,3]},"#,
            r#""__metadata__":{"z":"1","a":"\u00e9 \"x\""},"#,
            r#""old":{"dtype":"I16","shape":[2,1],"data_offsets":[3,7]},"#,
            r#""none":{"dtype":"F32","shape":[0,4],"data_offsets":[7,7]}}"#
        );
        let before = file(header, &[1, 2, 3, 4, 5, 6, 7]);
        let directory = open(&before).unwrap();
        let new: &[Named<'_>] = &[("old", Stored::F32, &[1], &[8; 4]), ("new", Stored::I64, &[], &[9; 8])];
        let mut after = Vec::new();
        write(&mut after, Some((&directory, Cursor::new(&before))), new).unwrap();
        let read = SafeTensors::deserialize(&after).unwrap();
        let tensor = |name: &str| {
            let view = read.tensor(name).unwrap();
            (view.dtype(), view.shape().to_vec(), view.data().to_vec())
        };
        assert_eq!(read.len(), 4);
        assert_eq!(tensor("a"), (Dtype::F8_E4M3, vec![3], vec![1, 2, 3]));
        assert_eq!(tensor("none"), (Dtype::F32, vec![0, 4], vec![]));
        assert_eq!(tensor("old"), (Dtype::F32, vec![1], vec![8; 4]));
        assert_eq!(tensor("new"), (Dtype::I64, vec![], vec![9; 8]));
        let (_, header) = SafeTensors::read_metadata(&after).unwrap();
        let text = header.metadata().clone().unwrap();
        assert_eq!((text.len(), &text["z"][..], &text["a"][..]), (2, "1", "é \"x\""));
        // The file was truncated after its header had been read.
        let short = Cursor::new(&before[..before.len() - 1]);
        let error = write(&mut Vec::new(), Some((&directory, short)), &new[..1]);
        assert!(error.is_ok(), "its end is replaced");
        let short = Cursor::new(&before[..before.len() - 5]);
        let error = write(&mut Vec::new(), Some((&directory, short)), &new[..1]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    /// Reads a file with unknown element types, which the reader of the `safetensors` crate refuses entirely.
    #[test]
    fn tensors_beside_those_of_unknown_types_are_read_and_kept() {
        let header = concat!(
            r#"{"scale":{"dtype":"F8_E4M3FNUZ","shape":[3],"data_offsets":[0,3]},"#,
            r#""q":{"dtype":"F32","shape":[1,2],"data_offsets":[3,11],"more":{}},"#,
            r#""odd":{"dtype":"I3_\u00e9","shape":[5,1],"data_offsets":[11,13]},"#,
            r#""none":{"dtype":"F8_E5M2FNUZ","shape":[0,9],"data_offsets":[13,13]}}"#
        );
        let bytes = file(header, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]);
        let (found, data) = parse(&bytes, "q").unwrap();
        assert_eq!(
            (found.dtype, &found.shape[..], data),
            (Stored::F32, &[1, 2][..], &[4, 5, 6, 7, 8, 9, 10, 11][..])
        );
        for (name, kind) in [("scale", "F8_E4M3FNUZ"), ("odd", "I3_é"), ("none", "F8_E5M2FNUZ")] {
            let error = parse(&bytes, name).unwrap_err().to_string();
            assert!(error.contains(kind) && error.contains("allowed: F32"), "{error}");
        }
        // Adding other tensors leaves every byte of the tensors of unknown type unchanged.
        let mut after = Vec::new();
        write(
            &mut after,
            Some((&open(&bytes).unwrap(), Cursor::new(&bytes))),
            &[("q", Stored::I64, &[1], &[7; 8])],
        )
        .unwrap();
        let directory = open(&after).unwrap();
        let all: Vec<(&str, &Type, &[u8])> = directory
            .tensors
            .iter()
            .map(|(name, info)| {
                (
                    &name[..],
                    &info.dtype,
                    &after[directory.start as usize..][info.data_offsets.0..info.data_offsets.1],
                )
            })
            .collect();
        let other = |name: &str| Type::Other(name.into());
        assert_eq!(
            all,
            [
                ("q", &Type::Known(Dtype::I64), &[7; 8][..]),
                ("scale", &other("F8_E4M3FNUZ"), &[1, 2, 3]),
                ("odd", &other("I3_é"), &[12, 13]),
                ("none", &other("F8_E5M2FNUZ"), &[]),
            ]
        );
        // Offsets and shapes of tensors of unknown type are checked like all others.
        for (from, to) in [
            ("[11,13]", "[10,13]"),
            ("[11,13]", "[13,11]"),
            ("[5,1]", "[9223372036854775807,4]"),
            ("\"I3_", "5, \"I3_"),
        ] {
            let bad = file(&header.replacen(from, to, 1), &[0; 13]);
            assert!(open(&bad).unwrap_err().to_string().contains("allowed"), "{to}");
        }
    }

    #[test]
    fn a_missing_name_lists_those_there_are() {
        let error = parse(&good(), "k").unwrap_err().to_string();
        assert!(error.contains("'k'") && error.contains("mask, q"), "{error}");
    }

    #[test]
    fn lies_are_refused() {
        let entry = |shape: &str, offsets: &str| {
            format!(r#"{{"q":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}}}"#)
        };
        assert!(parse(&file(&entry("[3]", "[0,12]"), &[0; 12]), "q").is_ok());
        for (shape, offsets, payload) in [
            ("[3]", "[0,12]", 11),
            ("[3]", "[0,12]", 13),
            ("[4]", "[0,12]", 12),
            ("[3]", "[4,16]", 16),
            ("[3]", "[0,18446744073709551615]", 12),
            ("[9223372036854775807,4]", "[0,12]", 12),
            ("[-3]", "[0,12]", 12),
        ] {
            let error = parse(&file(&entry(shape, offsets), &vec![0; payload]), "q").unwrap_err().to_string();
            assert!(error.contains("allowed") && !error.contains('\n'), "{error}");
        }
        let complex = entry("[1]", "[0,8]").replace("F32", "C64");
        assert!(parse(&file(&complex, &[0; 8]), "q").unwrap_err().to_string().contains("type C64"));
        let empty = entry("[0]", "[0,0]");
        let twice = format!("{},{}", &empty[..empty.len() - 1], &empty[1..]);
        assert!(open(&file(&twice, &[])).unwrap_err().to_string().contains("'q' twice"), "{twice}");
        for text in ["3", "[]", r#"{"a":1}"#, r#"{"a":{}}"#] {
            let bad = format!(r#"{{"__metadata__":{text}}}"#);
            assert!(open(&file(&bad, &[])).is_err(), "{bad}");
        }
        assert!(open(&file(r#"{"__metadata__":null}"#, &[])).unwrap().text.is_none());
    }

    #[test]
    fn headers_beyond_the_limit_are_refused() {
        let header = format!("{{}}{}", " ".repeat(MAX_HEADER - 2));
        assert!(open(&file(&header, &[])).is_ok());
        let error = open(&file(&(header + " "), &[])).unwrap_err().to_string();
        assert!(error.contains("a header of 10000001 bytes; allowed: at most 10000000"), "{error}");
    }

    #[test]
    fn no_bytes_panic() {
        let good = good();
        for cut in 0..good.len() {
            assert!(parse(&good[..cut], "q").is_err());
        }
        let mut longer = good.clone();
        longer.push(0);
        assert!(parse(&longer, "q").is_err());
        for at in 0..good.len() - 19 {
            for byte in 0..=255 {
                let mut bad = good.clone();
                bad[at] = byte;
                if let Ok((header, data)) = parse(&bad, "q") {
                    assert_eq!(data.len(), header.shape.iter().product::<usize>() * header.dtype.size());
                }
            }
        }
    }
}
