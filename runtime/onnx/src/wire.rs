//! The wire format of protocol buffers: fields as spans of bytes.
//!
//! A message is a sequence of fields. A field has a number, a wire type and a payload. A reader that keeps the span of
//! every field can write a message again with some fields replaced. All other fields, including unknown ones, then stay
//! unchanged byte for byte.

use std::ops::Range;

/// Error for bytes that are not a protocol-buffer message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {at}")]
pub struct WireError {
    /// Description of the error.
    pub what: &'static str,
    /// Offset of the error from the first byte of the file.
    pub at: usize,
}

/// Content of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// A varint.
    Varint(u64),
    /// Four bytes, little-endian.
    Fixed32(u32),
    /// Eight bytes, little-endian.
    Fixed64(u64),
    /// Length-prefixed bytes: a message, a text or packed numbers. The range counts from the start of the file.
    Bytes(Range<usize>),
}

/// A field of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Number of the field.
    pub number: u32,
    /// Content of the field.
    pub payload: Payload,
    /// Byte range of the complete field, including its key. The range counts from the start of the file.
    pub span: Range<usize>,
}

impl Field {
    /// Returns the range of the bytes in a length-prefixed field.
    ///
    /// # Errors
    /// Returns an error for a field of another wire type.
    pub fn bytes(&self) -> Result<Range<usize>, WireError> {
        match &self.payload {
            Payload::Bytes(range) => Ok(range.clone()),
            _ => Err(WireError { what: "a number where a message or a text belongs", at: self.span.start }),
        }
    }

    /// Returns the value of a varint field as a signed number.
    ///
    /// # Errors
    /// Returns an error for a field of another wire type.
    pub fn int(&self) -> Result<i64, WireError> {
        match self.payload {
            Payload::Varint(x) => Ok(x.cast_signed()),
            _ => Err(WireError { what: "no varint where an integer belongs", at: self.span.start }),
        }
    }
}

/// Reads the varint at `*at`, which must end before `end`, and advances `*at`.
fn varint(file: &[u8], at: &mut usize, end: usize) -> Result<u64, WireError> {
    let start = *at;
    let mut value = 0u64;
    for shift in (0..70).step_by(7) {
        if *at >= end {
            return Err(WireError { what: "the message ends within a number", at: start });
        }
        let byte = file[*at];
        *at += 1;
        if shift == 63 && byte > 1 {
            break;
        }
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(WireError { what: "a varint of more than 64 bits", at: start })
}

/// Reads the fields of the message in `range` of `file`.
///
/// # Errors
/// Returns an error for bytes that are not a message, and for groups, which no model uses.
pub fn fields(file: &[u8], range: Range<usize>) -> Result<Vec<Field>, WireError> {
    let (mut at, end) = (range.start, range.end);
    let mut all = Vec::new();
    while at < end {
        let start = at;
        let key = varint(file, &mut at, end)?;
        let number = u32::try_from(key >> 3).ok().filter(|n| (1..1 << 29).contains(n));
        let Some(number) = number else {
            return Err(WireError { what: "a field number out of range", at: start });
        };
        let mut take = |n: usize| {
            if end - at < n {
                return Err(WireError { what: "the message ends within a field", at: start });
            }
            at += n;
            Ok(at - n..at)
        };
        let payload = match key & 7 {
            0 => Payload::Varint(varint(file, &mut at, end)?),
            1 => {
                let mut bytes = [0; 8];
                bytes.copy_from_slice(&file[take(8)?]);
                Payload::Fixed64(u64::from_le_bytes(bytes))
            }
            5 => {
                let mut bytes = [0; 4];
                bytes.copy_from_slice(&file[take(4)?]);
                Payload::Fixed32(u32::from_le_bytes(bytes))
            }
            2 => {
                let length = usize::try_from(varint(file, &mut at, end)?).unwrap_or(usize::MAX);
                if end - at < length {
                    return Err(WireError { what: "a field that is longer than its message", at: start });
                }
                at += length;
                Payload::Bytes(at - length..at)
            }
            _ => return Err(WireError { what: "a wire type that no model uses", at: start }),
        };
        all.push(Field { number, payload, span: start..at });
    }
    Ok(all)
}

/// Reads the numbers of a repeated integer field: one varint, or several varints packed in one field.
///
/// # Errors
/// Returns an error for bytes that are not varints.
pub fn ints(file: &[u8], field: &Field, into: &mut Vec<i64>) -> Result<(), WireError> {
    match &field.payload {
        Payload::Varint(x) => into.push(x.cast_signed()),
        Payload::Bytes(range) => {
            let mut at = range.start;
            while at < range.end {
                into.push(varint(file, &mut at, range.end)?.cast_signed());
            }
        }
        _ => return Err(WireError { what: "no varint where an integer belongs", at: field.span.start }),
    }
    Ok(())
}

/// Writer of a message, with the bytes written so far.
#[derive(Clone, Debug, Default)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    fn varint(&mut self, mut x: u64) {
        while x >= 0x80 {
            self.0.push(x as u8 | 0x80);
            x >>= 7;
        }
        self.0.push(x as u8);
    }

    /// Writes a varint field.
    pub fn int(&mut self, number: u32, x: i64) {
        self.varint(u64::from(number) << 3);
        self.varint(x.cast_unsigned());
    }

    /// Writes an f32 field.
    pub fn float(&mut self, number: u32, x: f32) {
        self.varint(u64::from(number) << 3 | 5);
        self.0.extend(x.to_le_bytes());
    }

    /// Writes a length-prefixed field.
    pub fn bytes(&mut self, number: u32, bytes: &[u8]) {
        self.start(number, bytes.len());
        self.0.extend(bytes);
    }

    /// Writes what precedes the `len` bytes of a length-prefixed field.
    pub fn start(&mut self, number: u32, len: usize) {
        self.varint(u64::from(number) << 3 | 2);
        self.varint(len as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_they_were_written() {
        let mut w = Writer::default();
        w.int(1, -7);
        w.float(2, 0.5);
        w.bytes(300, b"text");
        let all = fields(&w.0, 0..w.0.len()).unwrap();
        assert_eq!(all.iter().map(|f| f.number).collect::<Vec<_>>(), [1, 2, 300]);
        assert_eq!(all[0].int(), Ok(-7));
        assert_eq!(all[1].payload, Payload::Fixed32(0.5f32.to_bits()));
        assert_eq!(&w.0[all[2].bytes().unwrap()], b"text");
        assert_eq!(all.last().unwrap().span.end, w.0.len());
    }

    #[test]
    fn a_field_ends_with_its_message_where_the_file_goes_on() {
        let file = [0x12, 3, 1, 0, 0, 0, 0];
        let found = fields(&file, 0..3).unwrap_err();
        assert!(found.what.contains("longer than its message") && found.at == 0, "{found}");
        assert_eq!(fields(&file, 0..5).map(|all| all.len()), Ok(1));
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for (bytes, what) in [
            (&[0x08][..], "ends within a number"),
            (&[0x08, 0x80], "ends within a number"),
            (&[0x12, 5, 1], "longer than its message"),
            (&[0x0d, 1, 2], "ends within a field"),
            (&[0x0b], "wire type"),
            (&[0x00, 1], "out of range"),
            (&[0x08, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2], "more than 64 bits"),
            (&[0x12, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1], "longer than its message"),
        ] {
            let found = fields(bytes, 0..bytes.len()).unwrap_err();
            assert!(found.what.contains(what), "{bytes:?}: {found}");
        }
    }
}
