//! Options of recurrence, selective scan and convolution plans.

use elsa_core::series::convolution::Method;
use elsa_core::setters;

/// Options of a recurrence plan.
///
/// ```
/// # use elsa_runtime::RecurrenceOptions;
/// let options = RecurrenceOptions::default().parts(8);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecurrenceOptions {
    /// Largest allowed size of the workspace in bytes; `None` sets no limit. A small budget reduces the number of
    /// workers; the output has the same bits.
    pub budget: Option<usize>,
    /// `true` if all threads of the engine compute, even for a small problem. This option does not change the bits of
    /// the output.
    pub all_workers: bool,
    /// Number of parts into which the tokens are divided. More than one part is faster if there are few channels and
    /// many tokens. The states before all parts are computed first. Then all parts are computed in parallel. On the
    /// CPU, `None` means a single pass; on a GPU, `None` derives the number from the tokens, the channels and the
    /// device. The number changes the order of operations, and therefore the last bits.
    pub parts: Option<usize>,
}

/// Options of a selective scan plan.
///
/// ```
/// # use elsa_runtime::SelectiveOptions;
/// let options = SelectiveOptions::default().budget(64 << 20);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SelectiveOptions {
    /// Largest allowed size of the workspace in bytes; `None` sets no limit. A small budget reduces the number of
    /// workers; the output has the same bits.
    pub budget: Option<usize>,
    /// `true` if all threads of the engine compute, even for a small problem. This option does not change the bits of
    /// the output.
    pub all_workers: bool,
    /// Number of parts into which a GPU divides the tokens. `None` derives the number from the tokens, the channels and
    /// the device. The number changes the order of operations, and therefore the last bits. The CPU always makes a
    /// single pass.
    pub gpu_parts: Option<usize>,
}

/// Options of a convolution plan.
///
/// ```
/// # use elsa_core::series::convolution::Method;
/// # use elsa_runtime::ConvolutionOptions;
/// let options = ConvolutionOptions::default().method(Method::Fft);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConvolutionOptions {
    /// Largest allowed size of the workspace in bytes; `None` sets no limit. A small budget reduces the number of
    /// workers; the output has the same bits.
    pub budget: Option<usize>,
    /// `true` if all threads of the engine compute, even for a small problem. This option does not change the bits of
    /// the output.
    pub all_workers: bool,
    /// The method. On the CPU, `None` selects the method with fewer operations
    /// ([`method`](elsa_core::series::plan::method())). A GPU only supports the direct method, so on a GPU `None`
    /// selects the direct method.
    pub method: Option<Method>,
}

setters! {
    RecurrenceOptions:
    all_workers: bool;
    optional budget: usize, parts: usize,
}

setters! {
    SelectiveOptions:
    all_workers: bool;
    optional budget: usize, gpu_parts: usize,
}

setters! {
    ConvolutionOptions:
    all_workers: bool;
    optional budget: usize, method: Method,
}
