//! The `.npy` format, versions 1 to 3.
//!
//! ```text
//! "\x93NUMPY"  major  minor  length of the header (2 or 4 bytes)  header  elements
//! ```
//!
//! The header is a Python literal, `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`. `py_literal` parses
//! it, as in npyz. npyz parses the type string and writes the headers. The reader of npyz is not used. It allocates as
//! many bytes as the length field claims, and it multiplies the sizes of the shape without an overflow check, so a
//! malformed file could end the process.

use super::error::TensorError;
use super::stored::{Fault, Header, Stored, byte_length};
use npyz::{Endianness, TypeChar, TypeStr, WriterBuilder};
use py_literal::Value;
use std::io::{self, Read, Write};

const MAGIC: &[u8] = b"\x93NUMPY";

/// Longest header that is read, in bytes; numpy has the same limit.
const MAX_HEADER: usize = 10_000;

/// Maximum nesting of brackets. Headers of plain types have depth two, headers of structured types four.
const MAX_NESTING: usize = 6;

fn format(found: impl Into<String>, allowed: &'static str) -> TensorError {
    TensorError::Format { format: ".npy", found: found.into(), allowed }
}

/// Reads the header of a file of `length` bytes and leaves `reader` at the first element.
///
/// # Errors
/// Returns an error unless the file is a little-endian tensor of a known type whose elements fill its shape exactly.
pub fn header(reader: &mut (impl Read + ?Sized), length: u64) -> Result<Header, Fault> {
    // `length` is the file's length when it was opened; if the file is shorter now, a read fails instead.
    let mut left = length;
    let magic: [u8; MAGIC.len()] = bytes(reader, &mut left)
        .ok_or_else(|| format("too short", "a file that starts with \\x93NUMPY"))??;
    if magic != *MAGIC {
        return Err(format("no magic number", "a file that starts with \\x93NUMPY").into());
    }
    let truncated = || format("truncated header", "a complete header");
    let size = match bytes(reader, &mut left).ok_or_else(truncated)?? {
        [1, 0] => u32::from(u16::from_le_bytes(bytes(reader, &mut left).ok_or_else(truncated)??)),
        [2 | 3, 0] => u32::from_le_bytes(bytes(reader, &mut left).ok_or_else(truncated)??),
        [major, minor] => {
            return Err(format(format!("version {major}.{minor}"), "versions 1.0, 2.0 and 3.0").into());
        }
    };
    if size as usize > MAX_HEADER {
        return Err(format(format!("a header of {size} bytes"), "at most 10000 bytes").into());
    }
    left = left.checked_sub(u64::from(size)).ok_or_else(truncated)?;
    let mut text = vec![0; size as usize];
    reader.read_exact(&mut text)?;
    let (dtype, shape, fortran) = parse_header(&text)?;
    let (shape, needed) = byte_length(dtype, &shape)?;
    // Both orders have the same bytes in two cases: there are no elements, or at most one axis is longer than one.
    let fortran = fortran && needed > 0 && shape.iter().filter(|&&n| n > 1).count() > 1;
    if left != needed as u64 {
        let found = usize::try_from(left).unwrap_or(usize::MAX);
        return Err(TensorError::Length { found, needed, shape, dtype: dtype.name() }.into());
    }
    Ok(Header { dtype, shape, bytes: needed, fortran })
}

/// Reads the next `N` bytes and subtracts `N` from `left`. Returns `None` if fewer than `N` bytes are left.
fn bytes<const N: usize>(reader: &mut (impl Read + ?Sized), left: &mut u64) -> Option<io::Result<[u8; N]>> {
    *left = left.checked_sub(N as u64)?;
    let mut bytes = [0; N];
    Some(reader.read_exact(&mut bytes).map(|()| bytes))
}

