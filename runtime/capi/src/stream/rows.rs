//! C callbacks as the source and the sink of a stream.

use crate::types::*;
use elsa_core::attention::Operand;
use elsa_runtime::{Excerpt, PieceError, RowSink, RowSource, StreamError};
use std::ffi::c_void;
use std::{fmt, io};

/// Error of a run that a callback ended by returning a non-zero value.
#[derive(Debug)]
struct Ended {
    name: &'static str,
    code: i32,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} returned {}", self.name, self.code)
    }
}

impl std::error::Error for Ended {}

/// Returns the operand for which a callback ended the run, or 0 for `unit_finished`, and the value that the callback
/// returned; `None` if the run failed for another reason.
pub(crate) fn ended(e: &StreamError) -> Option<(elsa_operand, i32)> {
    let (operand, source) = match e {
        StreamError::Read { operand, source, .. } | StreamError::Write { operand, source, .. } => {
            (*operand as elsa_operand, source)
        }
        StreamError::Note { source, .. } => (0, source),
        _ => return None,
    };
    let ended = source.get_ref()?.downcast_ref::<Ended>()?;
    Some((operand, ended.code))
}

/// Converts an excerpt to the struct that describes its rows to a callback.
fn rows_of(operand: Operand, excerpt: &Excerpt) -> elsa_rows {
    elsa_rows {
        size: size_of::<elsa_rows>(),
        operand: operand as elsa_operand,
        // Elements have at most eight bytes.
        element_bytes: excerpt.size as u32,
        first: excerpt.first,
        count: excerpt.count,
        start: excerpt.start,
        length: excerpt.len,
        strides: excerpt.to,
    }
}

/// Converts the value that a callback returned for an excerpt to a result.
fn done(name: &'static str, code: i32, excerpt: &Excerpt) -> Result<(), PieceError> {
    match code {
        0 => Ok(()),
        code => Err(failed(excerpt, io::Error::other(Ended { name, code }))),
    }
}

fn failed(excerpt: &Excerpt, source: io::Error) -> PieceError {
    PieceError { offset: excerpt.offset(), bytes: excerpt.bytes(), source }
}

/// Returns the error for an excerpt that does not fit into its buffer.
fn outside(excerpt: &Excerpt) -> PieceError {
    failed(excerpt, io::ErrorKind::UnexpectedEof.into())
}

/// Read callback with its first argument.
pub(crate) struct Reader {
    call: unsafe extern "C" fn(*mut c_void, *const elsa_rows, *mut c_void, usize) -> i32,
    user: *mut c_void,
    /// Operand and value of the call that ended the run.
    pub ended: Option<(elsa_operand, i32)>,
}

// SAFETY: another thread may call the callback with its pointer (clause *callbacks*).
unsafe impl Send for Reader {}

/// Callbacks of outputs with their first argument, and the number of units whose outputs it has received.
pub(crate) struct Writer {
    call: unsafe extern "C" fn(*mut c_void, *const elsa_rows, *const c_void, usize) -> i32,
    note: elsa_stream_unit_finished,
    user: *mut c_void,
    /// Number of finished units, including the units before the first one of this run.
    pub finished: usize,
    /// Operand and value of the call that ended the run.
    pub ended: Option<(elsa_operand, i32)>,
}

impl Reader {
    /// Returns the read callback in `data`, if it has one.
    pub(crate) fn new(data: &elsa_stream_data) -> Option<Reader> {
        data.read.map(|call| Reader { call, user: data.user, ended: None })
    }
}

impl Writer {
    /// Returns the write callback in `data`, if it has one.
    pub(crate) fn new(data: &elsa_stream_data) -> Option<Writer> {
        let (note, user, finished) = (data.unit_finished, data.user, data.first_unit);
        data.write.map(|call| Writer { call, note, user, finished, ended: None })
    }
}

impl RowSource<Operand> for Reader {
    fn read_rows(&mut self, operand: Operand, excerpt: &Excerpt, to: &mut [u8]) -> Result<(), PieceError> {
        let Some(place) = excerpt.place() else { return Ok(()) };
        let to = to.get_mut(place).ok_or_else(|| outside(excerpt))?;
        let (rows, bytes) = (rows_of(operand, excerpt), to.len());
        // SAFETY: the callback may be called (clause *callbacks*). The memory is writable for its bytes, and nothing
        // else uses it before the call returns.
        let code = unsafe { (self.call)(self.user, &raw const rows, to.as_mut_ptr().cast(), bytes) };
        if code != 0 {
            self.ended = Some((operand as elsa_operand, code));
        }
        done("read", code, excerpt)
    }
}

impl RowSink<Operand> for Writer {
    fn write_rows(&mut self, operand: Operand, excerpt: &Excerpt, from: &[u8]) -> Result<(), PieceError> {
        let Some(place) = excerpt.place() else { return Ok(()) };
        let from = from.get(place).ok_or_else(|| outside(excerpt))?;
        let rows = rows_of(operand, excerpt);
        // SAFETY: the callback may be called (clause *callbacks*). The memory is readable for its bytes, and nothing
        // writes there before the call returns.
        let code = unsafe { (self.call)(self.user, &raw const rows, from.as_ptr().cast(), from.len()) };
        if code != 0 {
            self.ended = Some((operand as elsa_operand, code));
        }
        done("write", code, excerpt)
    }

    fn unit_finished(&mut self, unit: usize) -> io::Result<()> {
        // SAFETY: the callback may be called (clause *callbacks*).
        let code = self.note.map_or(0, |note| unsafe { note(self.user, unit) });
        if code != 0 {
            self.ended = Some((0, code));
            return Err(io::Error::other(Ended { name: "unit_finished", code }));
        }
        self.finished = unit + 1;
        Ok(())
    }

    fn part_computed(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_have_the_numbers_of_the_header() {
        let numbers = [
            ELSA_OPERAND_Q,
            ELSA_OPERAND_K,
            ELSA_OPERAND_V,
            ELSA_OPERAND_PAST_K,
            ELSA_OPERAND_PAST_V,
            ELSA_OPERAND_MASK,
            ELSA_OPERAND_BIAS,
            ELSA_OPERAND_BIAS_INDEX,
            ELSA_OPERAND_OUT,
            ELSA_OPERAND_PRESENT_K,
            ELSA_OPERAND_PRESENT_V,
            ELSA_OPERAND_LSE,
            ELSA_OPERAND_STATE_M,
            ELSA_OPERAND_STATE_S,
            ELSA_OPERAND_STATE_W,
        ];
        assert_eq!(Operand::ALL.map(|operand| operand as elsa_operand), numbers);
    }
}
