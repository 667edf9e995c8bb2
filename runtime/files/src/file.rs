//! Input files, which report whether they have changed.

use std::fs::{File, Metadata, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A regular file that is open for reading and can report whether it has changed since it was opened.
///
/// If the file system supports it, a shared advisory lock is held for the lifetime of this value, so a writer that
/// requests the exclusive lock waits.
#[derive(Debug)]
pub struct InputFile {
    path: PathBuf,
    file: File,
    stamp: Stamp,
}

/// Identity, size and modification time of a file; every change to the file changes at least one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    written: (i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Stamp {
        Stamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.len(),
            written: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

impl InputFile {
    /// Opens the file at `path`.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened, is not a regular file, or is locked exclusively by another
    /// process.
    pub(crate) fn open(path: &Path) -> io::Result<InputFile> {
        let regular = |metadata: Metadata| match metadata.is_file() {
            true => Ok(metadata),
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
        };
        // Checked before opening, because opening a pipe or a device can have effects.
        regular(std::fs::metadata(path)?)?;
        // The file may have been replaced since the check, so opening must not block.
        let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        let metadata = regular(file.metadata()?)?;
        match file.try_lock_shared() {
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::new(io::ErrorKind::WouldBlock, "locked by another process"));
            }
            Err(TryLockError::Error(e)) => log::debug!("no advisory lock: {e}"),
            Ok(()) => {}
        }
        Ok(InputFile { path: path.to_path_buf(), file, stamp: Stamp::of(&metadata) })
    }

    /// Reads the file at `path`, which may contain at most `most` bytes.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened or read, or contains more than `most` bytes.
    pub fn contents(path: &Path, most: u64) -> io::Result<Vec<u8>> {
        let file = InputFile::open(path)?;
        let mut bytes = Vec::new();
        // Files under /proc and /sys are longer than their reported size.
        if file.length() <= most {
            file.reader().take(most + 1).read_to_end(&mut bytes)?;
        }
        if file.length() > most || bytes.len() as u64 > most {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("more than {most} bytes")));
        }
        Ok(bytes)
    }

    /// Returns the size of the file in bytes when it was opened.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.stamp.size
    }

    /// Returns the open file, for reads and seeks.
    #[must_use]
    pub fn reader(&self) -> &File {
        &self.file
    }

    /// Returns a fingerprint that distinguishes this file from other files and from its later versions: device, inode,
    /// size and modification time.
    #[must_use]
    pub(crate) fn stamp(&self) -> String {
        let Stamp { device, inode, size, written: (seconds, nanoseconds) } = self.stamp;
        format!("{device}:{inode} {size} {seconds}.{nanoseconds:09}")
    }

    /// Returns `true` if `found` describes this file, even under another name.
    #[must_use]
    pub(crate) fn is(&self, found: &Metadata) -> bool {
        (self.stamp.device, self.stamp.inode) == (found.dev(), found.ino())
    }

    /// Returns the path that was opened.
    #[must_use]
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns `true` if the size, the inode and the modification time show that the file has not been written or
    /// replaced since it was opened.
    #[must_use]
    pub fn unchanged(&self) -> bool {
        let same = |metadata: io::Result<Metadata>| metadata.is_ok_and(|now| Stamp::of(&now) == self.stamp);
        same(self.file.metadata()) && same(std::fs::metadata(&self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::time::{Duration, SystemTime};

    fn desk() -> (tempfile::TempDir, PathBuf) {
        let desk = tempfile::tempdir().unwrap();
        let path = desk.path().join("a");
        std::fs::write(&path, b"before").unwrap();
        (desk, path)
    }

    #[test]
    fn every_change_is_seen() {
        let (desk, path) = desk();
        let open = || {
            let file = InputFile::open(&path).unwrap();
            assert!(file.unchanged());
            file
        };
        let file = open();
        File::options().append(true).open(&path).unwrap().write_all(b"!").unwrap();
        assert!(!file.unchanged(), "longer");
        let file = open();
        File::options().write(true).open(&path).unwrap().set_len(2).unwrap();
        assert!(!file.unchanged(), "shorter");
        let file = open();
        let later = SystemTime::now() + Duration::from_secs(9);
        File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
        assert!(!file.unchanged(), "written");
        let file = open();
        let other = desk.path().join("b");
        std::fs::copy(&path, &other).unwrap();
        File::options().write(true).open(&other).unwrap().set_modified(later).unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert!(!file.unchanged(), "replaced by an equal file");
        let file = open();
        std::fs::remove_file(&path).unwrap();
        assert!(!file.unchanged(), "removed");
    }

    #[test]
    fn folders_and_missing_files_are_errors() {
        let (desk, path) = desk();
        assert_eq!(InputFile::open(desk.path()).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(InputFile::open(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn only_so_many_bytes_of_a_regular_file_are_read() {
        let (desk, path) = desk();
        assert_eq!(InputFile::contents(&path, 6).unwrap(), b"before");
        let refused = |path: &Path, most| {
            let error = InputFile::contents(path, most).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
        };
        refused(&path, 5);
        refused(Path::new("/dev/zero"), 5);
        // Files under /proc report a length of zero.
        refused(Path::new("/proc/self/status"), 5);
        let pipe = desk.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        refused(&pipe, 5);
    }

    #[test]
    fn a_file_locked_by_a_writer_is_refused() {
        let (_desk, path) = desk();
        let writer = File::options().write(true).open(&path).unwrap();
        writer.lock().unwrap();
        assert_eq!(InputFile::open(&path).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        writer.unlock().unwrap();
        let reader = InputFile::open(&path).unwrap();
        assert!(matches!(writer.try_lock(), Err(TryLockError::WouldBlock)));
        drop(reader);
        writer.try_lock().unwrap();
    }
}
