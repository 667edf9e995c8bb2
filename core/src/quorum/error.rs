//! Errors of sets, divisions, tasks and trees.

use super::path::{MAX_LEVELS, TaskPath};
use core::fmt;

/// Error of an interest set, a division, a task or a tree of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuorumError {
    /// No interest set exists, or none is known, for a number of chunks.
    NoSet {
        /// The number of chunks.
        found: usize,
        /// The next smaller number that has one.
        below: Option<usize>,
        /// The next larger number that has one.
        above: Option<usize>,
    },
    /// The members are not an interest set: not every nonzero difference occurs exactly once.
    Differences {
        /// Number of chunks.
        chunks: usize,
        /// Number of differences that do not occur.
        missing: usize,
        /// Number of differences that occur more than once.
        doubled: usize,
    },
    /// A member of a set is out of range or given twice.
    Member {
        /// The member.
        found: usize,
        /// Number of chunks.
        chunks: usize,
    },
    /// A set lacks the member 0, by which a task owns a chunk.
    NoOwner,
    /// A division has too many levels, or no level.
    Levels {
        /// Number of levels.
        found: usize,
    },
    /// The tasks of a division cannot be counted in 64 bits.
    TooManyTasks,
    /// The number of a task is out of range.
    Number {
        /// The number.
        found: u64,
        /// Number of tasks.
        tasks: u64,
    },
    /// A path has more levels than its division.
    Deep {
        /// The path.
        path: TaskPath,
        /// Number of levels of the division.
        levels: usize,
    },
    /// A digit of a path is out of range.
    Digit {
        /// The path.
        path: TaskPath,
        /// Level, counted from one.
        level: usize,
        /// Number of chunks at that level.
        chunks: usize,
    },
    /// No task of a tree covers a path.
    Missing {
        /// The largest part of the tree that starts at the first gap.
        path: TaskPath,
    },
    /// A task of a tree is given twice, or is below another one.
    Doubled {
        /// Path of the task.
        path: TaskPath,
    },
}

impl fmt::Display for QuorumError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use QuorumError as E;
        match *self {
            E::NoSet { found, below, above } => {
                write!(f, "{found} chunks have no known interest set; allowed: ")?;
                match (below, above) {
                    (Some(below), Some(above)) => write!(f, "{below} or {above}, its neighbours"),
                    (Some(below), None) => write!(f, "at most {below}"),
                    (None, Some(above)) => write!(f, "at least {above}"),
                    (None, None) => write!(f, "none"),
                }
            }
            E::Differences { chunks, missing, doubled } => write!(
                f,
                "{missing} differences modulo {chunks} missing and {doubled} doubled; allowed: each of 1 to {} \
                 exactly once",
                chunks.saturating_sub(1)
            ),
            E::Member { found, chunks } => {
                write!(f, "member {found}; allowed: numbers below {chunks}, each once")
            }
            E::NoOwner => write!(f, "a set without 0; allowed: sets with 0, by which a task owns its chunk"),
            E::Levels { found } => write!(f, "{found} levels; allowed: 1 to {MAX_LEVELS}"),
            E::TooManyTasks => write!(f, "more tasks than 64 bits count; allowed: fewer levels"),
            E::Number { found, tasks } => {
                write!(f, "task {found}; allowed: 0 to {}", tasks.saturating_sub(1))
            }
            E::Deep { path, levels } => write!(f, "path {path}; allowed: at most {levels} levels"),
            E::Digit { path, level, chunks } => {
                write!(f, "path {path}: level {level}; allowed: 0 to {}", chunks.saturating_sub(1))
            }
            E::Missing { path } => write!(f, "task {path} is missing"),
            E::Doubled { path } => write!(f, "task {path} is there twice"),
        }
    }
}

impl core::error::Error for QuorumError {}
