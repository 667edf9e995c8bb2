//! The options of the CPU chooser.

use crate::linear::Form;

/// Smallest number of tokens per chunk. Every other number of tokens per chunk is a multiple of this number.
pub const CHUNK_STEP: usize = 8;

/// Largest number of tokens per chunk.
pub const MOST_CHUNK: usize = 256;

/// Largest number of parts into which [`Form::Scan`] divides a sequence.
pub const MOST_PARTS: usize = 256;

/// Options of a plan for a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The order of operations; `None` selects the form predicted or measured to be fastest.
    pub form: Option<Form>,
    /// Number of tokens per chunk: a multiple of 8 from 8 to 256. `None` selects it from the head size and the kernel.
    pub chunk: Option<usize>,
    /// Number of parts into which [`Form::Scan`] divides a sequence: 2 to 256. `None` selects it from the number of
    /// tokens.
    pub parts: Option<usize>,
    /// `true` if no call continues the sequences of another, so that the form may depend on the number of tokens. The
    /// bits of an output then depend on it, too. It has no effect if the problem has states or the options a budget.
    pub whole: bool,
    /// Largest workspace, in bytes; `None` is unlimited.
    pub budget: Option<usize>,
    /// Number of available workers.
    pub workers: usize,
    /// `true` if every worker for which there is a task takes part, even in a small problem.
    pub all_workers: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            form: None,
            chunk: None,
            parts: None,
            whole: false,
            budget: None,
            workers: 1,
            all_workers: false,
        }
    }
}
