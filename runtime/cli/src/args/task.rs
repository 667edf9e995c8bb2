//! The flags of a task.
// Doc comments of flags are their help texts, in which brackets enclose shapes and are not links.
#![allow(rustdoc::broken_intra_doc_links)]

use crate::error::Error;
use clap::Args;
use elsa_core::quorum::{Division, TaskPath};
use elsa_files::task::is_name;

/// A task and its division.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Division among boards")]
pub struct TaskArgs {
    /// Divide among boards by quorums: the chunks of each level, such as 7 or 7,13. Without --task, this process computes
    /// all tasks. Numbers with a set: 3, 7, 13, 21, 31, 57, 73, 91, 133, 183, 273, 307, 381, 553, 651, 757, 871, 993, 1057
    /// [default: the N of --task]
    #[arg(long, value_name = "C[,C...]", allow_hyphen_values = true, value_parser = chunks)]
    pub quorum: Option<Chunks>,
    /// Compute only task I of the N of the division, counted from 0, and write its states to --state-out (elsa
    /// backward: its shares to --shares-out). elsa merge joins the files of all tasks
    #[arg(long, value_name = "I/N", allow_hyphen_values = true, value_parser = number, conflicts_with = "task_path")]
    pub task: Option<Number>,
    /// Like --task, with the task's number at each level, such as 0.3.1. A path with fewer levels than --quorum is a
    /// larger task; tasks of different depths can be merged
    #[arg(long, value_name = "PATH", allow_hyphen_values = true, value_parser = path, requires = "quorum")]
    pub task_path: Option<TaskPath>,
    /// q, k, v and mask hold only the tokens of the task, in the order of the task. This is the case on a board that
    /// stores no other tokens
    #[arg(long, requires = "tokens")]
    pub gathered: bool,
    /// Name of the run, such as the frame's, written to every file of states and shares; only files of the same name
    /// merge. Without it they hold checksums of the tokens, and merge only if tasks agree about the tokens that they
    /// share
    #[arg(long, value_name = "TEXT", value_parser = run_id)]
    pub run_id: Option<String>,
    /// With --gathered: number of tokens of the whole problem, or QUERIES,KEYS
    #[arg(long, value_name = "N[,N]", allow_hyphen_values = true, value_parser = tokens, requires = "gathered")]
    pub tokens: Option<[usize; 2]>,
}

/// Chunks of each level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunks(pub Vec<usize>);

/// A task's number, and the number of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number {
    number: u64,
    tasks: u64,
}

/// Parses comma-separated whole numbers.
///
/// # Errors
/// Returns the allowed values if `text` has another form.
pub fn chunks(text: &str) -> Result<Chunks, String> {
    let chunks: Option<Vec<usize>> = text.split(',').map(|c| c.trim().parse().ok()).collect();
    chunks.map(Chunks).ok_or_else(|| "allowed: the chunks of each level, such as 7 or 7,13".into())
}

/// Parses `I/N`.
fn number(text: &str) -> Result<Number, String> {
    let number = text
        .split_once('/')
        .and_then(|(i, n)| Some(Number { number: i.parse().ok()?, tasks: n.parse().ok()? }));
    number.ok_or_else(|| "allowed: I/N, such as 0/7, with tasks numbered from 0".into())
}

/// Parses the name of a run.
///
/// # Errors
/// Returns the allowed names if `text` is not one of them.
pub fn run_id(text: &str) -> Result<String, String> {
    match is_name(text.as_bytes()) {
        true => Ok(text.to_owned()),
        false => Err("allowed: 1 to 256 printable characters of ASCII".into()),
    }
}

/// Parses whole numbers separated by dots.
fn path(text: &str) -> Result<TaskPath, String> {
    text.parse().map_err(|_| "allowed: 1 to 12 numbers with dots, such as 0.3.1".into())
}

/// Parses `N`, or `N,N`.
fn tokens(text: &str) -> Result<[usize; 2], String> {
    let one = |text: &str| text.trim().parse().ok();
    let tokens = match text.split_once(',') {
        Some((queries, keys)) => one(queries).zip(one(keys)).map(|(queries, keys)| [queries, keys]),
        None => one(text).map(|n| [n, n]),
    };
    tokens.ok_or_else(|| "allowed: the number of tokens of the whole problem, or QUERIES,KEYS".into())
}

