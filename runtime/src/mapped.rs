//! Memory-mapped files: large tensors are read through the page cache without a copy.

use memmap2::Mmap;
use std::fs::{File, TryLockError};
use std::io;
use std::ops::Deref;
use std::path::Path;

/// The bytes of a regular file, mapped read-only for the lifetime of this value.
///
/// **Hazard.** The file must not be truncated or modified in place while it is mapped: reading a page that no
/// longer exists kills the process. A shared advisory lock is held for the lifetime of the map, where the file
/// system supports it, so a writer that takes the exclusive lock waits. Replacing the file by a rename is safe:
/// the map keeps the old contents.
#[derive(Debug)]
pub struct MappedFile {
    map: Option<Mmap>,
    // Holds the advisory lock.
    _file: File,
}

impl MappedFile {
    /// Maps the file at `path`. An empty file yields an empty slice.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened or mapped, is not a regular file, or is locked exclusively by
    /// another process.
    pub fn open(path: impl AsRef<Path>) -> io::Result<MappedFile> {
        // Checked before opening, which would block on a pipe.
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
        // SAFETY: `Mmap::map` requires that the file is not modified or truncated while mapped. The map is
        // read-only, and this process replaces files only by rename. The shared lock keeps out other processes
        // that respect it; the rest is the hazard documented on the type.
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
