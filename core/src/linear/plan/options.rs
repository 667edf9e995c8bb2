//! The options of the CPU chooser, and why it finds no plan.

use crate::linear::Form;
use core::fmt;

/// The smallest, and the step, of the sizes of a chunk, in tokens.
pub const CHUNK_STEP: usize = 8;

/// The largest chunk, in tokens.
pub const MOST_CHUNK: usize = 256;

/// The most parts into which [`Form::Scan`] divides a sequence.
pub const MOST_PARTS: usize = 256;

/// Options of a plan for a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The order of operations; `None` takes the one that is expected to be fastest.
    pub form: Option<Form>,
    /// Tokens of a chunk: a multiple of 8 from 8 to 256. `None` takes the kernel's.
    pub chunk: Option<usize>,
    /// Parts into which [`Form::Scan`] divides a sequence: 2 to 256. `None` takes a number by the tokens.
    pub parts: Option<usize>,
    /// Largest workspace, in bytes; `None` is unlimited.
    pub budget: Option<usize>,
    /// Number of available workers.
    pub workers: usize,
    /// Whether every worker takes part that can get a task, however small the problem.
    pub all_workers: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { form: None, chunk: None, parts: None, budget: None, workers: 1, all_workers: false }
    }
}

/// Why the chooser found no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChooseError {
    /// The size of a chunk is not supported.
    Chunk {
        /// The requested size.
        found: usize,
    },
    /// The number of parts is not supported.
    Parts {
        /// The requested number.
        found: usize,
    },
    /// The form has no such option.
    Option {
        /// The option, `chunk` or `parts`.
        option: &'static str,
        /// The requested form.
        form: Form,
        /// The forms that have it, in words.
        allowed: &'static str,
    },
    /// No kernel is present.
    NoKernel,
    /// A size is larger than the kernels of a GPU support.
    Large {
        /// What it is the size of.
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
        /// Bytes of it that hold the affine maps of parts, `[d_k, d_k]` each where the rule is a delta rule; zero for forms
        /// without parts.
        transitions: usize,
    },
    /// The size of the workspace overflows, or its memory is not available.
    Memory {
        /// Its size in bytes; `usize::MAX` if that overflows.
        needed: usize,
    },
}

impl fmt::Display for ChooseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            ChooseError::Chunk { found } => {
                write!(f, "chunk: {found}; allowed: multiples of {CHUNK_STEP} up to {MOST_CHUNK}")
            }
            ChooseError::Parts { found } => write!(f, "parts: {found}; allowed: 2 to {MOST_PARTS}"),
            ChooseError::Option { option, form, allowed } => {
                write!(f, "{option}: not with form {}; allowed: with {allowed}", form.name())
            }
            ChooseError::NoKernel => write!(f, "kernel: none is present; allowed: one of this machine"),
            ChooseError::Large { what, found, most } => {
                write!(f, "{what}: {found}; allowed on a GPU: at most {most}")
            }
            ChooseError::Budget { needed, budget, transitions: 0 } => {
                write!(f, "budget: {budget} bytes; allowed: at least {needed} for this problem")
            }
            ChooseError::Budget { needed, budget, transitions } => write!(
                f,
                "budget: {budget} bytes; allowed: at least {needed} for this problem, of which {transitions} hold transitions of parts"
            ),
            ChooseError::Memory { needed } => write!(
                f,
                "workspace: {needed} bytes are not available; allowed: at most the machine's memory"
            ),
        }
    }
}

impl core::error::Error for ChooseError {}
