//! Format of a group of compressed PTX modules. The build script writes groups. A program, and the checks of its file,
//! read them.
//!
//! A group is a [`Header`] and a raw LZMA stream with the parameters of [`PARAMETERS`]. The stream may refer to the text
//! of another group, the *dictionary*, as if that text came before its own. Modules of one operator repeat most of each
//! other's text, so a dictionary of a few modules makes all others shorter, and a program that loads a module still
//! decompresses only two groups.
//!
//! ```text
//! 0   magic       8 bytes, MAGIC
//! 8   stream      length of the stream in bytes, u32, little-endian like the other numbers
//! 12  text        length of the text in bytes, u32
//! 16  checksum    checksum of the text, u64
//! 24  stream
//! ```

/// First bytes of a group.
pub const MAGIC: [u8; 8] = *b"ELSA-PTX";

/// Parameters `lc`, `lp` and `pb` of the LZMA streams.
pub const PARAMETERS: [u32; 3] = [3, 0, 0];

/// Largest length of a text in bytes. A header that states more is damaged.
pub const LONGEST: u32 = 16 << 20;

/// Header of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Length of the stream in bytes.
    pub stream: u32,
    /// Length of the text in bytes, at most [`LONGEST`].
    pub text: u32,
    /// [`checksum`] of the text.
    pub checksum: u64,
}

impl Header {
    /// Number of bytes of a header.
    pub const BYTES: usize = 24;

    /// Returns the header as bytes.
    #[must_use]
    pub fn bytes(&self) -> [u8; Header::BYTES] {
        let mut bytes = [0; Header::BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.stream.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.text.to_le_bytes());
        bytes[16..].copy_from_slice(&self.checksum.to_le_bytes());
        bytes
    }

    /// Splits the bytes of a group into header and stream. More bytes may follow the group. Returns `None` if the bytes
    /// do not begin with a group.
    #[must_use]
    pub fn split(bytes: &[u8]) -> Option<(Header, &[u8])> {
        let (header, rest) = bytes.split_at_checked(Header::BYTES)?;
        let word = |at: usize| Some(u32::from_le_bytes(header.get(at..at + 4)?.try_into().ok()?));
        let checksum = u64::from_le_bytes(header.get(16..)?.try_into().ok()?);
        let header =
            header.starts_with(&MAGIC).then_some(Header { stream: word(8)?, text: word(12)?, checksum })?;
        (header.text <= LONGEST).then_some((header, rest.get(..header.stream as usize)?))
    }
}

/// Returns the size of the LZMA window for a text after a dictionary.
#[must_use]
pub fn window(dictionary: usize, text: usize) -> u32 {
    u32::try_from((dictionary + text).next_power_of_two()).unwrap_or(u32::MAX)
}

/// Returns the 64-bit FNV-1a hash of a text, which detects damage but not intent.
#[must_use]
pub fn checksum(text: &[u8]) -> u64 {
    text.iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
