//! The `.npz` format: a zip archive whose members are `.npy` files, stored or deflated.
//!
//! The `zip` library reads the archive. Two limits bound the memory that the library needs for any file. The first
//! limit is the number of bytes that the library reads before it knows the members. The second limit is the number of
//! members.

use super::error::TensorError;
use super::npy;
use super::stored::{Fault, Header, listed};
use std::cell::Cell;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use zip::read::ZipFile;
use zip::result::ZipError;
use zip::{CompressionMethod, ZipArchive};

/// Maximum size of the archive's directory in bytes. The directory of a thousand members has about 60,000 bytes.
pub const MAX_DIRECTORY: u64 = 4 << 20;

/// Maximum number of members; each occupies at least 46 bytes of the directory.
const MAX_MEMBERS: u64 = MAX_DIRECTORY / 46;

/// Number of bytes that are copied at once.
const PIECE: usize = 64 << 10;

/// Maximum number of bytes that one byte of deflated data expands to.
const MAX_RATIO: u64 = 1032;

/// Calls `read` with a reader for the member `name` and with the member's size in bytes. `file` has `length` bytes.
///
/// # Errors
/// Returns the errors of `read`, and an error for a malformed archive, a name that is not in the archive, or a member
/// that is encrypted or compressed by a method other than deflate.
pub fn member<T>(
    file: impl Read + Seek,
    length: u64,
    name: &str,
    read: impl FnOnce(&mut dyn Read, u64) -> Result<T, Fault>,
) -> Result<T, Fault> {
    open(file, length, name, |member, file_name| {
        let size = member.size();
        let result = read(member, size)?;
        // The `zip` library compares the checksum when it reaches the end of the member.
        match member.read(&mut [0])? {
            0 => Ok(result),
            _ => {
                Err(format(format!("more data in '{file_name}' than its size"), "as many bytes as its size"))
            }
        }
    })
}

/// Reads the header of the member `name`. Returns the header and the offset of the elements in the file. The offset is
/// `None` if the elements are deflated. The elements are not read, and their checksum is not compared.
///
/// # Errors
/// Returns the errors of [`member`] and of [`npy::header`].
pub fn header(file: impl Read + Seek, length: u64, name: &str) -> Result<(Header, Option<u64>), Fault> {
    open(file, length, name, |member, file_name| {
        let size = member.size();
        let header = npy::header(&mut *member, size)?;
        let start = match (member.compression(), member.data_start()) {
            (CompressionMethod::Stored, Some(start)) => start.checked_add(size - header.bytes as u64),
            _ => return Ok((header, None)),
        };
        let end = start.and_then(|start| start.checked_add(header.bytes as u64));
        match (start, end) {
            (Some(start), Some(end)) if end <= length => Ok((header, Some(start))),
            _ => Err(format(format!("'{file_name}' beyond the end of the file"), "members inside of it")),
        }
    })
}

/// Reads the elements of the member `name` once, writes them to `to`, and compares their checksum.
///
/// # Errors
/// Returns the errors of [`member`], of [`npy::header`] and of `to`.
pub fn copy(file: impl Read + Seek, length: u64, name: &str, mut to: impl Write) -> Result<(), CopyError> {
    let mut unwritten = None;
    let copied = member(file, length, name, |member, size| {
        npy::header(&mut *member, size)?;
        let mut piece = vec![0; PIECE];
        loop {
            let n = match member.read(&mut piece) {
                Ok(0) => return Ok(()),
                Ok(n) => n,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(e.into()),
            };
            if let Err(e) = to.write_all(&piece[..n]) {
                unwritten = Some(e);
                return Err(Fault::Io(ErrorKind::Other.into()));
            }
        }
    });
    match unwritten {
        Some(e) => Err(CopyError::Unwritten(e)),
        None => copied.map_err(CopyError::Unread),
    }
}

/// Error from copying the elements of a member.
#[derive(Debug)]
pub enum CopyError {
    /// Reading the archive failed.
    Unread(Fault),
    /// Writing to the destination failed.
    Unwritten(io::Error),
}

