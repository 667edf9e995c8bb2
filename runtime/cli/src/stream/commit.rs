//! The last stage of a resumable run, in which the finished files replace their targets one by one. The run may be
//! killed at any time.
//!
//! ```text
//! parts complete, on the device -> the journal records their identities -> renamed -> arrays and journal removed
//! ```
//!
//! A rename preserves the identity of a file. So a later run that finds the journal knows which part files are still
//! next to their targets, and which have become the targets. The later run completes the missing moves. Paths come from
//! the flags, never from the journal.

use super::journal::Journal;
use elsa_files::{
    FileError, Format, Prepared,
    temporary::{step, sync_folders},
};
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Names of the arrays in an archive of states.
pub const ARRAYS: [&str; 3] = ["m", "S", "W"];

/// Returns the path of `target` with `name` appended.
#[must_use]
pub fn beside(target: &Path, name: &str) -> PathBuf {
    let mut path = target.as_os_str().to_owned();
    path.push(name);
    path.into()
}

/// Returns the path of the journal of a run with the output `target`.
#[must_use]
pub fn journal_of(target: &Path) -> PathBuf {
    beside(target, ".elsa-journal")
}

/// Returns the path of the part file that becomes `target` in a resumable run.
#[must_use]
pub fn part_of(target: &Path) -> PathBuf {
    beside(target, ".elsa-part")
}

/// Returns the metadata that identify a file, as text. A rename preserves these metadata.
fn identity(found: &Metadata) -> String {
    format!("{}:{} {}", found.dev(), found.ino(), found.len())
}

/// The move of a finished part file to its target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    argument: &'static str,
    target: PathBuf,
    /// `true` if the target is written directly, without a part file. Then nothing is moved, and only the files in
    /// `arrays` are removed.
    direct: bool,
    /// Files that are not needed after the move.
    arrays: Vec<PathBuf>,
}

impl Move {
    /// Creates the move for a prepared output file.
    #[must_use]
    pub fn of(file: &Prepared) -> Move {
        let arrays = match file.format {
            Format::Npz => ARRAYS.map(|name| part_of(&beside(&file.path, &format!(".{name}")))).to_vec(),
            _ => Vec::new(),
        };
        let (argument, target) = (file.argument, file.path.clone());
        Move { argument, target, direct: file.direct.is_some(), arrays }
    }

    /// Returns the paths of the files that the run creates next to the target.
    pub fn parts(&self) -> impl Iterator<Item = PathBuf> {
        std::iter::once(part_of(&self.target)).chain(self.arrays.iter().cloned())
    }

    /// Returns the identity of the part file, which must be complete. Empty if the target is written directly.
    ///
    /// # Errors
    /// Returns an error if the file system fails.
    pub fn identity(&self) -> Result<String, FileError> {
        if self.direct {
            return Ok(String::new());
        }
        let found = fs::symlink_metadata(part_of(&self.target)).map_err(|e| self.failed(e))?;
        Ok(identity(&found))
    }

    /// Returns `true` if the part file with the identity `part` has become the target, and `false` if the part file is
    /// still at its own path. Returns `None` if it is at neither path.
    #[must_use]
    pub fn is_done(&self, part: &str) -> Option<bool> {
        if self.direct {
            return Some(true);
        }
        let is = |path: &Path| fs::symlink_metadata(path).is_ok_and(|found| identity(&found) == part);
        match (is(&self.target), is(&part_of(&self.target))) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        }
    }

    /// Moves the part file to its target if it is not there yet. Then removes the files in `arrays`.
    fn finish(&self) -> Result<(), FileError> {
        if !self.direct {
            step();
            match fs::rename(part_of(&self.target), &self.target) {
                // An earlier run has already moved the file.
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                done => done.map_err(|e| self.failed(e))?,
            }
        }
        for array in &self.arrays {
            step();
            match fs::remove_file(array) {
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                done => done.map_err(|e| self.failed(e))?,
            }
        }
        Ok(())
    }

    fn failed(&self, source: io::Error) -> FileError {
        FileError::Write { argument: self.argument, path: self.target.clone(), source }
    }
}

/// Completes the moves that are still missing, and then removes the journal.
///
/// # Errors
/// Returns an error if the file system fails.
pub fn finish(moves: &[Move], journal: Journal) -> Result<(), FileError> {
    moves.iter().try_for_each(Move::finish)?;
    sync_folders(moves.iter().map(|of| (of.argument, of.target.as_path())))?;
    if let Err(e) = journal.remove() {
        log::warn!("the journal cannot be removed: {e}");
    }
    Ok(())
}

/// Waits until the contents of a file are on the storage device. Has no effect on a file that the system cannot
/// synchronize, such as a pipe.
///
/// # Errors
/// Returns an error if the file system fails.
pub fn synced(file: &File) -> io::Result<()> {
    step();
    match file.sync_all() {
        Err(e) if matches!(e.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Ok(()),
        done => done,
    }
}
