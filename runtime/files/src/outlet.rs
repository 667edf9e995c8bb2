//! Destinations of outputs. [`Place::find`] is the only path from an argument to a writable file: it follows links and
//! refuses the files that the call reads.

use super::error::FileError;
use super::temporary::{Temporary, folder, step};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A file that a call reads.
#[derive(Clone, Debug)]
struct Read {
    argument: &'static str,
    path: PathBuf,
    /// Name of the tensor, if the file holds several.
    name: Option<String>,
    /// `true` if the caller may force an output over it.
    yields: bool,
}

/// The input files of a call; outputs must not replace them.
#[derive(Clone, Debug, Default)]
pub struct Reads {
    files: Vec<Read>,
    force: bool,
}

impl Reads {
    /// Creates an empty set. `force` lets outputs replace files that are added later.
    #[must_use]
    pub fn new(force: bool) -> Reads {
        Reads { files: Vec::new(), force }
    }

    /// Adds an input of `argument`: the file at `path`, or its tensor `name`.
    pub fn add(&mut self, argument: &'static str, path: &Path, name: Option<&str>) {
        let (path, name) = (path.to_path_buf(), name.map(str::to_owned));
        self.files.push(Read { argument, path, name, yields: true });
    }

    /// Adds a file that outputs never replace.
    pub fn keep(&mut self, argument: &'static str, path: &Path) {
        self.files.push(Read { argument, path: path.to_path_buf(), name: None, yields: false });
    }

    /// Checks that an existing file is none of these, under any name. An output that joins a file under the name
    /// `joins` leaves the file's other tensors in place.
    fn check(
        &self,
        argument: &'static str,
        path: &Path,
        there: &Metadata,
        joins: Option<&str>,
    ) -> Result<(), FileError> {
        let lost = |read: &&Read| {
            !(self.force && read.yields)
                && (joins.is_none() || read.name.is_none() || read.name.as_deref() == joins)
                && fs::metadata(&read.path).is_ok_and(|found| is_same(&found, there))
        };
        match self.files.iter().find(lost) {
            Some(read) => Err(FileError::Input {
                argument,
                path: path.to_path_buf(),
                reader: read.argument,
                yields: read.yields,
            }),
            None => Ok(()),
        }
    }
}

/// Returns `true` if both are the same file.
#[must_use]
pub fn is_same(a: &Metadata, b: &Metadata) -> bool {
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// Destination of an output's bytes.
#[derive(Debug)]
pub enum Sink {
    /// A file that replaces the one at the path.
    Replace(Temporary),
    /// A file that is not regular, such as `/dev/null`.
    Direct(File),
}

/// The file of an output.
#[derive(Debug)]
pub struct Place {
    argument: &'static str,
    /// The path as the user gave it.
    given: PathBuf,
    /// The file, with links followed.
    pub path: PathBuf,
    /// Metadata of the existing file.
    pub existing: Option<Metadata>,
}

impl Place {
    /// Finds the file of `argument`. An output that joins the other tensors of its file has a name in `joins`.
    ///
    /// # Errors
    /// Returns an error if the path leads nowhere, or if the call reads the file.
    pub fn find(
        argument: &'static str,
        path: &Path,
        joins: Option<&str>,
        reads: &Reads,
    ) -> Result<Place, FileError> {
        let given = path.to_path_buf();
        let (path, existing) = resolve(path).map_err(|e| FileError::Target {
            argument,
            path: given.clone(),
            reason: e.to_string(),
        })?;
        let place = Place { argument, given, path, existing };
        if let Some(there) = place.existing.as_ref().filter(|there| there.is_file()) {
            reads.check(argument, &place.given, there, joins)?;
        }
        Ok(place)
    }

    /// Returns `true` if the path holds a regular file or nothing.
    #[must_use]
    pub fn is_regular(&self) -> bool {
        self.existing.as_ref().is_none_or(Metadata::is_file)
    }

    /// Builds the error of a destination that cannot be written.
    #[must_use]
    pub fn refuse(&self, reason: String) -> FileError {
        FileError::Target { argument: self.argument, path: self.given.clone(), reason }
    }

    /// Opens a non-regular file directly, and creates a temporary file next to a regular one.
    ///
    /// # Errors
    /// Refuses a folder, a file that may not be written, and a pipe without a reader. Returns errors of the file
    /// system.
    pub fn open(&self) -> Result<Sink, FileError> {
        match &self.existing {
            Some(there) if there.is_dir() => Err(self.refuse("a folder".into())),
            Some(there) if !there.is_file() => {
                direct(&self.path).map(Sink::Direct).map_err(|e| match e.raw_os_error() {
                    Some(libc::ENXIO) => self.refuse("a pipe or a device that nothing reads".into()),
                    _ => self.refuse(e.to_string()),
                })
            }
            Some(there) if there.permissions().readonly() => Err(self.refuse("read-only".into())),
            there => {
                let made = Temporary::new(&self.path, there.as_ref());
                made.map(Sink::Replace).map_err(|e| self.refuse(e.to_string()))
            }
        }
    }
}

/// Opens a non-regular file without blocking, not even for the reader of a pipe.
fn direct(path: &Path) -> io::Result<File> {
    step();
    let file = File::options().write(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    // Writes wait for a slow reader.
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

/// Resolves links of `path`, including a link to a file that does not exist yet, and returns the path of the file with
/// its metadata if it exists. The file is written, not the link.
fn resolve(path: &Path) -> io::Result<(PathBuf, Option<Metadata>)> {
    let mut path = path.to_path_buf();
    // Linux follows at most 40 links in a row.
    for _ in 0..40 {
        match fs::canonicalize(&path) {
            Ok(resolved) => {
                let metadata = fs::metadata(&resolved)?;
                return Ok((resolved, Some(metadata)));
            }
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
        match fs::read_link(&path) {
            // Joining an absolute target yields the target.
            Ok(target) => path = folder(&path).join(target),
            Err(_) => {
                let file = path.file_name().ok_or_else(|| io::Error::other("names no file"))?;
                return Ok((fs::canonicalize(folder(&path))?.join(file), None));
            }
        }
    }
    Err(io::Error::other("too many links"))
}
