//! The errors of the choosers of all operators.

use core::fmt;

/// Why a chooser found no plan.
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
    /// A count exceeds what the GPU kernels can represent.
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
        /// Its size in bytes; `usize::MAX` if that overflows.
        needed: usize,
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
        }
    }
}

impl core::error::Error for ChooseError {}
