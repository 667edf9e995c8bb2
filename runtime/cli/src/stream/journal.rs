//! The journal of a run that can go on after a kill: what the run was of, and which units are finished.
//!
//! ```text
//! elsa journal 1
//! {"sizes":[1,4,85,3,4096],"run":["q /data/q.npy 64769:131 4194432 1700000000.000000000", ...]}
//! unit 0
//! unit 1
//! ```
//!
//! A unit is noted when its outputs are on the device. A line that the kill has cut short counts for nothing.

use crate::error::Error;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

const MAGIC: &str = "elsa journal 1";

/// Most bytes of a journal that are read.
const LONGEST: u64 = 64 << 20;

/// Sizes of units and chunks: of a run on the CPU [`UnitSizes`](elsa_runtime::UnitSizes) in their order, of one on a GPU
/// rows, keys and splits of its division, and ones.
pub type Sizes = [usize; 5];

/// What a run was of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Head {
    /// The sizes of its units and chunks.
    sizes: Sizes,
    /// Problem, kernel, inputs and outputs, a line for each.
    run: Vec<String>,
}

/// A journal on the disk.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
}

/// What a journal says about an earlier run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Earlier {
    /// Its units and chunk.
    pub sizes: Sizes,
    /// Number of units that are finished.
    pub finished: usize,
}

fn refused(path: &Path, found: &str) -> Error {
    let found = format!("{}: {found}", path.display());
    let allowed = "the journal of a run of the same inputs, options and outputs; remove it to begin anew";
    Error::Argument { argument: "resume", found, allowed: allowed.into() }
}

/// What the text of a journal says, and how many of its bytes count. `run` describes the run that would go on.
fn parse(text: &str, path: &Path, run: &[String]) -> Result<(Earlier, usize), Error> {
    let mut lines = text.split_inclusive('\n');
    let mut next = || lines.next().and_then(|line| Some((line.strip_suffix('\n')?, line.len())));
    let (magic, mut length) = next().ok_or_else(|| refused(path, "no journal"))?;
    if magic != MAGIC {
        return Err(refused(path, "no journal"));
    }
    let (head, bytes) = next().ok_or_else(|| refused(path, "a journal without a head"))?;
    length += bytes;
    let head: Head =
        serde_json::from_str(head).map_err(|_| refused(path, "a journal with a damaged head"))?;
    if let Some(other) = head.run.iter().find(|line| !run.contains(line)) {
        return Err(refused(path, &format!("the journal of another run ({other})")));
    }
    if head.run.len() != run.len() {
        return Err(refused(path, "the journal of another run"));
    }
    if head.sizes.contains(&0) {
        return Err(refused(path, "a journal with a damaged head"));
    }
    let mut finished = 0;
    while let Some((line, bytes)) = next() {
        if line != format!("unit {finished}") {
            return Err(refused(path, "a journal whose units are not in order"));
        }
        finished += 1;
        length += bytes;
    }
    Ok((Earlier { sizes: head.sizes, finished }, length))
}

impl Journal {
    /// Opens the journal at `path`, if there is one of the run that `run` describes.
    ///
    /// # Errors
    /// A journal of another run, or a damaged one; what the file system reports.
    pub fn open(path: &Path, run: &[String]) -> Result<Option<(Journal, Earlier)>, Error> {
        let unread = |source| Error::Read { argument: "resume", path: path.to_path_buf(), source };
        let mut file = match File::options().read(true).write(true).open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(unread(e)),
        };
        let mut bytes = Vec::new();
        (&mut file).take(LONGEST).read_to_end(&mut bytes).map_err(unread)?;
        let text = std::str::from_utf8(&bytes).map_err(|_| refused(path, "no journal"))?;
        let (earlier, length) = parse(text, path, run)?;
        file.set_len(length as u64).map_err(unread)?;
        file.seek(SeekFrom::End(0)).map_err(unread)?;
        Ok(Some((Journal { path: path.to_path_buf(), file }, earlier)))
    }

    /// Begins a journal at `path`.
    ///
    /// # Errors
    /// What the file system reports.
    pub fn begin(path: &Path, sizes: Sizes, run: Vec<String>) -> Result<Journal, Error> {
        let failed = |source| Error::Write { argument: "resume", path: path.to_path_buf(), source };
        let head = Head { sizes, run };
        let head = serde_json::to_string(&head).map_err(|e| failed(e.into()))?;
        let mut file = File::create(path).map_err(failed)?;
        writeln!(file, "{MAGIC}\n{head}").and_then(|()| file.sync_all()).map_err(failed)?;
        Ok(Journal { path: path.to_path_buf(), file })
    }

    /// Notes that unit `number` is finished.
    ///
    /// # Errors
    /// What the file system reports.
    pub fn note(&mut self, number: usize) -> io::Result<()> {
        self.file.write_all(format!("unit {number}\n").as_bytes())?;
        self.file.sync_data()
    }

    /// Removes the journal.
    ///
    /// # Errors
    /// What the file system reports.
    pub fn remove(self) -> io::Result<()> {
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
        assert!(Journal::open(&path, &run()).unwrap().is_none());
        let mut journal = Journal::begin(&path, SIZES, run()).unwrap();
        journal.note(0).unwrap();
        journal.note(1).unwrap();
        drop(journal);
        let text = std::fs::read_to_string(&path).unwrap();
        // Cut anywhere, it is the journal of fewer units, or none.
        for cut in 0..=text.len() {
            std::fs::write(&path, &text[..cut]).unwrap();
            let whole = text[..cut].matches("unit 0\n").count() + text[..cut].matches("unit 1\n").count();
            match Journal::open(&path, &run()) {
                Ok(Some((mut journal, earlier))) => {
                    assert_eq!(earlier, Earlier { sizes: SIZES, finished: whole });
                    journal.note(whole).unwrap();
                    let (_, earlier) = Journal::open(&path, &run()).unwrap().unwrap();
                    assert_eq!(earlier.finished, whole + 1);
                }
                Ok(None) => panic!("there is one"),
                Err(e) => assert!(e.status() == 2 && !text[..cut].contains("]}\n"), "{e}"),
            }
        }
    }

    #[test]
    fn other_journals_are_refused() {
        let desk = tempfile::tempdir().unwrap();
        let path = desk.path().join("journal");
        let run = |q: &str| vec![q.to_string(), "k".to_string()];
        drop(Journal::begin(&path, SIZES, run("q")).unwrap());
        let refused = |run: &[String], word: &str| {
            let error = Journal::open(&path, run).unwrap_err();
            assert!(error.status() == 2 && error.to_string().contains(word), "{error}");
        };
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
        ] {
            std::fs::write(&path, bad).unwrap();
            refused(&run("q"), word);
        }
        std::fs::write(&path, [0xff, 0xfe]).unwrap();
        refused(&run("q"), "no journal");
    }
}
