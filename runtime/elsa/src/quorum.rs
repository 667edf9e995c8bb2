//! Attention divided into independent tasks, whose states and gradients are merged: for several boards, or one after another.

#[doc(inline)]
pub use elsa_core::quorum::{
    BalancedChunkLayout, Division, InterestSet, KeySpans, MAX_CHUNKS, MAX_LEVELS, MAX_MEMBERS, MAX_RUNS,
    NotAPath, QuorumError, Run, Span, Task, TaskPath, Tree,
};
#[doc(inline)]
pub use elsa_runtime::{
    BackwardTaskPlan, BackwardTaskReport, GradientMerge, GradientSizes, Held, RowStates, TaskError,
    TaskGradients, TaskMerge, TaskPlan, TaskReport,
};
