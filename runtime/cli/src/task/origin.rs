//! Origin of the states in a file: `elsa run --state-out` and `elsa merge --state-out` record the origin, and
//! `elsa backward --state` checks it.

use crate::error::Error;
use elsa_core::quorum::Task;
use elsa_files::sums::{NAMES, Sums};
use elsa_files::task::{MOST_NAME, bytes, integers, is_name, list};
use elsa_files::{Array, Fault, TensorError};
use std::fs::File;
use std::path::Path;

/// Opens the file at `path` for `argument`, and calls `read` with the file and its length.
///
/// # Errors
/// Returns an error if the file cannot be read, if it changes during the read, or if `read` fails.
pub fn with<T>(
    argument: &'static str,
    path: &Path,
    read: impl FnOnce(&File, u64) -> Result<T, Fault>,
) -> Result<T, Error> {
    Ok(elsa_files::with_file(argument, path, |file| read(file.reader(), file.length()))?.1)
}

/// Returns the arrays that record the origin next to `m`, `S` and `W`: the run's name, or checksums of all tokens.
#[must_use]
pub fn arrays(run: &str, sums: Sums) -> Vec<(&'static str, Array)> {
    let Sums([queries, keys, _]) = if run.is_empty() { sums } else { Sums::default() };
    vec![("run_id", list(bytes(run))), (NAMES[0], list(queries)), (NAMES[1], list(keys))]
}

/// Checks that the states in the file at `path` come from the run named `run`. If `run` is `None`, compares the
/// checksums in the file with `sums` instead. The compared checksums are those of the tokens of `task`, or of all
/// tokens if `task` is `None`. For a run without a name, a file that records neither a name nor checksums is accepted.
///
/// # Errors
/// Returns an error if the states come from another run or from other tokens, or if the file is malformed.
pub fn check(
    path: &Path,
    run: Option<&str>,
    task: Option<&Task>,
    sums: impl FnOnce() -> Result<Sums, Error>,
) -> Result<(), Error> {
    let refused = |found: String, allowed: String| Error::Argument { argument: "state", found, allowed };
    let noted = |name: &str, most: usize| {
        with("state", path, |mut file, length| match integers(&mut file, length, name, most) {
            Err(Fault::Content(TensorError::Name { .. })) => Ok(Vec::new()),
            other => other,
        })
    };
    let name: Vec<u8> = noted("run_id", MOST_NAME)?.iter().map(|byte| *byte as u8).collect();
    match (&name[..], run) {
        ([], Some(run)) => {
            return Err(refused(
                "states of a run without a name".into(),
                format!("those of --run-id {run:?}"),
            ));
        }
        ([], None) => {}
        (name, Some(run)) if name == run.as_bytes() => return Ok(()),
        (name, run) => {
            let name = if is_name(name) { String::from_utf8_lossy(name) } else { "?".into() };
            let allowed = match run {
                Some(run) => format!("{run:?}, the name that --run-id gives"),
                None => "that of --run-id, which is missing".into(),
            };
            return Err(refused(format!("states of the run {name:?}"), allowed));
        }
    }
    let own = sums()?;
    let mut whole = Sums::default();
    for ((name, to), own) in NAMES.into_iter().zip(&mut whole.0).zip(&own.0).take(2) {
        let last = task.map(|task| if name == NAMES[0] { task.queries() } else { task.keys() });
        // For a task, the length is not limited: the problem may have tokens after the last one of the task.
        let most = if last.is_some() { usize::MAX } else { own.len() };
        *to = noted(name, most)?;
    }
    match own.differ(&whole, task) {
        None => Ok(()),
        Some((tokens, place)) => Err(refused(
            format!("states of other {tokens}, from token {place} on"),
            "those of the forward pass of these tensors".into(),
        )),
    }
}
