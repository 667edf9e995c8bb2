//! Options of a plan of linear attention.

use elsa_core::linear::Form;
use elsa_core::setters;

/// Options of a plan of linear attention. All forms compute the same function exactly; they differ in the order of
/// operations, and so in speed, memory and the last bits.
///
/// ```
/// # use elsa_core::linear::Form;
/// # use elsa_runtime::LinearPlanOptions;
/// let options = LinearPlanOptions::default().form(Form::Chunk).chunk(64);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinearPlanOptions {
    /// The order of operations. `None` selects the form that is expected to be fastest. This choice depends only on the
    /// problem and on the device's crossovers between forms, not on the number of threads or the batch. There is one
    /// exception: a GPU computes token by token if the chunks of the batch need more memory than the budget. Without a
    /// budget, the limit is a quarter of the device's memory.
    pub form: Option<Form>,
    /// Tokens per chunk on the CPU: a multiple of 8 from 8 to 256. `None` selects the number that is expected to be
    /// fastest. A GPU always has chunks of 16 tokens. On a GPU, the option sets the distance between the stored states
    /// of [`Form::Chunk`], rounded up to a multiple of 16; the output has the same bits.
    pub chunk: Option<usize>,
    /// Parts into which [`Form::Scan`] divides a sequence: 2 to 256. `None` derives the number from the tokens.
    pub parts: Option<usize>,
    /// Largest allowed workspace in bytes; `None` is unlimited.
    pub budget: Option<usize>,
    /// `true` if all threads take part even if the problem is small; the output has the same bits.
    pub all_workers: bool,
}

setters! {
    LinearPlanOptions:
    all_workers: bool;
    optional form: Form, chunk: usize, parts: usize, budget: usize,
}
