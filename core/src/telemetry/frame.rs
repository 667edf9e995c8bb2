//! Frames that carry records over a serial line. The line may flip bits, drop bytes, and end anywhere.
//!
//! ```text
//! frame    = COBS(message) 0
//! message  = version: u8 | run: u32 | sequence: u32 | record: postcard | check: u32        little-endian
//! check    = CRC-32C of all preceding bytes of the message
//! ```
//!
//! The obvious format writes the bytes of the records one after another. Frames differ from it for five reasons:
//!
//! 1. A reader that starts in the middle, or has lost a byte, must find the next record. Consistent overhead byte
//!    stuffing (COBS) removes all zeros from a frame, at the cost of one byte in 254, so a zero always ends a frame.
//!    Damage is limited to its frame: the record after the next zero is intact.
//! 2. A damaged record must not be shown. CRC-32C detects up to five wrong bits in a message of up to 655 bytes, up to
//!    three wrong bits in any message of this format, and every burst of 32 bits. It detects all other damage,
//!    including damage to the byte stuffing, with a probability of 1 − 2⁻³². A message that passes the check must also
//!    be the postcard encoding of a record, without spare bytes.
//! 3. A reader must know that records are missing, even if a whole frame vanished without a trace or the sender itself
//!    dropped it. Records are numbered from 0 when they are made, not when they are sent.
//! 4. Rows of one run must not be read under the heading of another. Each run has its own number. This number
//!    identifies the records of the run even if the start of the run was lost.
//! 5. A reader may be older than the sender. In every version of the format the version number is first and the check
//!    is last, so a reader distinguishes a frame of another version from a damaged one and never misreads it.

use super::record::Record;
use core::fmt::{self, Display, Formatter};
use crc::{CRC_32_ISCSI, Crc, Table};

/// Version of the contents of frames.
pub const VERSION: u8 = 3;

/// Size of the longest record in bytes.
pub const RECORD: usize = 1090;

/// Number of bytes in a message before the record: version, run and sequence.
const HEADER: usize = 1 + 4 + 4;

/// Size of the checksum in bytes.
const CHECK: usize = 4;

/// Size of the longest message in bytes.
const MESSAGE: usize = HEADER + RECORD + CHECK;

/// Size of the longest frame in bytes, including the zero that ends it.
pub const FRAME: usize = cobs::max_encoding_length(MESSAGE) + 1;

/// CRC-32C, computed with a table of 1 KiB.
const CRC: Crc<u32, Table<1>> = Crc::<u32, Table<1>>::new(&CRC_32_ISCSI);

/// Error for a buffer that is too short for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short {
    /// Size of the buffer in bytes.
    pub found: usize,
}

impl Display for Short {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "frame: {} bytes; allowed: {FRAME} for any record", self.found)
    }
}

impl core::error::Error for Short {}

/// Encodes the records of a run as frames.
#[derive(Clone, Debug)]
pub struct Encoder {
    run: u32,
    next: u32,
}

impl Encoder {
    /// Creates the encoder of run `run`. All runs that the same reader may receive should have different numbers.
    #[must_use]
    pub const fn new(run: u32) -> Encoder {
        Encoder { run, next: 0 }
    }

    /// Advances the number of the next record by `records` without making frames. A reader counts the skipped numbers
    /// as lost records.
    pub const fn skip(&mut self, records: u32) {
        self.next = self.next.wrapping_add(records);
    }

    /// Encodes `record` into `frame` and returns the frame, including the zero that ends it. A buffer of [`FRAME`]
    /// bytes is always long enough. A record uses up a number even if this function fails.
    ///
    /// # Errors
    /// Returns an error if the buffer is too short.
    pub fn encode<'a>(&mut self, record: &Record, frame: &'a mut [u8]) -> Result<&'a [u8], Short> {
        let sequence = self.next;
        self.skip(1);
        let found = frame.len();
        let mut message = [0; MESSAGE];
        let (header, rest) = message.split_at_mut(HEADER);
        header[0] = VERSION;
        header[1..5].copy_from_slice(&self.run.to_le_bytes());
        header[5..].copy_from_slice(&sequence.to_le_bytes());
        let body = postcard::to_slice(record, &mut rest[..RECORD]).map_err(|_| Short { found })?.len();
        let end = HEADER + body;
        let check = CRC.checksum(&message[..end]).to_le_bytes();
        message[end..end + CHECK].copy_from_slice(&check);
        let room = found.checked_sub(1).ok_or(Short { found })?;
        let stuffed = cobs::try_encode(&message[..end + CHECK], &mut frame[..room]);
        // If the message ends with a zero, the library may return a length that exceeds the buffer.
        let stuffed = stuffed.ok().filter(|&stuffed| stuffed <= room).ok_or(Short { found })?;
        frame[stuffed] = 0;
        Ok(&frame[..=stuffed])
    }
}

/// A record that arrived intact.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Number of the run.
    pub run: u32,
    /// Number of the record in its run, from 0.
    pub sequence: u32,
    /// The record.
    pub record: Record,
}

/// Counters of a decoder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records that arrived intact.
    pub records: u64,
    /// Records that did not arrive, according to their numbers. They include the records in broken, overlong and
    /// foreign frames, and the records sent before the reader started.
    pub lost: u64,
    /// Frames that were damaged.
    pub broken: u64,
    /// Frames longer than the decoder's buffer.
    pub overlong: u64,
    /// Intact frames of another version.
    pub foreign: u64,
    /// Records whose numbers had already been received or counted as lost. They are dropped.
    pub repeated: u64,
    /// Bytes that belong to no frame of this version. If a sequence of bytes without a zero is longer than the longest
    /// frame ([`FRAME`]), the excess bytes count as noise. If no record has arrived, [`Decoder::end`] also counts all
    /// other bytes before the first zero and after the last.
    pub noise: u64,
}

