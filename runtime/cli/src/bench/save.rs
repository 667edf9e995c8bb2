//! Saved tables of results, by board and date.
//!
//! `FOLDER/DATE-HOST.csv` has the rows, `FOLDER/DATE-HOST.json` describes the machine. The folder is
//! `targets/BOARD/bench` below the current folder, unless a flag names another. Nothing is ever overwritten.

use crate::error::Error;
use crate::report;
use elsa_core::telemetry::record::{Record, Start};
use elsa_files::FileError;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Converts `text` to a part of a file name: lower case, with hyphens in place of all characters other than letters and
/// digits.
fn plain(text: &str) -> String {
    let mut name = String::new();
    for c in text.chars() {
        if c.is_ascii_alphanumeric() {
            name.push(c.to_ascii_lowercase());
        } else if !name.ends_with('-') && !name.is_empty() {
            name.push('-');
        }
    }
    name.trim_end_matches('-').to_owned()
}

/// Returns the name of this machine.
fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = plain(&name);
    if name.is_empty() { "host".to_owned() } else { name }
}

/// Returns the folder for the tables of this board: `given`, or `targets/BOARD/bench` if `given` is `None`. BOARD is
/// `target`, the name of a board that the project knows. If `target` is `None`, BOARD is the model of the board, or
/// the host name if the model is unknown.
#[must_use]
pub fn folder(given: Option<&Path>, target: Option<&str>, start: &Start) -> PathBuf {
    if let Some(given) = given {
        return given.to_path_buf();
    }
    let board = target.map(str::to_owned).unwrap_or_else(|| {
        let model = start.board.as_deref().map(plain).unwrap_or_default();
        if model.is_empty() { host() } else { model }
    });
    PathBuf::from("targets").join(board).join("bench")
}

/// A file of a checkout of this project.
const CHECKOUT: &str = "targets/src/lib.rs";

/// Requires that `folder` is the root of a checkout of this project, which the default folder of the tables is in.
///
/// # Errors
/// Returns an error for any other folder.
pub fn require_checkout(folder: &Path) -> Result<(), Error> {
    match folder.join(CHECKOUT).is_file() {
        true => Ok(()),
        false => Err(Error::Argument {
            argument: "save",
            found: "without DIR in a folder that is not a checkout of elsa-edge".into(),
            allowed: "--save DIR, or in the root of a checkout".into(),
        }),
    }
}

/// Makes the folder of the tables, so that a folder that cannot be written is reported before anything is measured.
///
/// # Errors
/// Returns an error if the file system fails.
pub fn prepare(folder: &Path) -> Result<(), Error> {
    let refuse = |e: std::io::Error| FileError::Target {
        argument: "save",
        path: folder.to_path_buf(),
        reason: e.to_string(),
    };
    fs::create_dir_all(folder).map_err(refuse)?;
    // A temporary file that is deleted at once shows whether files can be made.
    Ok(tempfile::tempfile_in(folder).map(drop).map_err(refuse)?)
}

/// Writes the table and the description of the machine, and returns the path of the table.
///
/// # Errors
/// Returns an error if the file system fails.
pub fn save(folder: &Path, start: &Start, table: &[u8]) -> Result<PathBuf, Error> {
    let date: String = start.date.chars().map(|c| if c == ':' { '-' } else { c }).collect();
    let stem = format!("{}-{}", plain(&date).to_ascii_uppercase(), host());
    let mut description = Vec::new();
    report::record(&mut description, &Record::Start(start.clone()))?;
    for attempt in 1.. {
        let stem = if attempt == 1 { stem.clone() } else { format!("{stem}-{attempt}") };
        let path = folder.join(format!("{stem}.csv"));
        let beside = path.with_extension("json");
        if beside.exists() {
            continue;
        }
        let failed = |source| FileError::Write { argument: "save", path: path.clone(), source };
        let mut file = match OpenOptions::new().write(true).create_new(true).open(&path) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => continue,
            file => file.map_err(failed)?,
        };
        file.write_all(table).and_then(|()| file.sync_all()).map_err(failed)?;
        fs::write(&beside, &description).map_err(|source| FileError::Write {
            argument: "save",
            path: beside,
            source,
        })?;
        return Ok(path);
    }
    Ok(folder.to_path_buf())
}

/// Returns the path of the newest table in `folder`, or `None` if there is no table. The name of a table begins with
/// its date.
#[must_use]
pub fn newest(folder: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?;
    let tables = entries.flatten().map(|entry| entry.path());
    tables.filter(|path| path.extension().is_some_and(|extension| extension == "csv")).max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use elsa_core::telemetry::record::text;

    #[test]
    fn tables_are_kept_by_date_and_never_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("targets/x/bench");
        prepare(&place).unwrap();
        let start = Start { date: text("2026-11-22T14:03:05Z"), ..Start::default() };
        let later = Start { date: text("2026-11-22T14:03:06Z"), ..Start::default() };
        let first = save(&place, &start, b"1").unwrap();
        let name = first.file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with("2026-11-22T14-03-05Z-") && name.ends_with(".csv"), "{name}");
        let second = save(&place, &start, b"2").unwrap();
        let third = save(&place, &later, b"3").unwrap();
        assert_eq!(fs::read(&first).unwrap(), b"1");
        assert_eq!((fs::read(&second).unwrap(), newest(&place)), (b"2".to_vec(), Some(third.clone())));
        let described = fs::read_to_string(third.with_extension("json")).unwrap();
        assert!(described.contains("\"date\":\"2026-11-22T14:03:06Z\""), "{described}");
        assert_eq!(newest(&folder.path().join("none")), None);

        fs::write(folder.path().join("file"), "").unwrap();
        let refused = prepare(&folder.path().join("file/bench")).expect_err("a file is no folder");
        assert_eq!(refused.status(), 2);
    }

    #[test]
    fn the_default_folder_is_in_a_checkout() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        require_checkout(&root).unwrap();
        let refused = require_checkout(&root.join("runtime")).expect_err("no root");
        assert!(refused.status() == 2 && refused.line().contains("--save DIR"), "{}", refused.line());
    }

    #[test]
    fn boards_have_folders_of_their_own() {
        let of = |given: &str, target: Option<&str>, board: Option<&str>| {
            let given = (!given.is_empty()).then(|| Path::new(given));
            folder(given, target, &Start { board: board.map(text), ..Start::default() })
        };
        assert_eq!(of("here", Some("jetson-tx2"), None), Path::new("here"));
        assert_eq!(of("", Some("jetson-tx2"), Some("x")), Path::new("targets/jetson-tx2/bench"));
        // The path stays inside `targets` for any content of the device tree.
        assert_eq!(of("", None, Some("A/../../B\n")), Path::new("targets/a-b/bench"));
        let nameless = of("", None, Some("/../"));
        assert_eq!((nameless.components().count(), nameless.ends_with("bench")), (3, true), "{nameless:?}");
    }
}
