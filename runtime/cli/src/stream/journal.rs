//! Journal of a resumable run: the run's identity and its finished units.
//!
//! ```text
//! elsa journal 1
//! {"sizes":[1,4,85,3,4096],"run":["q /data/q.npy 64769:131 4194432 1700000000.000000000", ...]}
//! unit 0
//! unit 1
//! commit ["64769:140 4194432"]
//! ```
//!
//! A unit is recorded once its outputs are on the storage device. When all units are recorded, a last line lists the
//! identities of the complete files. These files then replace their targets. A line that a kill has cut short is
//! ignored. A journal whose first two lines are incomplete counts as missing, because nothing was computed yet.

use crate::error::Error;
use elsa_files::FileError;
use elsa_files::temporary::{regular, step};
use serde::{Deserialize, Serialize};
use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

const MAGIC: &str = "elsa journal 1";

/// Prefix of the last line, which lists the identities of the complete files.
const COMMIT: &str = "commit ";

/// Maximum size of a journal that is read, in bytes.
const LONGEST: u64 = 64 << 20;

/// Sizes of units and chunks: for a run on the CPU, the fields of [`UnitSizes`](elsa_runtime::UnitSizes) in their
/// order; for a run on a GPU, the rows, keys and splits of its division, followed by the number 1 twice.
pub type Sizes = [usize; 5];

/// Identity of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    /// Sizes of the run's units and chunks.
    sizes: Sizes,
    /// Lines that describe the problem, the kernel, the inputs and the outputs.
    run: Vec<String>,
}

/// Progress of a resumable run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// No rows have been computed.
    New,
    /// Some units are finished, and partial output files are next to their targets.
    Begun,
    /// All units are finished, and the replacement of the targets has begun.
    Complete,
}

/// A journal file, open for writing and locked.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
}

/// Content of an earlier run's journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Earlier {
    /// Sizes of the run's units and chunks.
    pub sizes: Sizes,
    /// Lines that describe the problem, the kernel, the inputs and the outputs.
    pub run: Vec<String>,
    /// Number of finished units.
    pub finished: usize,
    /// Identities of the complete files; `None` if the replacement of the targets had not begun.
    pub commit: Option<Vec<String>>,
}

fn refused(path: &Path, found: &str) -> Error {
    let found = format!("{}: {found}", path.display());
    let allowed = "the journal of a run of the same inputs, options and outputs; remove it to begin anew";
    Error::Argument { argument: "resume", found, allowed: allowed.into() }
}

/// Parses a journal. Returns its content and the number of valid bytes, or `None` if the first two lines are
/// incomplete. The error describes the content that was found instead of a journal.
///
/// # Errors
/// Returns an error for bytes that are neither a journal nor the beginning of one.
pub fn parse(bytes: &[u8]) -> Result<Option<(Earlier, usize)>, &'static str> {
    let text = std::str::from_utf8(bytes).map_err(|_| "no journal")?;
    let mut lines = text.split_inclusive('\n');
    let mut next = || lines.next().and_then(|line| Some((line.strip_suffix('\n')?, line.len())));
    let Some((magic, mut length)) = next() else {
        return if MAGIC.starts_with(text) { Ok(None) } else { Err("no journal") };
    };
    if magic != MAGIC {
        return Err("no journal");
    }
    let Some((head, bytes)) = next() else { return Ok(None) };
    length += bytes;
    let Header { sizes, run } = serde_json::from_str(head).map_err(|_| "a journal with a damaged head")?;
    if sizes.contains(&0) {
        return Err("a journal with a damaged head");
    }
    let mut earlier = Earlier { sizes, run, finished: 0, commit: None };
    while let Some((line, bytes)) = next() {
        if let Some(parts) = line.strip_prefix(COMMIT) {
            earlier.commit = Some(serde_json::from_str(parts).map_err(|_| "a journal with a damaged end")?);
            if next().is_some() {
                return Err("a journal that goes on behind its end");
            }
        } else if line == format!("unit {}", earlier.finished) {
            earlier.finished += 1;
        } else {
            return Err("a journal whose units are not in order");
        }
        length += bytes;
    }
    Ok(Some((earlier, length)))
}

