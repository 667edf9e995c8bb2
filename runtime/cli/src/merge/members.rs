//! Reads the headers of the tasks' files. Checks that all tasks belong to one problem, and that no task is missing.

use crate::error::Error;
use crate::task::origin::{self, misfit};
use elsa_core::argument::ArgumentError;
use elsa_core::plan::ChooseError;
use elsa_core::quorum::{Run, Task, TaskPath, Tree};
use elsa_files::sums::{Sums, TOKENS};
use elsa_files::task::{Description, Kind, Whole};
use elsa_files::{Fault, FileError, MemoryError};
use elsa_runtime::RowStates;
use std::ops::Range;
use std::path::Path;

/// Name of the argument that lists the files, for messages.
const STATES: &str = "STATES";

/// The file of a task, with its header.
pub struct Member<'a> {
    path: &'a Path,
    description: Description,
    /// The task whose results the file contains.
    pub task: Task,
}

impl<'a> Member<'a> {
    /// Reads the header of a task's file, and the headers of the arrays in the file.
    ///
    /// # Errors
    /// Returns an error if the file does not belong to a task, or if its content contradicts its header.
    pub fn open(path: &'a Path) -> Result<Member<'a>, Error> {
        let (description, task) =
            origin::with(STATES, path, |mut file, length| Description::read(&mut file, length))?;
        Ok(Member { path, description, task })
    }

    /// Reads the content of the file.
    ///
    /// # Errors
    /// Returns an error if the file has changed, or if its content contradicts its header.
    pub fn read<T>(
        &self,
        read: impl FnOnce(&Description, &Task, &mut &std::fs::File, u64) -> Result<T, Fault>,
    ) -> Result<T, Error> {
        let Member { path, description, task } = self;
        let held = origin::with(STATES, path, |mut file, length| {
            // The path may lead to another file by now.
            let (now, _) = Description::read(&mut file, length)?;
            match now == *description {
                true => Ok(Some(read(description, task, &mut file, length)?)),
                false => Ok(None),
            }
        })?;
        Ok(held.ok_or_else(|| FileError::Changed { argument: STATES, path: path.to_path_buf() })?)
    }

    /// Checks that `states`, the states of the rows `rows` of the file, contain only numbers that a run can produce.
    ///
    /// # Errors
    /// Returns an error for the first number that is not allowed; the message names its row in the file.
    pub fn check(&self, states: &RowStates, rows: &[Range<usize>]) -> Result<(), Error> {
        let Err(mut e) = states.check() else { return Ok(()) };
        let all = self.task.query_tokens();
        if let ArgumentError::State { row, .. } = &mut e {
            let read = rows.iter().map(Range::len).sum::<usize>().max(1);
            let place = rows.iter().cloned().flatten().nth(*row % read).unwrap_or_default();
            *row = *row / read * all + place;
        }
        let sizes = [self.description.whole.shape[1], all];
        Err(match misfit(&e, sizes) {
            Some((found, allowed)) => {
                Error::States(format!("{}: {found}; allowed: {allowed}", self.path.display()))
            }
            None => e.into(),
        })
    }
}

/// Allocates an empty vector with room for one entry per file.
///
/// # Errors
/// Returns an error if the system refuses memory.
pub fn reserved<T>(files: usize) -> Result<Vec<T>, Error> {
    Ok(elsa_files::reserved(files).map_err(|bytes| MemoryError { argument: STATES, bytes })?)
}

/// Returns the checksums of all tokens, one for each token. The result is empty if the run has a name, because the
/// files then contain no checksums.
///
/// # Errors
/// Returns an error if tasks disagree about a token, if a file has changed, or if the system refuses memory.
pub fn sums(members: &[Member<'_>], kind: Kind, whole: &Whole) -> Result<Sums, Error> {
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
        let path = members[..at].iter().find(holds).map(|other| other.path.display().to_string());
        return Err(Error::States(format!(
            "{}: {tokens} of token {place} other than in {}; allowed: tasks of the same tensors. Compute again the one that is \
             left from another run; --run-id names runs",
            member.path.display(),
            path.unwrap_or_default()
        )));
    }
    Ok(all)
}

/// Sorts the files in the order of the merge tree. Returns their kind, and the complete problem to which they belong.
///
/// # Errors
/// Returns an error if files are of different kinds or problems, or if a task is missing or present twice.
pub fn tree(members: &mut [Member<'_>]) -> Result<(Kind, Whole), Error> {
    let Some(first) = members.first() else {
        return Err(Error::States("no file; allowed: the files of all tasks".into()));
    };
    let (kind, whole) = (first.description.kind, first.description.whole.clone());
    for Member { path, description, .. } in &*members {
        if description.kind != kind {
            return Err(Error::States(format!(
                "{}: {}; allowed: {}, as {} has",
                path.display(),
                description.kind.name(),
                kind.name(),
                first.path.display()
            )));
        }
        if let Some((name, found, allowed)) = whole.difference(&description.whole) {
            return Err(Error::States(format!(
                "{}: {name} {found}; allowed: {allowed}, as {} has",
                path.display(),
                first.path.display()
            )));
        }
    }
    let division = whole.division().map_err(|_| Error::States("no division".into()))?;
    members.sort_by_key(|member| member.description.path);
    let mut paths = reserved::<TaskPath>(members.len())?;
    paths.extend(members.iter().map(|member| member.description.path));
    let at = |path: TaskPath| {
        let of = |member: &&Member<'_>| member.description.path == path;
        members.iter().filter(of).map(|member| member.path.display().to_string()).collect::<Vec<_>>()
    };
    match Tree::new(&division, &mut paths) {
        Ok(_) => Ok((kind, whole)),
        Err(ChooseError::TaskTwice { path }) => Err(Error::States(format!(
            "{}: task {path} is there twice, or below another; allowed: each task once",
            at(path).join(", ")
        ))),
        Err(ChooseError::TaskMissing { path }) => {
            let quorum: Vec<String> = whole.quorum.iter().map(ToString::to_string).collect();
            let which = match division.number(&path) {
                Some(number) => format!("--task {number}/{}", division.tasks()),
                None => format!("--task-path {path}"),
            };
            let (command, more, out) = match kind {
                Kind::States => ("run", "", "state-out"),
                Kind::Gradients => ("backward", " --d-out FILE --state FILE.npz", "shares-out"),
            };
            Err(Error::States(format!(
                "task {path} is missing; allowed: all tasks. Repeat it: elsa {command} --q FILE --k FILE --v FILE{more}{} \
                 --quorum {} {which} --{out} FILE.npz",
                whole.flags(),
                quorum.join(",")
            )))
        }
        Err(other) => Err(Error::States(other.to_string())),
    }
}
