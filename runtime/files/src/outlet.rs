//! Where outputs go. [`Place::find`] is the one way from an argument to a file that may be written: it follows links and
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
    /// The tensor in it, if the file holds several.
    name: Option<String>,
    /// Whether the caller may force an output over it.
    yields: bool,
}

/// The files that a call reads, which its outputs do not replace.
#[derive(Clone, Debug, Default)]
pub struct Reads {
    files: Vec<Read>,
    force: bool,
}

impl Reads {
    /// No files. `force` has outputs replace those that are added.
    #[must_use]
    pub fn new(force: bool) -> Reads {
        Reads { files: Vec::new(), force }
    }

    /// Adds what `argument` reads: the file at `path`, or its tensor `name`.
    pub fn add(&mut self, argument: &'static str, path: &Path, name: Option<&str>) {
        let (path, name) = (path.to_path_buf(), name.map(str::to_owned));
        self.files.push(Read { argument, path, name, yields: true });
    }

    /// Adds a file that is never given up.
    pub fn keep(&mut self, argument: &'static str, path: &Path) {
        self.files.push(Read { argument, path: path.to_path_buf(), name: None, yields: false });
    }

    /// Requires that a file which is there is none of these, whatever it is called. An output that joins a file under the
    /// name `joins` leaves the tensors of other names in it.
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

/// Whether both are the same file.
#[must_use]
pub fn is_same(a: &Metadata, b: &Metadata) -> bool {
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// Where the bytes of an output go.
#[derive(Debug)]
pub enum Sink {
    /// To a file that takes the place of the one at the path.
    Replace(Temporary),
    /// To what is no regular file, such as `/dev/null`.
    Direct(File),
}

/// The file of an output.
#[derive(Debug)]
pub struct Place {
    argument: &'static str,
    /// As the user named it.
    given: PathBuf,
    /// The file, with links followed.
    pub path: PathBuf,
    /// What is there.
    pub existing: Option<Metadata>,
}

impl Place {
    /// Finds the file of `argument`. An output that joins the other tensors of its file has a name in `joins`.
    ///
    /// # Errors
    /// A path that leads nowhere, and a file that the call reads.
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

    /// Whether a regular file is there, or nothing.
    #[must_use]
    pub fn is_regular(&self) -> bool {
        self.existing.as_ref().is_none_or(Metadata::is_file)
    }

    /// The error of a place that cannot be written.
    #[must_use]
    pub fn refuse(&self, reason: String) -> FileError {
        FileError::Target { argument: self.argument, path: self.given.clone(), reason }
    }

    /// Opens what is no regular file, and makes a file beside a regular one.
    ///
    /// # Errors
    /// A folder, a file that may not be written, a pipe without a reader, what the file system reports.
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

/// Opens what is no regular file. Waits for nothing: not for the reader of a pipe either.
fn direct(path: &Path) -> io::Result<File> {
    step();
    let file = File::options().write(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    // Writes wait for a reader that is slow.
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

/// The path of the file that `path` stands for, and what is known about the file if there is one. A link is followed,
/// also to a file that is not there yet: what is written is the file, not the link.
fn resolve(path: &Path) -> io::Result<(PathBuf, Option<Metadata>)> {
    let mut path = path.to_path_buf();
    // As many links in a row as Linux follows.
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
            // Of an absolute target only the target is left.
            Ok(target) => path = folder(&path).join(target),
            Err(_) => {
                let file = path.file_name().ok_or_else(|| io::Error::other("names no file"))?;
                return Ok((fs::canonicalize(folder(&path))?.join(file), None));
            }
        }
    }
    Err(io::Error::other("too many links"))
}
