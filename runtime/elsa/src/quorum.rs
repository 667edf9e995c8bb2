//! Attention divided into independent tasks. The tasks run on several boards or one after another, and their states and
//! gradients are then merged.

#[doc(inline)]
pub use elsa_core::quorum::{
    BalancedChunkLayout, Division, InterestSet, KeySpans, MAX_LEVELS, MAX_MEMBERS, MAX_RUNS, NotAPath, Run,
    Span, Task, TaskPath, Tree,
};
#[doc(inline)]
pub use elsa_runtime::{
    BackwardTaskPlan, BackwardTaskReport, GradientMerge, GradientSizes, RowStates, TaskGradients, TaskMerge,
    TaskPlan, TaskReport, TaskTokens,
};