impl Counts {
    /// Returns `true` if every record of every run arrived once, and no other bytes arrived.
    #[must_use]
    pub const fn whole(&self) -> bool {
        let Counts { records: _, lost, broken, overlong, foreign, repeated, noise } = *self;
        lost == 0 && broken == 0 && overlong == 0 && foreign == 0 && repeated == 0 && noise == 0
    }
}

/// Decodes a stream of bytes into records. It reads frames of up to `N` bytes, not counting the zero that ends each frame.
/// [`FRAME`] is enough for any frame of this version; a smaller `N` saves memory if long records are not needed.
#[derive(Clone, Debug)]
pub struct Decoder<const N: usize = FRAME> {
    bytes: [u8; N],
    /// Number of bytes since the last zero, including bytes that exceeded the buffer.
    len: usize,
    /// `true` after the first zero. Bytes before it may be the end of a frame that started before the reader did.
    begun: bool,
    /// Number of bytes dropped because they may be the end of a frame that started before the reader did.
    dropped: u64,
    /// Run of the last record, and the number of the record that should follow it.
    expected: Option<(u32, u32)>,
    counts: Counts,
}

impl<const N: usize> Default for Decoder<N> {
    fn default() -> Decoder<N> {
        Decoder::new()
    }
}

impl<const N: usize> Decoder<N> {
    /// Creates a decoder with all counters at zero.
    #[must_use]
    pub const fn new() -> Decoder<N> {
        let counts =
            Counts { records: 0, lost: 0, broken: 0, overlong: 0, foreign: 0, repeated: 0, noise: 0 };
        Decoder { bytes: [0; N], len: 0, begun: false, dropped: 0, expected: None, counts }
    }

    /// Returns the counters so far.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the counters at the end of the stream. If no record arrived, the remaining bytes count as noise.
    #[must_use]
    pub const fn end(&self) -> Counts {
        let mut counts = self.counts;
        if counts.records == 0 {
            counts.noise = counts.noise.saturating_add(self.dropped).saturating_add(self.unfinished());
        }
        counts
    }

    /// Returns the number of bytes since the last zero, capped at the length of the longest frame without its zero.
    const fn unfinished(&self) -> u64 {
        (if self.len < FRAME { self.len } else { FRAME - 1 }) as u64
    }

    /// Informs the decoder that the line was interrupted. The unfinished frame is dropped, and the next bytes may be
    /// the end of another frame.
    pub const fn cut(&mut self) {
        self.dropped = self.dropped.saturating_add(self.unfinished());
        self.len = 0;
        self.begun = false;
    }

    /// Decodes the next byte. Returns a record if the byte completes a frame that contains a new record.
    pub fn push(&mut self, byte: u8) -> Option<Message> {
        if byte != 0 {
            if let Some(place) = self.bytes.get_mut(self.len) {
                *place = byte;
            }
            self.len = self.len.saturating_add(1);
            // The longest frame has FRAME − 1 bytes before its zero.
            self.counts.noise = self.counts.noise.saturating_add(u64::from(self.len >= FRAME));
            return None;
        }
        let (len, begun) = (self.len, self.begun);
        if !begun {
            self.dropped = self.dropped.saturating_add(self.unfinished());
        }
        self.len = 0;
        self.begun = true;
        if len == 0 {
            return None;
        }
        let Some(frame) = self.bytes.get_mut(..len) else {
            self.counts.overlong += u64::from(begun);
            return None;
        };
        match open(frame) {
            Ok(message) => self.admit(message),
            Err(Fault::Broken) => {
                self.counts.broken += u64::from(begun);
                None
            }
            Err(Fault::Foreign) => {
                self.counts.foreign += 1;
                None
            }
        }
    }

    /// Counts a record that arrived intact, and the missing records before it. Returns `None` if the record's number
    /// had already been received or counted as lost.
    fn admit(&mut self, message: Message) -> Option<Message> {
        let expected = match self.expected {
            Some((run, next)) if run == message.run => next,
            _ => 0,
        };
        let missing = message.sequence.wrapping_sub(expected);
        // Numbers wrap around, so a difference of more than half their range means a record before the expected one.
        if missing > u32::MAX / 2 {
            self.counts.repeated += 1;
            return None;
        }
        self.counts.lost += u64::from(missing);
        self.counts.records += 1;
        self.expected = Some((message.run, message.sequence.wrapping_add(1)));
        Some(message)
    }
}

/// Reason why a frame contains no record of this version.
enum Fault {
    Broken,
    Foreign,
}

/// Decodes the message in `frame`, which excludes the zero that ends the frame.
fn open(frame: &mut [u8]) -> Result<Message, Fault> {
    let len = cobs::decode_in_place(frame).map_err(|_| Fault::Broken)?;
    let message = frame.get(..len).ok_or(Fault::Broken)?;
    let (message, check) = message.split_last_chunk::<CHECK>().ok_or(Fault::Broken)?;
    if CRC.checksum(message) != u32::from_le_bytes(*check) {
        return Err(Fault::Broken);
    }
    let (version, rest) = message.split_first().ok_or(Fault::Broken)?;
    if *version != VERSION {
        return Err(Fault::Foreign);
    }
    let (run, rest) = rest.split_first_chunk::<4>().ok_or(Fault::Broken)?;
    let (sequence, body) = rest.split_first_chunk::<4>().ok_or(Fault::Broken)?;
    match postcard::take_from_bytes(body) {
        Ok((record, [])) => {
            Ok(Message { run: u32::from_le_bytes(*run), sequence: u32::from_le_bytes(*sequence), record })
        }
        _ => Err(Fault::Broken),
    }
}

#[cfg(test)]
mod tests;
