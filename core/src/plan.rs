//! Errors from the choosers of all operators, and from the division of attention into tasks.

use crate::quorum::{MAX_LEVELS, TaskPath};
use core::fmt;

/// Reason why a chooser found no plan, or why an interest set, a division, a task or a tree of tasks is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChooseError {
    /// The block size is not supported.
    Block {
        /// The requested size.
        found: usize,
    },
    /// The number of tokens per chunk is not supported.
    Chunk {
        /// The requested number of tokens.
        found: usize,
        /// The smallest supported number. Every supported number is a multiple of it.
        step: usize,
        /// The largest supported number.
        max: usize,
    },
    /// The number of parts into which sequences are to be divided is out of bounds.
    Parts {
        /// The requested number of parts.
        found: usize,
        /// The smallest supported number.
        min: usize,
        /// The largest supported number.
        max: usize,
    },
    /// The requested form of linear attention does not have the option.
    Option {
        /// Name of the option.
        option: &'static str,
        /// Name of the requested form.
        form: &'static str,
        /// The forms that have the option, in words.
        allowed: &'static str,
    },
    /// No candidate kernel supports the number of queries or, on a GPU, the element type.
    NoKernel,
    /// No available kernel runs on this machine.
    AbsentKernel,
    /// Packed sequences were requested with the method `math`, which does not support them.
    Packed,
    /// No GPU kernel supports the head size.
    HeadSize {
        /// The larger of the head sizes of keys and of values.
        found: usize,
        /// The largest supported head size.
        max: usize,
    },
    /// A count exceeds the range of the GPU kernels.
    Extent {
        /// Name of the counted things, in the plural.
        axis: &'static str,
        /// The number of these things in the problem.
        found: usize,
        /// The largest supported number.
        max: usize,
    },
    /// A size is larger than the kernels of a GPU support.
    Large {
        /// Name of the tensor or axis that has the size.
        what: &'static str,
        /// The size in the problem.
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
    /// Even the smallest workspace exceeds the budget. The workspace contains an affine map for each part of a sequence.
    PartsBudget {
        /// Size of the smallest workspace in bytes.
        needed: usize,
        /// The budget in bytes.
        budget: usize,
        /// Number of bytes that the affine maps occupy in the smallest workspace.
        transitions: usize,
    },
    /// A streamed run needs more than the allowed share of the host's memory, even if it computes the problem in the
    /// smallest units.
    HostBudget {
        /// Number of bytes that a run with the smallest units needs, including the memory that the process already uses.
        needed: usize,
        /// The budget in bytes.
        budget: usize,
    },
    /// The size of the workspace overflows, or its memory is not available.
    Memory {
        /// Size of the workspace in bytes; `usize::MAX` if it overflows.
        needed: usize,
    },
    /// No interest set is known for the number of chunks, or no such set exists.
    NoSet {
        /// The requested number of chunks.
        found: usize,
        /// The next smaller number with a known set.
        below: Option<usize>,
        /// The next larger number with a known set.
        above: Option<usize>,
    },
    /// The members are not an interest set: not every nonzero difference occurs exactly once.
    Differences {
        /// Number of chunks of the set.
        chunks: usize,
        /// Number of differences that do not occur.
        missing: usize,
        /// Number of differences that occur more than once.
        doubled: usize,
    },
    /// A member of a set is out of range or given twice.
    Member {
        /// The rejected member.
        found: usize,
        /// Number of chunks of the set.
        chunks: usize,
    },
    /// A set lacks the member 0. This member gives every task a chunk that the task owns.
    NoOwner,
    /// A division has no levels or too many levels.
    Levels {
        /// Requested number of levels.
        found: usize,
    },
    /// The number of tasks in a division exceeds 64 bits.
    TooManyTasks,
    /// The number of a task is out of range.
    TaskNumber {
        /// The requested number.
        found: u64,
        /// Number of tasks of the division.
        tasks: u64,
    },
    /// A path has more levels than its division.
    Deep {
        /// The rejected path.
        path: TaskPath,
        /// Number of levels of the division.
        levels: usize,
    },
    /// A digit of a path is out of range.
    Digit {
        /// The path with this digit.
        path: TaskPath,
        /// Level of the digit, counted from one.
        level: usize,
        /// Number of chunks at that level.
        chunks: usize,
    },
    /// The given tasks of a tree leave a gap.
    TaskMissing {
        /// Path of the largest task that begins where the first gap begins and does not extend beyond the gap.
        path: TaskPath,
    },
    /// A task of a tree is given twice, or is given together with a task above it.
    TaskTwice {
        /// Path of the task.
        path: TaskPath,
    },
}

impl ChooseError {
    /// Returns the error for a workspace that exceeds its budget. `transitions` is the number of bytes that the affine maps
    /// of the parts occupy in the workspace.
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
                "workspace: {needed} bytes are not available; allowed: at most the memory that is available"
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
