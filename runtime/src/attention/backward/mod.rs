//! The backward pass on an engine: plans, bound calls and their runs. The CPU computes it; an engine with a GPU has its
//! CPU do so, and the report says it.

mod context;
mod cover;
mod cpu;
mod operator;
mod plan;
mod stage;
mod walk;

pub use operator::{Backward, BackwardBound, BackwardPlan, BackwardWorkspace};
pub use plan::BackwardPlanOptions;