fn parse_header(header: &[u8]) -> Result<(Stored, Vec<u64>, bool), TensorError> {
    const ALLOWED: &str = "a dictionary of descr, fortran_order and shape";
    let text = std::str::from_utf8(header).map_err(|_| format("a header that is not text", ALLOWED))?;
    guard(text)?;
    let value = without_longs(text).trim_end().parse::<Value>();
    let Ok(Value::Dict(entries)) = value else {
        return Err(format("a header that is not a Python dictionary", ALLOWED));
    };
    let get = |key: &str| {
        let mut found = entries.iter().filter(|(k, _)| matches!(k, Value::String(k) if k == key));
        match (found.next(), found.next()) {
            (Some((_, value)), None) => Ok(value),
            (None, _) => Err(format(format!("a header without '{key}'"), ALLOWED)),
            (Some(_), Some(_)) => Err(format(format!("a header with '{key}' twice"), ALLOWED)),
        }
    };
    let dtype = match get("descr")? {
        Value::String(descr) => parse_type(descr)?,
        _ => return Err(TensorError::Type { found: "structured".into(), allowed: TYPES }),
    };
    let fortran = match get("fortran_order")? {
        Value::Boolean(fortran) => *fortran,
        _ => return Err(format("a 'fortran_order' that is not a boolean", ALLOWED)),
    };
    let sizes = match get("shape")? {
        Value::Tuple(sizes) | Value::List(sizes) => sizes,
        _ => return Err(format("a 'shape' that is not a tuple", ALLOWED)),
    };
    let size = |value: &Value| match value {
        Value::Integer(n) => u64::try_from(n).ok(),
        _ => None,
    };
    let shape = sizes.iter().map(size).collect::<Option<Vec<u64>>>();
    let shape = shape.ok_or_else(|| {
        format("a 'shape' whose entries are not integers of 64 bits", "non-negative integers")
    })?;
    Ok((dtype, shape, fortran))
}

/// Removes the suffix `L` that Python 2 writes after long integers.
fn without_longs(text: &str) -> String {
    let (mut plain, mut quote, mut digit) = (String::with_capacity(text.len()), None, false);
    for c in text.chars() {
        let long = c == 'L' && digit && quote.is_none();
        if !long {
            plain.push(c);
        }
        digit = c.is_ascii_digit();
        match quote {
            None if c == '\'' || c == '"' => quote = Some(c),
            Some(open) if open == c => quote = None,
            _ => {}
        }
    }
    plain
}

/// Rejects text that contains a backslash, a plus or minus sign, or brackets that are nested more than [`MAX_NESTING`]
/// deep, because the literal parser is slow or panics on such text. The header of a tensor of plain type contains none
/// of these.
fn guard(text: &str) -> Result<(), TensorError> {
    const ALLOWED: &str = "a plain header, without arithmetic, escapes or deep nesting";
    let (mut depth, mut greatest) = (0usize, 0usize);
    for c in text.chars() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            '+' | '-' | '\\' => return Err(format(format!("'{c}' in the header"), ALLOWED)),
            _ => {}
        }
        greatest = greatest.max(depth);
    }
    if greatest > MAX_NESTING {
        return Err(format(format!("brackets {greatest} deep in the header"), ALLOWED));
    }
    Ok(())
}

const TYPES: &str = "little-endian <f4, <f2, <f8, |b1, |u1, <i8, <i4";

fn parse_type(descr: &str) -> Result<Stored, TensorError> {
    let unknown = || TensorError::Type { found: format!("'{}'", descr.escape_debug()), allowed: TYPES };
    let parsed: TypeStr = descr.parse().map_err(|_| unknown())?;
    match (parsed.endianness(), parsed.type_char(), parsed.size_field()) {
        (_, TypeChar::Bool, 1) => Ok(Stored::Bool),
        (_, TypeChar::Uint, 1) => Ok(Stored::U8),
        (Endianness::Little, TypeChar::Float, 8) => Ok(Stored::F64),
        (Endianness::Little, TypeChar::Float, 4) => Ok(Stored::F32),
        (Endianness::Little, TypeChar::Float, 2) => Ok(Stored::F16),
        (Endianness::Little, TypeChar::Int, 8) => Ok(Stored::I64),
        (Endianness::Little, TypeChar::Int, 4) => Ok(Stored::I32),
        (Endianness::Big, ..) => Err(TensorError::Type {
            found: format!("'{}' (big-endian)", descr.escape_debug()),
            allowed: TYPES,
        }),
        _ => Err(unknown()),
    }
}

