//! Files that are written when their contents are known: whole, or not at all.

use crate::error::Error;
use crate::temporary::{self, Temporary};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Where the bytes go.
enum Sink {
    /// To a file that takes the place of the one at the path.
    Replace(Temporary),
    /// To what is no regular file, such as `/dev/null`.
    Direct(File),
}

/// A file that will be written.
pub struct Target {
    argument: &'static str,
    path: PathBuf,
    sink: Sink,
}

impl Target {
    /// Prepares the file of a flag, so that what cannot be written is known before anything is measured.
    ///
    /// # Errors
    /// A path that cannot be written.
    pub fn new(argument: &'static str, path: &Path) -> Result<Target, Error> {
        let refuse = |reason: String| Error::Target { argument, path: path.to_path_buf(), reason };
        // A link to a file stays one.
        let resolved = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        let existing = fs::metadata(&resolved).ok();
        let sink = match &existing {
            Some(metadata) if metadata.is_dir() => return Err(refuse("a folder".into())),
            Some(metadata) if metadata.permissions().readonly() => return Err(refuse("read-only".into())),
            Some(metadata) if !metadata.is_file() => {
                Sink::Direct(File::options().write(true).open(&resolved).map_err(|e| refuse(e.to_string()))?)
            }
            existing => {
                let folder = match resolved.parent() {
                    Some(folder) if !folder.as_os_str().is_empty() => folder,
                    _ => Path::new("."),
                };
                Sink::Replace(Temporary::new(folder, existing.as_ref()).map_err(|e| refuse(e.to_string()))?)
            }
        };
        Ok(Target { argument, path: resolved, sink })
    }

    /// Writes `bytes`, whole.
    ///
    /// # Errors
    /// What the file system reports.
    pub fn write(self, bytes: &[u8]) -> Result<(), Error> {
        self.write_after(bytes, |_| Ok(()))
    }

    /// Writes `bytes`, whole, once `judge` accepts them. It gets the file that will take the place of the one at the path,
    /// unless the bytes go elsewhere.
    ///
    /// # Errors
    /// What `judge` and the file system report.
    pub fn write_after(
        self,
        bytes: &[u8],
        judge: impl FnOnce(Option<&Path>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Target { argument, path, sink } = self;
        let failed = |source| Error::Write { argument, path: path.clone(), source };
        match sink {
            Sink::Direct(mut file) => {
                judge(None)?;
                file.write_all(bytes).map_err(failed)
            }
            Sink::Replace(temporary) => {
                temporary.fill(|mut file| file.write_all(bytes)).map_err(failed)?;
                judge(temporary.path())?;
                temporary::replace([(temporary, path.as_path())]).map_err(|(_, source)| failed(source))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_written_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.csv");
        fs::write(&path, "old").unwrap();
        let target = Target::new("csv", &path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        drop(target);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        Target::new("csv", &path).unwrap().write(b"new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        Target::new("csv", Path::new("/dev/null")).unwrap().write(b"new").unwrap();
        for wrong in [folder.path().to_path_buf(), folder.path().join("none/out.csv")] {
            let refused = Target::new("csv", &wrong).err().map(|e| (e.status(), e.to_string()));
            let (status, text) = refused.expect("refused");
            assert!(status == 2 && text.starts_with("--csv: "), "{text}");
        }
    }
}
