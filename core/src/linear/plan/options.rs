//! The options of the CPU chooser.

use crate::linear::Form;

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
