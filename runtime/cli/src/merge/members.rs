//! The files of tasks: what each says about itself, and whether all together are one whole.

use crate::error::Error;
use crate::memory;
use crate::task::file::{Description, Kind, Whole};
use crate::tensor::{Fault, InputFile};
use elsa_core::quorum::{QuorumError, Task, TaskPath, Tree};
use std::path::Path;

/// The argument of the files, in messages.
const STATES: &str = "STATES";

/// A file with what it says about itself.
pub struct Member<'a> {
    path: &'a Path,
    description: Description,
    /// The task.
    pub task: Task,
}

impl<'a> Member<'a> {
    /// Reads what a file says about itself.
    ///
    /// # Errors
    /// A file that is no task's.
    pub fn open(path: &'a Path) -> Result<Member<'a>, Error> {
        let (description, task) = with(path, |mut file, length| Description::read(&mut file, length))?;
        Ok(Member { path, description, task })
    }

    /// Reads what the file holds.
    ///
    /// # Errors
    /// A file that has changed, or does not hold what it says.
    pub fn read<T>(
        &self,
        read: impl FnOnce(&Description, &Task, &mut &std::fs::File, u64) -> Result<T, Fault>,
    ) -> Result<T, Error> {
        let Member { path, description, task } = self;
        let held = with(path, |mut file, length| {
            // The file may be another one by now.
            let (now, _) = Description::read(&mut file, length)?;
            match now == *description {
                true => Ok(Some(read(description, task, &mut file, length)?)),
                false => Ok(None),
            }
        })?;
        held.ok_or_else(|| Error::Changed { argument: STATES, path: path.to_path_buf() })
    }
}

/// An empty vector with room for an entry for each of `files` files.
///
/// # Errors
/// Memory that the system refuses.
pub fn reserved<T>(files: usize) -> Result<Vec<T>, Error> {
    memory::reserved(files).map_err(|bytes| Error::Memory { argument: STATES, bytes })
}

/// Opens the file at `path`, and calls `read` with it and its length.
fn with<T>(path: &Path, read: impl FnOnce(&std::fs::File, u64) -> Result<T, Fault>) -> Result<T, Error> {
    let (argument, owned) = (STATES, || path.to_path_buf());
    let unread = |source| Error::Read { argument, path: owned(), source };
    let file = InputFile::open(path).map_err(unread)?;
    let done = read(file.reader(), file.length());
    if !file.unchanged() {
        return Err(Error::Changed { argument, path: owned() });
    }
    done.map_err(|fault| match fault {
        Fault::Content(source) => Error::Tensor { argument, path: owned(), source },
        Fault::Io(source) => unread(source),
        Fault::Memory(bytes) => Error::Memory { argument, bytes },
    })
}

/// Brings the files into the order of their tree. Returns what they hold, and what they belong to.
///
/// # Errors
/// Files of different kinds or wholes, and tasks that are missing or doubled.
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
        Err(QuorumError::Doubled { path }) => Err(Error::States(format!(
            "{}: task {path} is there twice, or below another; allowed: each task once",
            at(path).join(", ")
        ))),
        Err(QuorumError::Missing { path }) => {
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