/// Checks that the journal `earlier` at `path` belongs to the run that `run` describes.
///
/// # Errors
/// Returns an error if the journal belongs to another run.
pub fn same(path: &Path, earlier: &Earlier, run: &[String]) -> Result<(), Error> {
    if let Some(other) = earlier.run.iter().find(|line| !run.contains(line)) {
        return Err(refused(path, &format!("the journal of another run ({other})")));
    }
    match earlier.run.len() == run.len() {
        true => Ok(()),
        false => Err(refused(path, "the journal of another run")),
    }
}

/// Locks the journal; returns an error if another process has locked it.
fn lock(path: &Path, file: &File) -> Result<(), Error> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(Error::Argument {
            argument: "resume",
            found: format!("{}: another process has it", path.display()),
            allowed: "one run at a time; wait for the other, or name another output".into(),
        }),
        Err(TryLockError::Error(e)) => {
            log::debug!("no advisory lock: {e}");
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

impl Journal {
    /// Opens the journal at `path`; returns `None` if there is no file, or if its first two lines are incomplete.
    ///
    /// # Errors
    /// Returns an error if the file is not a journal, if another process has locked it, or if the file system fails.
    pub fn open(path: &Path) -> Result<Option<(Journal, Earlier)>, Error> {
        let unread = |source| FileError::Read { argument: "resume", path: path.to_path_buf(), source };
        let mut file = match regular(File::options().read(true).write(true), path) {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(unread(e).into()),
        };
        lock(path, &file)?;
        let mut bytes = Vec::new();
        (&mut file).take(LONGEST).read_to_end(&mut bytes).map_err(unread)?;
        let Some((earlier, length)) = parse(&bytes).map_err(|found| refused(path, found))? else {
            return Ok(None);
        };
        file.set_len(length as u64).map_err(unread)?;
        file.seek(SeekFrom::End(0)).map_err(unread)?;
        Ok(Some((Journal { path: path.to_path_buf(), file }, earlier)))
    }

    /// Creates a journal at `path`, in place of an older one.
    ///
    /// # Errors
    /// Returns an error if another process has locked the journal, or if the file system fails.
    pub fn begin(path: &Path, sizes: Sizes, run: Vec<String>) -> Result<Journal, Error> {
        let failed = |source| FileError::Write { argument: "resume", path: path.to_path_buf(), source };
        let head = serde_json::to_string(&Header { sizes, run }).map_err(|e| failed(e.into()))?;
        step();
        let file = regular(File::options().write(true).create(true).truncate(false), path).map_err(failed)?;
        lock(path, &file)?;
        step();
        file.set_len(0).map_err(failed)?;
        let mut journal = Journal { path: path.to_path_buf(), file };
        journal.line(MAGIC).and_then(|()| journal.line(&head)).map_err(failed)?;
        step();
        journal.file.sync_all().map_err(failed)?;
        Ok(journal)
    }

    fn line(&mut self, text: &str) -> io::Result<()> {
        step();
        self.file.write_all(format!("{text}\n").as_bytes())
    }

    /// Records that unit `number` is finished.
    ///
    /// # Errors
    /// Returns an error if the file system fails.
    pub fn note(&mut self, number: usize) -> io::Result<()> {
        self.line(&format!("unit {number}"))?;
        step();
        self.file.sync_data()
    }

    /// Records that the files with the identities `parts` are complete and will replace their targets.
    ///
    /// # Errors
    /// Returns an error if the file system fails.
    pub fn commit(&mut self, parts: &[String]) -> Result<(), Error> {
        let parts = serde_json::to_string(parts).map_err(io::Error::from);
        let noted = parts.and_then(|parts| {
            self.line(&format!("{COMMIT}{parts}"))?;
            step();
            self.file.sync_all()
        });
        Ok(noted.map_err(|source| FileError::Write {
            argument: "resume",
            path: self.path.clone(),
            source,
        })?)
    }

    /// Removes the journal.
    ///
    /// # Errors
    /// Returns an error if the file system fails.
    pub fn remove(self) -> io::Result<()> {
        step();
        std::fs::remove_file(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = [1, 4, 9, 3, 512];

    #[test]
    fn what_is_noted_is_found_again() {
        let desk = tempfile::tempdir().unwrap();
        let path = desk.path().join("journal");
        let run = || vec!["q a".to_string(), "k b".to_string()];
        let parts = vec!["1:2 3".to_string(), "1:4 5".to_string()];
        assert!(Journal::open(&path).unwrap().is_none());
        let mut journal = Journal::begin(&path, SIZES, run()).unwrap();
        journal.note(0).unwrap();
        journal.note(1).unwrap();
        journal.commit(&parts).unwrap();
        drop(journal);
        let text = std::fs::read_to_string(&path).unwrap();
        // A journal that is cut at any byte is the journal of fewer units, or counts as missing.
        for cut in 0..=text.len() {
            let text = &text[..cut];
            std::fs::write(&path, text).unwrap();
            let whole = text.matches("unit 0\n").count() + text.matches("unit 1\n").count();
            let commit = text.ends_with("]\n").then(|| parts.clone());
            match Journal::open(&path).unwrap() {
                Some((mut journal, earlier)) => {
                    let committed = commit.is_some();
                    assert_eq!(earlier, Earlier { sizes: SIZES, run: run(), finished: whole, commit });
                    if committed {
                        continue;
                    }
                    journal.note(whole).unwrap();
                    drop(journal);
                    let (_, earlier) = Journal::open(&path).unwrap().unwrap();
                    assert_eq!((earlier.finished, earlier.commit), (whole + 1, None));
                }
                None => assert!(!text.contains("]}\n"), "{text}"),
            }
        }
    }

    #[test]
    fn other_journals_are_refused() {
        let desk = tempfile::tempdir().unwrap();
        let path = desk.path().join("journal");
        let run = |q: &str| vec![q.to_string(), "k".to_string()];
        drop(Journal::begin(&path, SIZES, run("q")).unwrap());
        let opened = |run: &[String]| {
            let (_, earlier) = Journal::open(&path)?.expect("a journal");
            same(&path, &earlier, run)
        };
        let refused = |run: &[String], word: &str| {
            let error = opened(run).unwrap_err();
            assert!(error.status() == 2 && error.to_string().contains(word), "{error}");
        };
        opened(&run("q")).unwrap();
        refused(&run("other"), "another run (q)");
        refused(&["q".into(), "k".into(), "v".into()], "another run");
        let text = std::fs::read_to_string(&path).unwrap();
        for (bad, word) in [
            (text.replace("elsa journal 1", "elsa journal 2"), "no journal"),
            (text.replace("512", "-1"), "damaged"),
            (text.replace("512", "0"), "damaged"),
            (format!("{text}unit 1\n"), "in order"),
            (format!("{text}unit 0\nunit 0\n"), "in order"),
            (format!("{text}\0\n"), "in order"),
            (format!("{text}commit 3\n"), "damaged end"),
            (format!("{text}commit []\nunit 0\n"), "behind its end"),
            ("elsa".repeat(9), "no journal"),
        ] {
            std::fs::write(&path, bad).unwrap();
            refused(&run("q"), word);
        }
        std::fs::write(&path, [0xff, 0xfe]).unwrap();
        refused(&run("q"), "no journal");
        // A link is not followed, and a pipe is refused without waiting for a writer.
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("elsewhere", &path).unwrap();
        assert!(Journal::open(&path).is_err() && Journal::begin(&path, SIZES, run("q")).is_err());
        std::fs::remove_file(&path).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        refused(&run("q"), "not a regular file");
    }

    #[test]
    fn a_journal_has_one_process() {
        let desk = tempfile::tempdir().unwrap();
        let path = desk.path().join("journal");
        let journal = Journal::begin(&path, SIZES, vec!["q".into()]).unwrap();
        for error in
            [Journal::open(&path).unwrap_err(), Journal::begin(&path, SIZES, Vec::new()).unwrap_err()]
        {
            assert!(error.status() == 2 && error.to_string().contains("another process"), "{error}");
        }
        drop(journal);
        assert_eq!(Journal::open(&path).unwrap().unwrap().1.run, ["q"]);
    }
}
