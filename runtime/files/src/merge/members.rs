//! Reads the headers of the tasks' files. Checks that all tasks belong to one problem, and that no task is missing.

use super::error::MergeError;
use crate::load::failed;
use crate::sums::{Sums, TOKENS};
use crate::task::{Description, Kind, Whole};
use crate::{Fault, FileError, MemoryError, with_file};
use elsa_core::argument::ArgumentError;
use elsa_core::plan::ChooseError;
use elsa_core::quorum::{Run, Task, TaskPath, Tree};
use elsa_runtime::RowStates;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The file of a task, with its header.
pub struct Member<'a> {
    argument: &'static str,
    path: &'a Path,
    description: Description,
    /// The task whose results the file contains.
    pub task: Task,
}

impl<'a> Member<'a> {
    /// Reads the header of a task's file, and the headers of the arrays in the file. `argument` is the caller's argument
    /// that lists the files.
    ///
    /// # Errors
    /// Returns an error if the file does not belong to a task, or if its content contradicts its header.
    pub fn open(argument: &'static str, path: &'a Path) -> Result<Member<'a>, MergeError> {
        let (description, task) =
            opened(argument, path, |mut file, length| Description::read(&mut file, length))?;
        Ok(Member { argument, path, description, task })
    }

    /// Reads the content of the file.
    ///
    /// # Errors
    /// Returns an error if the file has changed, or if its content contradicts its header.
    pub fn read<T>(
        &self,
        read: impl FnOnce(&Description, &Task, &mut &File, u64) -> Result<T, Fault>,
    ) -> Result<T, MergeError> {
        let Member { argument, path, description, task } = self;
        let held = opened(argument, path, |mut file, length| {
            // The path may lead to another file by now.
            let (now, _) = Description::read(&mut file, length)?;
            match now == *description {
                true => Ok(Some(read(description, task, &mut file, length)?)),
                false => Ok(None),
            }
        })?;
        Ok(held.ok_or_else(|| FileError::Changed { argument, path: path.to_path_buf() })?)
    }

    /// Checks that `states`, the states of the rows `rows` of the file, contain only numbers that a run can produce.
    ///
    /// # Errors
    /// Returns an error for the first number that is not allowed; the message names its row in the file.
    pub fn check(&self, states: &RowStates, rows: &[Range<usize>]) -> Result<(), MergeError> {
        let Err(mut e) = states.check() else { return Ok(()) };
        let all = self.task.query_tokens();
        if let ArgumentError::State { row, .. } = &mut e {
            let read = rows.iter().map(Range::len).sum::<usize>().max(1);
            let place = rows.iter().cloned().flatten().nth(*row % read).unwrap_or_default();
            *row = *row / read * all + place;
        }
        let sizes = [self.description.whole.shape[1], all];
        Err(match misfit(&e, sizes) {
            Some((found, allowed)) => MergeError::State { path: self.path.to_path_buf(), found, allowed },
            None => e.into(),
        })
    }
}

/// Opens the file at `path` for `argument`, and calls `read` with the file and its length.
fn opened<T>(
    argument: &'static str,
    path: &Path,
    read: impl FnOnce(&File, u64) -> Result<T, Fault>,
) -> Result<T, MergeError> {
    Ok(with_file(argument, path, |file| read(file.reader(), file.length()))?.1)
}

/// Totals over the files of all tasks.
pub struct Totals {
    /// Number of pairs of a query and a key, for one head.
    pub pairs: u128,
    /// Numbers of query tokens and key tokens. A token counts once for each task that has it.
    pub tokens: [usize; 2],
    /// Number of bytes read.
    pub bytes: usize,
}

