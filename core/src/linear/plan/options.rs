//! The options of the CPU chooser, and its errors.

use crate::linear::Form;
use core::fmt;

/// Smallest size of a chunk, and its step, in tokens.
pub const CHUNK_STEP: usize = 8;

/// Largest size of a chunk, in tokens.
pub const MOST_CHUNK: usize = 256;

/// Largest number of parts into which [`Form::Scan`] divides a sequence.
pub const MOST_PARTS: usize = 256;

/// Options of a plan for a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The order of operations; `None` selects the form that is expected to be fastest.
    pub form: Option<Form>,
    /// Number of tokens of a chunk: a multiple of 8 from 8 to 256. `None` selects the kernel's.
    pub chunk: Option<usize>,
    /// Number of parts into which [`Form::Scan`] divides a sequence: 2 to 256. `None` selects it by the tokens.
    pub parts: Option<usize>,
    /// Largest workspace, in bytes; `None` is unlimited.
    pub budget: Option<usize>,
    /// Number of available workers.
    pub workers: usize,
    /// `true` if every worker that can get a task takes part, even in a small problem.
    pub all_workers: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { form: None, chunk: None, parts: None, budget: None, workers: 1, all_workers: false }
    }
}

/// Error of the chooser.
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
    /// The form does not have this option.
    Option {
        /// Name of the option, `chunk` or `parts`.
        option: &'static str,
        /// The requested form.
        form: Form,
        /// The forms that have the option, in words.
        allowed: &'static str,
    },
    /// No kernel is present.
    NoKernel,
    /// A size exceeds the limit of the GPU kernels.
    Large {
        /// Name of the size.
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
        /// Bytes of it that hold the affine maps of parts, `[d_k, d_k]` each for a delta rule; zero for forms
        /// without parts.
        transitions: usize,
    },
    /// The size of the workspace overflows, or its memory is not available.
    Memory {
        /// Size of the workspace in bytes; `usize::MAX` if that overflows.
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