/// Finds the member `name.npy` or `name`, and calls `read` with the member and its full name.
fn open<R: Read + Seek, T>(
    file: R,
    length: u64,
    name: &str,
    read: impl FnOnce(&mut ZipFile<'_, Bounded<'_, R>>, &str) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let left = Cell::new(MAX_DIRECTORY);
    let mut archive = ZipArchive::new(Bounded { file, left: &left }).map_err(refused)?;
    // The directory has been read. From here on, the size of the member limits the reads.
    left.set(u64::MAX);
    let file_name = [format!("{name}.npy"), name.to_string()]
        .into_iter()
        .find(|name| archive.index_for_name(name).is_some())
        .ok_or_else(|| missing(&archive, name))?;
    let mut member = archive.by_name(&file_name).map_err(refused)?;
    let (packed, size) = (member.compressed_size(), member.size());
    let most = match member.compression() {
        CompressionMethod::Stored => packed,
        _ => packed.saturating_mul(MAX_RATIO),
    };
    if packed > length || size > most {
        let found = format!("'{file_name}' of {size} bytes, {packed} in the file");
        return Err(format(found, "sizes that the data can have"));
    }
    read(&mut member, &file_name).map_err(|fault| match fault {
        // The archive is complete: if data end early or cannot be inflated, the member is damaged.
        Fault::Io(e) if is_damage(&e) => {
            let found = format!("'{file_name}' with damaged data: {e}");
            format(found, "data that are stored or deflated and have their size and checksum")
        }
        other => other,
    })
}

/// Returns `true` if damaged data caused the error, `false` if the system that reads the data caused it.
fn is_damage(error: &io::Error) -> bool {
    error.raw_os_error().is_none()
}

fn format(found: impl Into<String>, allowed: &'static str) -> Fault {
    TensorError::Format { format: ".npz", found: found.into(), allowed }.into()
}

fn missing<R: Read + Seek>(archive: &ZipArchive<R>, name: &str) -> Fault {
    let names = archive.file_names().filter_map(Result::ok);
    let names = names.map(|name| name.strip_suffix(".npy").unwrap_or(&name).to_string()).collect();
    TensorError::Name { name: name.into(), allowed: listed(names) }.into()
}

fn refused(error: ZipError) -> Fault {
    const ALLOWED: &str = "a zip archive of .npy files, stored or deflated, not encrypted";
    match error {
        ZipError::Io(e) if !is_damage(&e) => Fault::Io(e),
        other => format(other.to_string(), ALLOWED),
    }
}

/// Reader that can read at most `left` more bytes of a file in total. A read beyond this limit fails.
struct Bounded<'a, R> {
    file: R,
    left: &'a Cell<u64>,
}

impl<R: Read> Read for Bounded<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        match self.left.get().checked_sub(read as u64) {
            Some(left) => self.left.set(left),
            None => return Err(too_large()),
        }
        Ok(read)
    }
}

impl<R: Read + Seek> Seek for Bounded<'_, R> {
    /// Seeks to a position. Returns an error if the record at this position claims too many members, because the
    /// library would reserve memory for all of them.
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = self.file.seek(to)?;
        if self.left.get() != u64::MAX {
            let mut record = Vec::new();
            self.file.by_ref().take(40).read_to_end(&mut record)?;
            self.file.seek(SeekFrom::Start(at))?;
            if let (Some(b"PK\x06\x06"), Some(count)) = (record.first_chunk(), record.last_chunk())
                && record.len() == 40
                && u64::from_le_bytes(*count) > MAX_MEMBERS
            {
                return Err(too_large());
            }
        }
        Ok(at)
    }
}

fn too_large() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("a directory of more than {MAX_DIRECTORY} bytes"))
}

#[cfg(test)]
mod tests {
    use super::super::stored::Stored;
    use super::*;
    use std::io::Cursor;
    use zip::write::SimpleFileOptions;

    /// Builds an archive of the given members.
    fn archive(members: &[(&str, &[u8])], method: CompressionMethod) -> Vec<u8> {
        let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
        for (name, data) in members {
            zip.start_file(*name, SimpleFileOptions::default().compression_method(method)).unwrap();
            zip.write_all(data).unwrap();
        }
        zip.finish().unwrap().into_inner()
    }

    fn contents(file: &[u8], name: &str) -> Result<Vec<u8>, Fault> {
        member(Cursor::new(file), file.len() as u64, name, |member, size| {
            let mut bytes = vec![0; size as usize];
            member.read_exact(&mut bytes)?;
            Ok(bytes)
        })
    }

