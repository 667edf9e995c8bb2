//! Writes files whose complete contents are in memory. Each file is written completely or not at all.

use super::error::FileError;
use super::outlet::{Place, Reads, Sink};
use super::temporary;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A prepared output file.
#[derive(Debug)]
pub struct Target {
    argument: &'static str,
    path: PathBuf,
    sink: Sink,
}

impl Target {
    /// Prepares the output file that `argument` names. An unwritable path is thus detected before anything is measured.
    /// `reads` contains the inputs of the call. If the path is a link, the file that the link leads to is written.
    ///
    /// # Errors
    /// Returns an error if the path cannot be written, or if it is an input of the call.
    pub fn new(argument: &'static str, path: &Path, reads: &Reads) -> Result<Target, FileError> {
        let place = Place::find(argument, path, None, reads)?;
        let sink = place.open()?;
        Ok(Target { argument, path: place.path, sink })
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes `bytes` as the complete new contents of the file.
    ///
    /// # Errors
    /// Returns errors of the file system.
    pub fn write(self, bytes: &[u8]) -> Result<(), FileError> {
        self.write_after(&[bytes], |_| Ok(()))
    }

    /// If `judge` accepts `parts`, writes them, one after the other, as the complete new contents of the file. `judge`
    /// receives the path of the temporary file that contains them, or `None` if the target is not a regular file.
    ///
    /// # Errors
    /// Returns errors of `judge` and of the file system.
    pub fn write_after<E: From<FileError>>(
        self,
        parts: &[&[u8]],
        judge: impl FnOnce(Option<&Path>) -> Result<(), E>,
    ) -> Result<(), E> {
        let Target { argument, path, sink } = self;
        let failed = |source| FileError::Write { argument, path: path.clone(), source };
        match sink {
            Sink::Direct(mut file) => {
                judge(None)?;
                Ok(write_all(&mut file, parts).map_err(failed)?)
            }
            Sink::Replace(temporary) => {
                temporary.fill(|file| write_all(file, parts)).map_err(failed)?;
                judge(temporary.path())?;
                Ok(temporary::replace([(temporary, path.as_path())]).map_err(|(_, source)| failed(source))?)
            }
        }
    }
}

/// Writes `parts` one after the other.
fn write_all(mut file: impl Write, parts: &[&[u8]]) -> io::Result<()> {
    parts.iter().try_for_each(|part| file.write_all(part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_file_is_written_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.csv");
        fs::write(&path, "old").unwrap();
        let target = Target::new("csv", &path, &Reads::default()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        drop(target);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        Target::new("csv", &path, &Reads::default()).unwrap().write(b"new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        Target::new("csv", Path::new("/dev/null"), &Reads::default()).unwrap().write(b"new").unwrap();
        for wrong in [folder.path().to_path_buf(), folder.path().join("none/out.csv")] {
            let refused = Target::new("csv", &wrong, &Reads::default()).expect_err("refused");
            assert!(refused.is_request() && refused.to_string().starts_with("csv: "), "{refused}");
        }
    }
}
