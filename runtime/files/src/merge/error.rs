//! Reasons why files of tasks do not merge.

use crate::task::{Kind, Whole};
use crate::{FileError, MemoryError};
use elsa_core::argument::ArgumentError;
use elsa_core::plan::ChooseError;
use elsa_core::quorum::TaskPath;
use elsa_runtime::PlanError;
use std::path::PathBuf;

/// Error of a merge of task files. Messages about a file start with its path, and messages about an argument with the
/// argument.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MergeError {
    /// A file that cannot be read or written, or memory that the system refused.
    #[error(transparent)]
    File(#[from] FileError),
    /// States that do not fit the problem in their file.
    #[error(transparent)]
    Argument(#[from] ArgumentError),
    /// A merge that cannot be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// An empty list of files.
    #[error("no file; allowed: the files of all tasks")]
    Empty,
    /// A file with another kind of content than the first file.
    #[error("{}: {}; allowed: {}, as {} has", path.display(), found.name(), allowed.name(), first.display())]
    Kind {
        /// The file.
        path: PathBuf,
        /// Its content.
        found: Kind,
        /// Content of the first file.
        allowed: Kind,
        /// The first file.
        first: PathBuf,
    },
    /// Files with another kind of content than the caller merges.
    #[error("{argument}: files of {}; allowed: files of {}", found.name(), allowed.name())]
    Content {
        /// The argument that lists the files.
        argument: &'static str,
        /// Content of the files.
        found: Kind,
        /// Content that the caller merges.
        allowed: Kind,
    },
    /// A file of another problem or of another run than the first file.
    #[error("{}: {name} {found}; allowed: {allowed}, as {} has", path.display(), first.display())]
    Problem {
        /// The file.
        path: PathBuf,
        /// Name of the field that differs.
        name: &'static str,
        /// Value of the field in the file.
        found: String,
        /// Value of the field in the first file.
        allowed: String,
        /// The first file.
        first: PathBuf,
    },
    /// A task that two files have, completely or in part.
    #[error("{}: task {task} is there twice, or below another; allowed: each task once", listed(paths))]
    Twice {
        /// The task.
        task: TaskPath,
        /// The files with this task.
        paths: Vec<PathBuf>,
    },
    /// A task that no file has.
    #[error("task {task} is missing; allowed: all tasks")]
    Missing {
        /// The task.
        task: TaskPath,
        /// Number of the task among the tasks of the last level; `None` for a task of another level.
        number: Option<u64>,
        /// Number of tasks of the last level.
        tasks: u64,
        /// Content of the other files.
        kind: Kind,
        /// The complete problem.
        whole: Box<Whole>,
    },
    /// Files that no division has.
    #[error("{0}")]
    Division(ChooseError),
    /// Two files with different checksums of a token.
    #[error(
        "{}: {tokens} of token {place} other than in {}; allowed: tasks of the same tensors",
        path.display(),
        other.display()
    )]
    Tokens {
        /// The file.
        path: PathBuf,
        /// Name of the tensors that differ.
        tokens: &'static str,
        /// Index of the token.
        place: usize,
        /// Another file with the token.
        other: PathBuf,
    },
    /// A number that no run writes to a file.
    #[error("{}: {found}; allowed: {allowed}", path.display())]
    State {
        /// The file.
        path: PathBuf,
        /// Array, index and value of the number.
        found: String,
        /// Allowed values.
        allowed: String,
    },
    /// Files of another run than the requested one.
    #[error("{argument}: {found:?}; allowed: {allowed}")]
    Run {
        /// The argument that names the run.
        argument: &'static str,
        /// The requested name.
        found: String,
        /// Description of the name in the files.
        allowed: String,
    },
    /// A memory budget for less than one token.
    #[error("{argument}: {found}; allowed: at least {least} bytes")]
    Budget {
        /// The argument with the budget.
        argument: &'static str,
        /// The budget in bytes.
        found: usize,
        /// The smallest budget in bytes.
        least: usize,
    },
}

impl MergeError {
    /// Returns a function that converts the error of a plan. If the system refused memory, the error names `argument`.
    pub(super) fn planned(argument: &'static str) -> impl Fn(PlanError) -> MergeError {
        move |e| match e {
            PlanError::TaskMemory { bytes } => MemoryError { argument, bytes }.into(),
            e => e.into(),
        }
    }
}

impl From<MemoryError> for MergeError {
    fn from(e: MemoryError) -> MergeError {
        MergeError::File(e.into())
    }
}

fn listed(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}
