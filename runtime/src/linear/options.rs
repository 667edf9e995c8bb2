//! Options of a plan of linear attention.

use elsa_core::linear::Form;
use elsa_core::setters;

/// Options of a plan of linear attention. All forms are exact algebra; they differ in the order of operations, and so in
/// speed, memory and the last bits.
///
/// ```
/// # use elsa_core::linear::Form;
/// # use elsa_runtime::LinearPlanOptions;
/// let options = LinearPlanOptions::default().form(Form::Chunk).chunk(64);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinearPlanOptions {
    /// The order of operations. `None` takes the one that is expected to be fastest, by the problem and the device's
    /// crossovers alone: neither the number of threads nor the batch changes it.
    pub form: Option<Form>,
    /// Tokens of a chunk: a multiple of 8 from 8 to 256. `None` takes the one that is expected to be fastest. A GPU has chunks
    /// of 16 tokens; there it is the distance between the states of [`Form::Chunk`], rounded up to whole chunks, which changes
    /// no bit.
    pub chunk: Option<usize>,
    /// Parts into which [`Form::Scan`] divides a sequence: 2 to 256. `None` takes a number by the tokens.
    pub parts: Option<usize>,
    /// Largest workspace, in bytes; `None` is unlimited.
    pub budget: Option<usize>,
    /// `true` if all threads take part, however small the problem. This changes no bit.
    pub all_workers: bool,
}

setters! {
    LinearPlanOptions:
    all_workers: bool;
    optional form: Form, chunk: usize, parts: usize, budget: usize,
}
