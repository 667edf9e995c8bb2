//! The `.npy` format, versions 1 to 3.
//!
//! ```text
//! "\x93NUMPY"  major  minor  length of the header (2 or 4 bytes)  header  elements
//! ```
//!
//! The header is a Python literal, `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`. `py_literal`
//! parses it, as in npyz. npyz parses the type string and writes the headers. Its reader is not used: it
//! allocates as many bytes as the length field names and multiplies the shape without a check, so a malformed
//! file ends the process.

use super::stored::{Parsed, Stored, byte_length};
use crate::error::TensorError;
use npyz::{Endianness, TypeChar, TypeStr, WriterBuilder};
use py_literal::Value;
use std::io::Write;

const MAGIC: &[u8] = b"\x93NUMPY";

/// The longest header that is read, in bytes. numpy has the same limit.
pub const MAX_HEADER: usize = 10_000;

/// Brackets of a plain header nest to depth two, of a structured type to four.
const MAX_NESTING: usize = 6;

fn format(found: impl Into<String>, allowed: &'static str) -> TensorError {
    TensorError::Format { format: ".npy", found: found.into(), allowed }
}

/// Parses a whole file.
///
/// # Errors
/// Anything but a little-endian tensor of a known type in C order whose elements fill its shape exactly.
pub fn parse(bytes: &[u8]) -> Result<Parsed<'_>, TensorError> {
    let Some(rest) = bytes.strip_prefix(MAGIC) else {
        let found = if bytes.len() < MAGIC.len() { "too short" } else { "no magic number" };
        return Err(format(found, "a file that starts with \\x93NUMPY"));
    };
    let truncated = || format("truncated header", "a complete header");
    let (length, rest) = match rest {
        [1, 0, a, b, rest @ ..] => (usize::from(u16::from_le_bytes([*a, *b])), rest),
        [2 | 3, 0, a, b, c, d, rest @ ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, rest),
        [1..=3, 0, ..] | [] | [_] => return Err(truncated()),
        [major, minor, ..] => {
            return Err(format(format!("version {major}.{minor}"), "versions 1.0, 2.0 and 3.0"));
        }
    };
    if length > MAX_HEADER {
        return Err(format(format!("a header of {length} bytes"), "at most 10000 bytes"));
    }
    let (header, payload) = rest.split_at_checked(length).ok_or_else(truncated)?;
    let (dtype, shape, fortran) = parse_header(header)?;
    let (shape, needed) = byte_length(dtype, &shape)?;
    // Both orders are the same bytes without elements, and with at most one axis longer than one.
    if fortran && needed > 0 && shape.iter().filter(|&&n| n > 1).count() > 1 {
        return Err(TensorError::FortranOrder);
    }
    if payload.len() != needed {
        return Err(TensorError::Length { found: payload.len(), needed, shape, dtype: dtype.name() });
    }
    Ok(Parsed { dtype, shape, bytes: payload })
}

fn parse_header(header: &[u8]) -> Result<(Stored, Vec<u64>, bool), TensorError> {
    const ALLOWED: &str = "a dictionary of descr, fortran_order and shape";
    let text = std::str::from_utf8(header).map_err(|_| format("a header that is not text", ALLOWED))?;
    guard(text)?;
    let value = text.trim_end().parse::<Value>();
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

/// Refuses what makes the parser of literals slow or panic: deep nesting, escapes, arithmetic. The header of a
/// plain type has none of them.
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

const TYPES: &str = "little-endian <f4, <f2, |b1, <i8, <i4";

fn parse_type(descr: &str) -> Result<Stored, TensorError> {
    let unknown = || TensorError::Type { found: format!("'{}'", descr.escape_debug()), allowed: TYPES };
    let parsed: TypeStr = descr.parse().map_err(|_| unknown())?;
    match (parsed.endianness(), parsed.type_char(), parsed.size_field()) {
        (_, TypeChar::Bool, 1) => Ok(Stored::Bool),
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

/// Writes a tensor: the header, then `bytes` as they are.
///
/// # Errors
/// What the writer reports, and a type that the format does not have.
pub fn write(writer: impl Write, dtype: Stored, shape: &[usize], bytes: &[u8]) -> std::io::Result<()> {
    let descr = match dtype {
        Stored::F32 => "<f4",
        Stored::F16 => "<f2",
        Stored::Bool => "|b1",
        Stored::I32 => "<i4",
        Stored::I64 => "<i8",
        Stored::Bf16 => return Err(std::io::Error::other(".npy has no bf16")),
    };
    let descr: TypeStr = descr.parse().map_err(std::io::Error::other)?;
    let shape: Vec<u64> = shape.iter().map(|&n| n as u64).collect();
    let mut writer = npyz::WriteOptions::new_header_only()
        .dtype(npyz::DType::new_scalar(descr))
        .shape(&shape)
        .writer(writer)
        .write_header_only()?;
    writer.write_all(bytes)
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

    #[test]
    fn what_is_written_is_read() {
        let data: Vec<f32> = (0..24).map(|x| x as f32).collect();
        for shape in [&[24][..], &[2, 3, 4], &[1, 2, 3, 4]] {
            let mut bytes = Vec::new();
            write(&mut bytes, Stored::F32, shape, bytemuck::cast_slice(&data)).unwrap();
            let parsed = parse(&bytes).unwrap();
            assert_eq!((parsed.dtype, &parsed.shape[..]), (Stored::F32, shape));
            assert_eq!(parsed.bytes, bytemuck::cast_slice::<f32, u8>(&data));
            assert_eq!((bytes.len() - parsed.bytes.len()) % 64, 0);
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
            assert_eq!(parse(&bytes).unwrap().shape, [2], "{major}");
        }
        for (descr, stored) in
            [("<f4", Stored::F32), ("<f2", Stored::F16), ("|b1", Stored::Bool), ("<i4", Stored::I32)]
        {
            let bytes = file(&plain(descr, "False", "()"), &[0; 8][..stored.size()]);
            assert_eq!(parse(&bytes).unwrap().dtype, stored);
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
        refused(&plain("<f8", "False", "(1,)"), &twelve, "'<f8'");
        refused(&plain("|O", "False", "(1,)"), &twelve, "'|O'");
        refused(&plain("<f4", "0", "(3,)"), &twelve, "boolean");
        refused(&plain("<f4", "True", "(3, 1, 2)"), &[0; 24], "Fortran");
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
        for shape in ["(3,)", "(1, 3)", "(3, 1, 1)"] {
            assert!(parse(&file(&plain("<f4", "True", shape), &[0; 12])).is_ok(), "{shape}");
        }
        assert!(parse(&file(&plain("<f4", "True", "(3, 2, 0)"), &[])).is_ok());
    }

    /// Every change of one byte and every truncation of a good file is parsed or refused, never a panic.
    #[test]
    fn no_bytes_panic() {
        let good = file(&plain("<f4", "False", "(3,)"), &[7; 12]);
        for cut in 0..good.len() {
            assert!(parse(&good[..cut]).is_err());
        }
        for at in 0..good.len() - 12 {
            for byte in 0..=255 {
                let mut bad = good.clone();
                bad[at] = byte;
                if let Ok(parsed) = parse(&bad) {
                    assert_eq!(
                        parsed.bytes.len(),
                        parsed.shape.iter().product::<usize>() * parsed.dtype.size()
                    );
                }
            }
        }
    }
}