/// Writes the header of a tensor; the caller writes the raw elements after it.
///
/// # Errors
/// Returns errors of the writer, and an error if the format does not support the type.
pub fn write_header(writer: impl Write, dtype: Stored, shape: &[usize]) -> io::Result<()> {
    let descr = match dtype {
        Stored::F64 => "<f8",
        Stored::F32 => "<f4",
        Stored::F16 => "<f2",
        Stored::Bool => "|b1",
        Stored::U8 => "|u1",
        Stored::I32 => "<i4",
        Stored::I64 => "<i8",
        Stored::Bf16 => return Err(io::Error::other(".npy has no bf16")),
    };
    let descr: TypeStr = descr.parse().map_err(io::Error::other)?;
    let shape: Vec<u64> = shape.iter().map(|&n| n as u64).collect();
    npyz::WriteOptions::new_header_only()
        .dtype(npyz::DType::new_scalar(descr))
        .shape(&shape)
        .writer(writer)
        .write_header_only()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, payload: &[u8]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([1, 0]);
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(payload);
        bytes
    }

    fn plain(descr: &str, fortran: &str, shape: &str) -> String {
        format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}")
    }

    /// Parses the header of a complete file and returns it with the bytes that follow.
    fn parse(mut file: &[u8]) -> Result<(Header, &[u8]), TensorError> {
        let length = file.len() as u64;
        match header(&mut file, length) {
            Ok(header) => Ok((header, file)),
            Err(Fault::Content(error)) => Err(error),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let data: Vec<u8> = (0..96).collect();
        for shape in [&[24][..], &[2, 3, 4], &[1, 2, 3, 4]] {
            let mut bytes = Vec::new();
            write_header(&mut bytes, Stored::F32, shape).unwrap();
            assert_eq!(bytes.len() % 64, 0);
            bytes.extend(&data);
            let (header, rest) = parse(&bytes).unwrap();
            assert_eq!((header.dtype, &header.shape[..], header.bytes), (Stored::F32, shape, 96));
            assert_eq!(rest, data);
        }
    }

    #[test]
    fn every_version_and_type_is_read() {
        let header = plain("<i8", "False", "(2,)");
        for (major, length) in [(1u8, 2), (2, 4), (3, 4)] {
            let mut bytes = MAGIC.to_vec();
            bytes.extend([major, 0]);
            bytes.extend(&(header.len() as u32).to_le_bytes()[..length]);
            bytes.extend(header.as_bytes());
            bytes.extend([0; 16]);
            assert_eq!(parse(&bytes).unwrap().0.shape, [2], "{major}");
        }
        for (descr, stored) in [
            ("<f8", Stored::F64),
            ("<f4", Stored::F32),
            ("<f2", Stored::F16),
            ("|b1", Stored::Bool),
            ("|u1", Stored::U8),
            ("<i4", Stored::I32),
        ] {
            let bytes = file(&plain(descr, "False", "()"), &[0; 8][..stored.size()]);
            assert_eq!(parse(&bytes).unwrap().0.dtype, stored);
            let mut written = Vec::new();
            write_header(&mut written, stored, &[]).unwrap();
            assert!(written.windows(3).any(|three| three == descr.as_bytes()), "{descr}");
        }
    }

    #[test]
    fn lies_are_refused() {
        let twelve = [0u8; 12];
        let refused = |header: &str, payload: &[u8], word: &str| {
            let error = parse(&file(header, payload)).unwrap_err().to_string();
            assert!(error.contains(word) && error.contains("allowed") && !error.contains('\n'), "{error}");
        };
        refused(&plain("<f4", "False", "(4,)"), &twelve, "12 bytes");
        refused(&plain("<f4", "False", "(2,)"), &twelve, "12 bytes");
        refused(&plain("<f4", "False", "(18446744073709551615, 2)"), &twelve, "shape");
        refused(&plain("<f4", "False", "(4294967296, 4294967296, 0)"), &[], "shape");
        refused(&plain("<f4", "False", "(99999999999999999999,)"), &twelve, "integers");
        refused(&plain("<f4", "False", "(-3,)"), &twelve, "'-'");
        refused(&plain(">f4", "False", "(3,)"), &twelve, "big-endian");
        refused(&plain("<c8", "False", "(1,)"), &twelve, "'<c8'");
        refused(&plain("|O", "False", "(1,)"), &twelve, "'|O'");
        refused(&plain("<f4", "0", "(3,)"), &twelve, "boolean");
        refused(&plain("<f4", "False", "(L,)"), &twelve, "dictionary");
        refused(&plain("<f4L", "False", "(3,)"), &twelve, "'<f4L'");
        refused("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,)}", &twelve, "structured");
        refused("{'fortran_order': False, 'shape': (3,)}", &twelve, "without 'descr'");
        refused(&format!("{{'shape': (1,), {}", &plain("<f4", "False", "(3,)")[1..]), &twelve, "twice");
        refused(&"(".repeat(2000), &twelve, "deep");
        refused("{'descr': 1.0+9, }", &twelve, "'+'");
        assert!(parse(b"").is_err() && parse(b"\x93NUMPY").is_err() && parse(b"\x93NUMPY\x01").is_err());
        assert!(parse(b"\x93NUMPY\x07\x00\x00\x00").unwrap_err().to_string().contains("version 7.0"));
        assert!(parse(b"\x93NUMPY\x02\x00\xff\xff\xff\xff").unwrap_err().to_string().contains("4294967295"));
    }

    #[test]
    fn fortran_order_of_a_vector_is_no_order() {
        let order = |shape: &str, payload: &[u8]| {
            parse(&file(&plain("<f4", "True", shape), payload)).unwrap().0.fortran
        };
        for shape in ["(3,)", "(1, 3)", "(3, 1, 1)"] {
            assert!(!order(shape, &[0; 12]), "{shape}");
        }
        assert!(!order("(3, 2, 0)", &[]) && order("(3, 1, 2)", &[0; 24]));
    }

    #[test]
    fn integers_of_python_2_are_read() {
        for (shape, want) in
            [("(3L,)", &[3][..]), ("(1L, 3L)", &[1, 3]), ("(3L, 1,)", &[3, 1]), ("[3L]", &[3])]
        {
            assert_eq!(
                parse(&file(&plain("<f4", "False", shape), &[0; 12])).unwrap().0.shape,
                want,
                "{shape}"
            );
        }
        assert_eq!(without_longs("{'1L': 2L, \"3L'4L\": 5L}"), "{'1L': 2, \"3L'4L\": 5}");
    }

    /// Step between the byte values under test: 1 natively, 7 in the emulator of aarch64.
    const STEP: usize = if cfg!(target_arch = "aarch64") { 7 } else { 1 };

    /// Checks that a valid file is parsed or refused without a panic after any one-byte change or truncation.
    #[test]
    fn no_bytes_panic() {
        let good = file(&plain("<f4", "False", "(3,)"), &[7; 12]);
        for cut in 0..good.len() {
            assert!(parse(&good[..cut]).is_err());
        }
        for at in 0..good.len() - 12 {
            for byte in (0..=255).step_by(STEP) {
                let mut bad = good.clone();
                bad[at] = byte;
                if let Ok((header, rest)) = parse(&bad) {
                    assert_eq!(rest.len(), header.shape.iter().product::<usize>() * header.dtype.size());
                }
            }
        }
    }
}
