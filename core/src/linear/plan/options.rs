//! The options of the CPU chooser.

use crate::linear::Form;

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
