//! The errors of the choosers of all operators, and of the division of attention into tasks.

use crate::quorum::{MAX_LEVELS, TaskPath};
use core::fmt;

/// Error of a chooser that found no plan, or of an interest set, a division, a task or a tree of tasks that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChooseError {
    /// The block size is not supported.
    Block {
        /// The requested size.
        found: usize,
    },
    /// The size of a chunk is not supported.
    Chunk {
        /// The requested size.
        found: usize,
        /// The smallest supported size. Every supported size is a multiple of it.
        step: usize,
        /// The largest supported size.
        max: usize,
    },
    /// The number of parts is out of bounds.
    Parts {
        /// The requested number.
        found: usize,
        /// The smallest supported number.
        min: usize,
        /// The largest supported number.
        max: usize,
    },
    /// The form has no such option.
    Option {
        /// The option.
        option: &'static str,
        /// The requested form.
        form: &'static str,
        /// The forms that have it, in words.
        allowed: &'static str,
    },
    /// No candidate kernel takes that many queries.
    NoKernel,
    /// No kernel is present.
    AbsentKernel,
    /// Method math does not support packed sequences.
    Packed,
    /// No GPU kernel supports the head size.
    HeadSize {
        /// The larger of the two head sizes.
        found: usize,
        /// The largest supported head size.
        max: usize,
    },
    /// A count exceeds the range of the GPU kernels.
    Extent {
        /// The counted things.
        axis: &'static str,
        /// Their number.
        found: usize,
        /// The largest supported number.
        max: usize,
    },
    /// A size is larger than the kernels of a GPU support.
    Large {
        /// The tensor or axis with that size.
        what: &'static str,
        /// The size.
        found: usize,
        /// The largest supported size.
        most: usize,
    },
    /// Even the smallest workspace exceeds the budget.
    Budget {
        /// Size of the smallest workspace in bytes.
        needed: usize,
        /// The budget in bytes.
        budget: usize,
    },
    /// Even the smallest workspace, which holds the affine maps of parts, exceeds the budget.
    PartsBudget {
        /// Size of the smallest workspace in bytes.
        needed: usize,
        /// The budget in bytes.
        budget: usize,
        /// Bytes of it that hold the maps.
        transitions: usize,
    },
    /// Even the smallest form of a streamed run exceeds its share of the host's memory.
    HostBudget {
        /// Bytes of the smallest form, and of the process before the run.
        needed: usize,
        /// The budget in bytes.
        budget: usize,
    },
    /// The size of the workspace overflows, or its memory is not available.
    Memory {
        /// Size in bytes; `usize::MAX` if that overflows.
        needed: usize,
    },
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
    TaskNumber {
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
    TaskMissing {
        /// The largest part of the tree that starts at the first gap.
        path: TaskPath,
    },
    /// A task of a tree is given twice, or is below another one.
    TaskTwice {
        /// Path of the task.
        path: TaskPath,
    },
}

impl ChooseError {
    /// Returns the error of a workspace beyond its budget; `transitions` of its bytes hold maps of parts.
    #[must_use]
    pub const fn budget(needed: usize, budget: usize, transitions: usize) -> ChooseError {
        match transitions {
            0 => ChooseError::Budget { needed, budget },
            _ => ChooseError::PartsBudget { needed, budget, transitions },
        }
    }
}

impl fmt::Display for ChooseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            ChooseError::Block { found } => write!(f, "block: {found}; allowed: 64, 128 or 256"),
            ChooseError::Chunk { found, step, max } => {
                write!(f, "chunk: {found}; allowed: multiples of {step} up to {max}")
            }
            ChooseError::Parts { found, min, max } => {
                write!(f, "parts: {found}; allowed: {min} to {max}")
            }
            ChooseError::Option { option, form, allowed } => {
                write!(f, "{option}: not with form {form}; allowed: with {allowed}")
            }
            ChooseError::NoKernel => {
                write!(f, "kernel: none for as many queries; allowed: one that takes any number")
            }
            ChooseError::AbsentKernel => write!(f, "kernel: none is present; allowed: one of this machine"),
            ChooseError::Packed => write!(f, "method: math with packed sequences; allowed: elsa"),
            ChooseError::HeadSize { found, max } => {
                write!(f, "q: head size {found} on a GPU; allowed: at most {max}")
            }
            ChooseError::Extent { axis, found, max } => {
                write!(f, "q: {found} {axis} on a GPU; allowed: at most {max}")
            }
            ChooseError::Large { what, found, most } => {
                write!(f, "{what}: {found}; allowed on a GPU: at most {most}")
            }
            ChooseError::Budget { needed, budget } => {
                write!(f, "budget: {budget} bytes; allowed: at least {needed} for this problem")
            }
            ChooseError::PartsBudget { needed, budget, transitions } => write!(
                f,
                "budget: {budget} bytes; allowed: at least {needed} for this problem, including {transitions} for transitions of parts"
            ),
            ChooseError::HostBudget { needed, budget } => {
                write!(f, "host_budget: {budget} bytes; allowed: at least {needed} for this problem")
            }
            ChooseError::Memory { needed } => write!(
                f,
                "workspace: {needed} bytes are not available; allowed: at most the machine's memory"
            ),
            ChooseError::NoSet { found, below, above } => {
                write!(f, "{found} chunks have no known interest set; allowed: ")?;
                match (below, above) {
                    (Some(below), Some(above)) => write!(f, "{below} or {above}, its neighbours"),
                    (Some(below), None) => write!(f, "at most {below}"),
                    (None, Some(above)) => write!(f, "at least {above}"),
                    (None, None) => write!(f, "none"),
                }
            }
            ChooseError::Differences { chunks, missing, doubled } => write!(
                f,
                "{missing} differences modulo {chunks} missing and {doubled} doubled; allowed: each of 1 to {} \
                 exactly once",
                chunks.saturating_sub(1)
            ),
            ChooseError::Member { found, chunks } => {
                write!(f, "member {found}; allowed: numbers below {chunks}, each once")
            }
            ChooseError::NoOwner => {
                write!(f, "a set without 0; allowed: sets with 0, by which a task owns its chunk")
            }
            ChooseError::Levels { found } => write!(f, "{found} levels; allowed: 1 to {MAX_LEVELS}"),
            ChooseError::TooManyTasks => write!(f, "more tasks than 64 bits count; allowed: fewer levels"),
            ChooseError::TaskNumber { found, tasks } => {
                write!(f, "task {found}; allowed: 0 to {}", tasks.saturating_sub(1))
            }
            ChooseError::Deep { path, levels } => write!(f, "path {path}; allowed: at most {levels} levels"),
            ChooseError::Digit { path, level, chunks } => {
                write!(f, "path {path}: level {level}; allowed: 0 to {}", chunks.saturating_sub(1))
            }
            ChooseError::TaskMissing { path } => write!(f, "task {path} is missing"),
            ChooseError::TaskTwice { path } => write!(f, "task {path} is there twice"),
        }
    }
}

impl core::error::Error for ChooseError {}
