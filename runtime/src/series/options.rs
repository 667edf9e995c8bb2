//! Options of plans of series.

use elsa_core::series::convolution::Method;

/// Options of a plan of a recurrence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecurrenceOptions {
    /// Largest workspace, in bytes; `None` is unlimited. A small one has fewer workers, which changes no bit.
    pub budget: Option<usize>,
    /// `true` if all threads take part, however small the problem. This changes no bit.
    pub all_workers: bool,
    /// Number of parts of the tokens, for few channels and many tokens: the states before the parts are computed first,
    /// then all parts in parallel. `None` means a single pass on the CPU; on a GPU the number then follows from the
    /// tokens, the channels and the device. It changes the order of operations and so the last bits.
    pub parts: Option<usize>,
}

/// Options of a plan of a selective scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SelectiveOptions {
    /// Largest workspace, in bytes; `None` is unlimited. A small one has fewer workers, which changes no bit.
    pub budget: Option<usize>,
    /// `true` if all threads take part, however small the problem. This changes no bit.
    pub all_workers: bool,
    /// Number of parts of the tokens on a GPU; `None` derives it from the tokens, the channels and the device. It
    /// changes the order of operations and so the last bits. The CPU makes a single pass.
    pub gpu_parts: Option<usize>,
}

/// Options of a plan of a convolution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConvolutionOptions {
    /// Largest workspace, in bytes; `None` is unlimited. A small one has fewer workers, which changes no bit.
    pub budget: Option<usize>,
    /// `true` if all threads take part, however small the problem. This changes no bit.
    pub all_workers: bool,
    /// How it is computed; `None` takes what needs less time: on the CPU by count
    /// ([`method`](elsa_core::series::plan::method())), on a GPU the direct method, which is the only one there.
    pub method: Option<Method>,
}