impl Totals {
    /// Calls `push` for each file in the order of the merge tree, and returns the totals. `push` reads the file and
    /// returns the number of bytes read.
    ///
    /// # Errors
    /// Returns the first error of `push`.
    pub fn of<E>(
        members: &[Member<'_>],
        mut push: impl FnMut(&Member<'_>) -> Result<usize, E>,
    ) -> Result<Totals, E> {
        let mut totals = Totals { pairs: 0, tokens: [0; 2], bytes: 0 };
        for member in members {
            let task = &member.task;
            totals.bytes += push(member)?;
            totals.pairs += task.pair_count();
            totals.tokens = [totals.tokens[0] + task.query_tokens(), totals.tokens[1] + task.key_tokens()];
        }
        Ok(totals)
    }
}

/// Allocates an empty vector with room for one entry per file. `argument` is the caller's argument that lists the files.
///
/// # Errors
/// Returns an error if the system refuses memory.
pub fn reserved<T>(argument: &'static str, files: usize) -> Result<Vec<T>, MergeError> {
    Ok(crate::reserved(files).map_err(|bytes| MemoryError { argument, bytes })?)
}

/// Checks that the files belong to the run `run`. `argument` is the caller's argument that names the run.
///
/// # Errors
/// Returns an error if the files have another name or none.
pub fn check_run(argument: &'static str, run: &str, whole: &Whole) -> Result<(), MergeError> {
    let allowed = match whole.run.as_str() {
        own if own == run => return Ok(()),
        "" => "left out, as the files are of a run without a name".into(),
        own => format!("{own:?}, as the files have"),
    };
    Err(MergeError::Run { argument, found: run.to_owned(), allowed })
}

/// Returns the checksums of all tokens, one for each token. The result is empty if the run has a name, because the
/// files then contain no checksums.
///
/// # Errors
/// Returns an error if tasks disagree about a token, if a file has changed, or if the system refuses memory.
pub fn sums(members: &[Member<'_>], kind: Kind, whole: &Whole) -> Result<Sums, MergeError> {
    if !whole.run.is_empty() {
        return Ok(Sums::default());
    }
    let mut all = Sums::none([whole.shape[3], whole.shape[4]], kind == Kind::Gradients)?;
    for (at, member) in members.iter().enumerate() {
        let own = member.read(|description, task, file, length| description.sums(task, file, length))?;
        let Some((tokens, place)) = all.join(&member.task, &own) else { continue };
        let holds = |other: &&Member<'_>| {
            let runs = if tokens == TOKENS[1] { other.task.keys() } else { other.task.queries() };
            let mut spans = runs.iter().map(Run::span);
            spans.any(|span| (span.start..span.start + span.tokens).contains(&place))
        };
        let other =
            members[..at].iter().find(holds).map(|other| other.path.to_path_buf()).unwrap_or_default();
        return Err(MergeError::Tokens { path: member.path.to_path_buf(), tokens, place, other });
    }
    Ok(all)
}

/// Sorts the files in the order of the merge tree. Returns their kind, and the complete problem to which they belong.
///
/// # Errors
/// Returns an error if files are of different kinds or problems, or if a task is missing or present twice.
pub fn tree(members: &mut [Member<'_>]) -> Result<(Kind, Whole), MergeError> {
    let Some(first) = members.first() else { return Err(MergeError::Empty) };
    let (kind, whole) = (first.description.kind, first.description.whole.clone());
    for Member { path, description, .. } in &*members {
        let (path, first) = (path.to_path_buf(), first.path.to_path_buf());
        if description.kind != kind {
            return Err(MergeError::Kind { path, found: description.kind, allowed: kind, first });
        }
        if let Some((name, found, allowed)) = whole.difference(&description.whole) {
            return Err(MergeError::Problem { path, name, found, allowed, first });
        }
    }
    let division = whole.division().map_err(|fault| failed(first.argument, first.path, fault))?;
    let argument = first.argument;
    members.sort_by_key(|member| member.description.path);
    let mut paths = reserved::<TaskPath>(argument, members.len())?;
    paths.extend(members.iter().map(|member| member.description.path));
    match Tree::new(&division, &mut paths) {
        Ok(_) => Ok((kind, whole)),
        Err(ChooseError::TaskTwice { path: task }) => {
            let of = members.iter().filter(|member| member.description.path == task);
            let paths: Vec<PathBuf> = of.map(|member| member.path.to_path_buf()).collect();
            Err(MergeError::Twice { task, paths })
        }
        Err(ChooseError::TaskMissing { path: task }) => {
            let (number, tasks) = (division.number(&task), division.tasks());
            Err(MergeError::Missing { task, number, tasks, kind, whole: Box::new(whole) })
        }
        Err(other) => Err(MergeError::Division(other)),
    }
}

/// If `error` is about a number that no run writes to states of shape `[batch, heads, rows]`, describes this number.
/// Returns two texts: the first has the array, the index and the value of the number, and the second has the allowed
/// values. Returns `None` for other errors.
#[must_use]
pub fn misfit(error: &ArgumentError, [heads, rows]: [usize; 2]) -> Option<(String, String)> {
    let ArgumentError::State { argument, row, found, allowed } = *error else { return None };
    let array = match argument {
        "state_m" => "m",
        "state_s" => "S",
        _ => "W",
    };
    let (sequence, row) = (row / rows.max(1), row % rows.max(1));
    let place = [sequence / heads.max(1), sequence % heads.max(1), row];
    Some((format!("{array} of row {place:?} holds {found}"), format!("{allowed}, as a run leaves it")))
}