/// Rejects `argument` if `given` is `true`, because `argument` requires --task or --task-path.
///
/// # Errors
/// Returns an error that names `argument` if `given` is `true`.
pub fn needs_task(given: bool, argument: &'static str) -> Result<(), Error> {
    match given {
        true => {
            let (found, allowed) = ("given without --task or --task-path".into(), "with one of them".into());
            Err(Error::Argument { argument, found, allowed })
        }
        false => Ok(()),
    }
}

impl TaskArgs {
    /// Returns `true` if a task is requested.
    #[must_use]
    pub fn is_given(&self) -> bool {
        self.task.is_some() || self.task_path.is_some()
    }

    /// Returns an error if a flag that requires a task is given. Without a task, --quorum means all tasks.
    ///
    /// # Errors
    /// Returns an error that names the first of these flags.
    pub fn unused(&self) -> Result<(), Error> {
        needs_task(self.gathered, "gathered")
    }

    /// Requires that a run with a name writes or reads a file of states or shares, because the name is stored only in
    /// these files.
    ///
    /// # Errors
    /// Returns an error if --run-id is given and `a_file` is `false`.
    pub fn names(&self, a_file: bool, allowed: &'static str) -> Result<(), Error> {
        match self.run_id.is_some() && !a_file {
            true => {
                let found = "given where no file takes it".into();
                Err(Error::Argument { argument: "run-id", found, allowed: allowed.into() })
            }
            false => Ok(()),
        }
    }

    /// Returns the division and the task's path.
    ///
    /// # Errors
    /// Returns an error if no interest set exists for the chunks, if the number of tasks in --task differs from that of
    /// the division, or if the task is out of range.
    pub fn chosen(&self) -> Result<(Division, TaskPath), Error> {
        let quorum = |source| Error::Quorum { argument: "quorum", source };
        let task = |source| Error::Quorum { argument: "task", source };
        let chunks = match (&self.quorum, self.task) {
            (Some(Chunks(chunks)), _) => chunks.clone(),
            (None, Some(Number { tasks, .. })) => vec![usize::try_from(tasks).unwrap_or(usize::MAX)],
            (None, None) => Vec::new(),
        };
        let made = Division::new(&chunks);
        let division = match self.quorum {
            Some(_) => made.map_err(quorum)?,
            None => made.map_err(task)?,
        };
        let path = match (self.task, self.task_path) {
            (Some(Number { number, tasks }), _) => {
                if tasks != division.tasks() {
                    return Err(Error::Argument {
                        argument: "task",
                        found: format!("{number}/{tasks}"),
                        allowed: format!("N of {}, the product of --quorum", division.tasks()),
                    });
                }
                division.path(number).map_err(task)?
            }
            (None, Some(path)) => {
                division.check(&path).map_err(|source| Error::Quorum { argument: "task-path", source })?;
                path
            }
            (None, None) => {
                let (found, allowed) = ("missing".into(), "I/N, or --task-path".into());
                return Err(Error::Argument { argument: "task", found, allowed });
            }
        };
        Ok((division, path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_understood() {
        assert_eq!(chunks("7, 13"), Ok(Chunks(vec![7, 13])));
        assert_eq!(number("3/7"), Ok(Number { number: 3, tasks: 7 }));
        assert_eq!((tokens("9"), tokens("9,12")), (Ok([9, 9]), Ok([9, 12])));
        assert!(["", "7,", "x", "-7", "7;7"].into_iter().all(|text| chunks(text).is_err()));
        assert!(["", "3", "3/", "/7", "-1/7", "1/7/7"].into_iter().all(|text| number(text).is_err()));
        assert!(["", "1,2,3", "-1", "n"].into_iter().all(|text| tokens(text).is_err()));
        assert_eq!(run_id("frame 17/left"), Ok("frame 17/left".into()));
        assert!(
            ["", "a\n", "\u{1b}[31m", "é", &"x".repeat(257)].into_iter().all(|text| run_id(text).is_err())
        );
        assert!(path("0.3").is_ok() && path("0.").is_err());
    }
}