    fn complaint(file: &[u8], name: &str) -> String {
        match contents(file, name) {
            Err(Fault::Content(error)) => error.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn members_are_found_with_and_without_their_extension() {
        for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
            let file = archive(&[("a.npy", &[1; 5000]), ("b", b"two"), ("b.c.npy", b"three")], method);
            assert_eq!(contents(&file, "a").unwrap(), [1; 5000]);
            assert_eq!(contents(&file, "a.npy").unwrap(), [1; 5000]);
            assert_eq!(contents(&file, "b").unwrap(), b"two");
            assert_eq!(contents(&file, "b.c").unwrap(), b"three");
            let error = complaint(&file, "c");
            assert!(error.contains("'c'") && error.contains("allowed: a, b, b.c"), "{error}");
        }
    }

    #[test]
    fn stored_elements_are_found_in_the_file() {
        let mut array = Vec::new();
        npy::write_header(&mut array, Stored::F32, &[3, 5]).unwrap();
        array.extend((0..60).collect::<Vec<u8>>());
        let at = |file: &[u8]| header(Cursor::new(file), file.len() as u64, "k");
        let stored = archive(&[("a.npy", &[1; 77]), ("k.npy", &array)], CompressionMethod::Stored);
        // Bytes before the archive shift all of its offsets.
        for before in [0, 1000] {
            let file = [vec![7; before], stored.clone()].concat();
            let (found, start) = at(&file).unwrap();
            assert_eq!((found.dtype, &found.shape[..], found.bytes), (Stored::F32, &[3, 5][..], 60));
            assert_eq!(file[start.unwrap() as usize..][..60], array[array.len() - 60..]);
        }
        let deflated = archive(&[("k.npy", &array)], CompressionMethod::Deflated);
        assert_eq!(at(&deflated).unwrap().1, None);
        // Whatever value a byte has, the elements must be within the file.
        for place in 0..stored.len() {
            for byte in (0..=255).step_by(13 * STEP) {
                let mut bad = stored.clone();
                bad[place] = byte;
                if let Ok((found, Some(start))) = at(&bad) {
                    assert!(start as usize + found.bytes <= bad.len(), "{place} {byte}");
                }
            }
        }
    }

    #[test]
    fn damage_is_named() {
        for (method, at) in [(CompressionMethod::Stored, 60), (CompressionMethod::Deflated, 45)] {
            let data: Vec<u8> = (0..999u32).map(|i| ((i * i) >> 3) as u8).collect();
            let mut file = archive(&[("a.npy", &data)], method);
            file[at] ^= 0x55;
            let error = complaint(&file, "a");
            assert!(error.contains("damaged") && error.contains("allowed: "), "{error}");
        }
        let file = archive(&[("a.npy", b"data")], CompressionMethod::Stored);
        for cut in 0..file.len() {
            assert!(complaint(&file[..cut], "a").contains("allowed: "), "{cut}");
        }
    }

    /// Step between the byte values under test: 1 natively, 7 in the emulator of aarch64.
    const STEP: usize = if cfg!(target_arch = "aarch64") { 7 } else { 1 };

    /// Checks that a file is read or refused without a panic after any one-byte change.
    #[test]
    fn no_bytes_panic() {
        let file = archive(&[("a.npy", &[7; 90]), ("b.npy", b"data")], CompressionMethod::Deflated);
        for at in 0..file.len() {
            for byte in (0..=255).step_by(STEP) {
                let mut bad = file.clone();
                bad[at] = byte;
                if let Err(fault) = contents(&bad, "a") {
                    assert!(matches!(fault, Fault::Content(_)), "{at} {byte}: {fault:?}");
                }
            }
        }
    }

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        let mut file = archive(&[("a.npy", &[0; 4000])], CompressionMethod::Deflated);
        let entry = file.windows(4).position(|four| four == b"PK\x01\x02").unwrap();
        // The size of the data: four bytes at offset 24 of the entry.
        file[entry + 24..entry + 28].copy_from_slice(&0x7fff_ffffu32.to_le_bytes());
        let error = complaint(&file, "a");
        assert!(error.contains("2147483647 bytes") && error.contains("allowed: sizes"), "{error}");
    }

    /// Builds a file of zeros whose end-of-directory record claims `count` members.
    fn claims(count: u64) -> Vec<u8> {
        let mut file = vec![0; 46 * 200_000];
        let at = file.len() as u64;
        let record: [&[u8]; 9] = [
            b"PK\x06\x06",
            &44u64.to_le_bytes(),
            &[45, 0, 45, 0],
            &[0; 8],
            &count.to_le_bytes(),
            &count.to_le_bytes(),
            &(count * 46).to_le_bytes(),
            &0u64.to_le_bytes(),
            b"PK\x06\x07\0\0\0\0",
        ];
        file.extend(record.concat());
        file.extend(at.to_le_bytes());
        file.extend(1u32.to_le_bytes());
        file.extend(b"PK\x05\x06\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\0\0");
        file
    }

    #[test]
    fn directories_beyond_the_limit_are_refused() {
        let error = complaint(&claims(MAX_MEMBERS + 1), "a");
        assert!(error.contains("a directory of more than 4194304 bytes"), "{error}");
        let error = complaint(&claims(MAX_MEMBERS), "a");
        assert!(!error.contains("a directory of more than"), "{error}");
        let names: Vec<String> = (0..70_000).map(|i| format!("a name of twenty {i:05}")).collect();
        let members: Vec<(&str, &[u8])> = names.iter().map(|name| (&name[..], &b""[..])).collect();
        let error = complaint(&archive(&members, CompressionMethod::Stored), "a");
        assert!(error.contains("a directory of more than 4194304 bytes"), "{error}");
    }
}
