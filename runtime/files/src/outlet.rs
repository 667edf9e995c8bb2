//! Destinations of outputs. Only [`Place::find`] turns an argument into a writable file: it follows links and refuses
//! the files that the call reads.

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
    /// Name of the tensor that the call reads, if the file contains several tensors.
    name: Option<String>,
    /// `true` if `force` lets an output replace the file.
    yields: bool,
}

/// The input files of a call; outputs must not replace them.
#[derive(Clone, Debug, Default)]
pub struct Reads {
    files: Vec<Read>,
    force: bool,
}

impl Reads {
    /// Creates an empty set. `force` lets outputs replace the files that [`Reads::add`] adds later.
    #[must_use]
    pub fn new(force: bool) -> Reads {
        Reads { files: Vec::new(), force }
    }

    /// Adds an input that `argument` reads: the file at `path`, or only its tensor `name`.
    pub fn add(&mut self, argument: &'static str, path: &Path, name: Option<&str>) {
        let (path, name) = (path.to_path_buf(), name.map(str::to_owned));
        self.files.push(Read { argument, path, name, yields: true });
    }

    /// Adds a file that outputs never replace, even with `force`.
    pub fn keep(&mut self, argument: &'static str, path: &Path) {
        self.files.push(Read { argument, path: path.to_path_buf(), name: None, yields: false });
    }

    /// Checks that an output to the existing file `there` destroys no input. If `joins` contains a name, the output
    /// replaces only the tensor of that name and keeps the file's other tensors. Files are compared by inode, so a link
    /// to an input is recognised.
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

/// Returns `true` if `a` and `b` describe the same file.
#[must_use]
pub fn is_same(a: &Metadata, b: &Metadata) -> bool {
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// Destination of an output's bytes.
#[derive(Debug)]
pub enum Sink {
    /// A temporary file that later replaces the file at the path.
    Replace(Temporary),
    /// A file that is not regular, such as `/dev/null`.
    Direct(File),
}

/// Resolved location of an output file.
#[derive(Debug)]
pub struct Place {
    argument: &'static str,
    /// The path as the user wrote it.
    given: PathBuf,
    /// The path after links are resolved.
    pub path: PathBuf,
    /// Metadata of the file at the path; `None` if there is no file yet.
    pub existing: Option<Metadata>,
}

impl Place {
    /// Resolves `path`, the file that `argument` writes. If the output keeps the other tensors of an existing file,
    /// `joins` is the name of the output's tensor; otherwise it is `None`.
    ///
    /// # Errors
    /// Returns an error if the path cannot be resolved, or if the call reads the file.
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

    /// Returns `true` if the path leads to a regular file or to no file.
    #[must_use]
    pub fn is_regular(&self) -> bool {
        self.existing.as_ref().is_none_or(Metadata::is_file)
    }

    /// Builds the error for a destination that cannot be written.
    #[must_use]
    pub fn refuse(&self, reason: String) -> FileError {
        FileError::Target { argument: self.argument, path: self.given.clone(), reason }
    }

    /// Opens a non-regular file directly, and creates a temporary file next to a regular one.
    ///
    /// # Errors
    /// Returns an error for a folder, a file without write permission, or a pipe without a reader. Returns errors of
    /// the file system.
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

/// Opens a non-regular file without blocking, even if it is a pipe without a reader.
fn direct(path: &Path) -> io::Result<File> {
    step();
    let file = File::options().write(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    // Makes writes block again, so that they wait for a slow reader.
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

/// Resolves links of `path`, including a link to a file that does not exist yet. Returns the path of the file that the
/// link leads to, and the file's metadata if it exists.
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
            // If the target is absolute, `join` returns the target itself.
            Ok(target) => path = folder(&path).join(target),
            Err(_) => {
                let file = path.file_name().ok_or_else(|| io::Error::other("names no file"))?;
                return Ok((fs::canonicalize(folder(&path))?.join(file), None));
            }
        }
    }
    Err(io::Error::other("too many links"))
}
