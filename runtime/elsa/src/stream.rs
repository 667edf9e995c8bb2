//! Attention over tensors that are larger than memory, within a memory budget.
//!
//! [`Engine::stream`](crate::Engine::stream) creates a [`Plan`]. Parts of the inputs come from a [`Source`], and parts
//! of the output go to a [`Sink`]; on the CPU, the output has the same bits as the output of a run in memory.
//! [`prefetch`] fills one buffer while the caller computes with the contents of another.

#[doc(inline)]
pub use elsa_core::attention::plan::{Account, Part, UnitSizes, Written};
#[doc(inline)]
pub use elsa_runtime::{
    Excerpt, FittedStream, PieceError, RowSink, RowSource, Sink, Source, StreamCertificate as Certificate,
    StreamError as Error, StreamFit as Fit, StreamOptions as PlanOptions, StreamPlan as Plan,
    StreamReport as Report, Times, peak_memory, prefetch,
};

/// Streamed attention on a GPU whose memory is smaller than the tensors.
pub mod gpu {
    #[doc(inline)]
    pub use elsa_runtime::{
        DeviceKeys, FillAddends, FillKeys, FillRows, Fitted, GpuStream, GpuStreamOptions as Options,
        KeysFrom, StreamBox, StreamBudget as Budget, StreamCall as Call, StreamDivision as Division,
        StreamError as Error, StreamKeys as Keys, StreamRows as Rows, StreamTimes as Times,
        StreamTokens as Tokens, StreamWants as Wants, TakeRows,
    };
}
