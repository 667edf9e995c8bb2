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
    /// problem and on the sequence lengths at which the device's fastest form changes. It does not depend on the number
    /// of threads or on the batch. There is one exception: a GPU uses a form with a smaller workspace, in the end token
    /// by token, if the chunks of the batch need more memory than the budget. Without a budget, the limit is a quarter of
    /// the device's memory.
    pub form: Option<Form>,
    /// Number of tokens per chunk on the CPU: a multiple of 8 from 8 to 256. `None` selects the number that is expected
    /// to be fastest. A GPU has chunks of 64 tokens in [`Form::Chunk`], and otherwise chunks of 16 tokens; also in
    /// [`Form::Chunk`] if keys have more than 128 dims under a delta rule or with a gate per dim, and in non-causal calls.
    /// There, the option sets the distance between the stored states, rounded up to a multiple of 16. It does not change
    /// the bits of the output.
    pub chunk: Option<usize>,
    /// Number of parts into which [`Form::Scan`] divides a sequence: 2 to 256. `None` derives this number from the
    /// number of tokens.
    pub parts: Option<usize>,
    /// `true` if no call continues the sequences of another. On the CPU, a short sequence without states is then computed
    /// in [`Form::Parallel`] where this is faster, so the bits of an output depend on the number of tokens. The option has
    /// no effect with a budget and on a GPU.
    pub whole: bool,
    /// Largest allowed size of the workspace in bytes; `None` sets no limit.
    pub budget: Option<usize>,
    /// `true` if all threads of the engine compute, even for a small problem. This option does not change the bits of
    /// the output.
    pub all_workers: bool,
}

setters! {
    LinearPlanOptions:
    all_workers: bool, whole: bool;
    optional form: Form, chunk: usize, parts: usize, budget: usize,
}
