//! Files read through the page cache: large tensors without a copy.

use memmap2::Mmap;
use std::fs::{File, TryLockError};
use std::io;
use std::ops::Deref;
use std::path::Path;

/// The bytes of a regular file, mapped read-only for as long as this value lives.
///
/// **Hazard.** Nobody may shorten the file, or write to it in place, while it is mapped: reading a page that is
/// no longer there ends the process. A shared advisory lock is held for the life of the map where the file
/// system has such locks, so that a writer that asks for the exclusive lock waits. Replacing the file by a
/// rename is harmless: the map keeps the old contents.
#[derive(Debug)]
pub struct MappedFile {
    map: Option<Mmap>,
    // Holds the advisory lock.
    _file: File,
}

impl MappedFile {
    /// Maps the file at `path`. An empty file gives an empty slice.
    ///
    /// # Errors
    /// A file that cannot be opened or mapped, one that is not a regular file, and one that another process
    /// has locked exclusively.
    pub fn open(path: impl AsRef<Path>) -> io::Result<MappedFile> {
        // Asked before opening, which would block on a pipe.
        if !std::fs::metadata(path.as_ref())?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        match file.try_lock_shared() {
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::new(io::ErrorKind::WouldBlock, "locked by another process"));
            }
            Err(TryLockError::Error(e)) => log::debug!("no advisory lock: {e}"),
            Ok(()) => {}
        }
        if metadata.len() == 0 {
            return Ok(MappedFile { map: None, _file: file });
        }
        // SAFETY: `Mmap::map` asks that the file is not modified or shortened while mapped. The map is
        // read-only and this process only ever replaces files by rename; other processes are held off by the
        // shared lock as far as they heed it, and the rest is the hazard documented on the type.
        let map = unsafe { Mmap::map(&file)? };
        Ok(MappedFile { map: Some(map), _file: file })
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("elsa-mapped-{}-{name}", std::process::id()))
    }

    #[test]
    fn maps_what_the_file_holds_even_after_it_was_replaced() {
        let (path, other) = (scratch("a"), scratch("b"));
        std::fs::write(&path, b"before").unwrap();
        std::fs::write(&other, b"after!!").unwrap();
        let mapped = MappedFile::open(&path).unwrap();
        assert_eq!(&*mapped, b"before");
        std::fs::rename(&other, &path).unwrap();
        assert_eq!(&*mapped, b"before");
        assert_eq!(&*MappedFile::open(&path).unwrap(), b"after!!");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn an_empty_file_is_an_empty_slice() {
        let path = scratch("empty");
        std::fs::write(&path, b"").unwrap();
        assert!(MappedFile::open(&path).unwrap().is_empty());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn folders_and_missing_files_are_errors() {
        assert_eq!(MappedFile::open(std::env::temp_dir()).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(MappedFile::open(scratch("missing")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_file_locked_by_a_writer_is_refused() {
        let path = scratch("locked");
        std::fs::write(&path, b"x").unwrap();
        let writer = File::options().write(true).open(&path).unwrap();
        writer.lock().unwrap();
        assert_eq!(MappedFile::open(&path).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        writer.unlock().unwrap();
        assert_eq!(&*MappedFile::open(&path).unwrap(), b"x");
        std::fs::remove_file(&path).unwrap();
    }
}
