//! Computes the backward pass on an engine: plans, bound calls and their runs. The CPU computes the pass even if the
//! engine has a GPU; the report of the run then names this fallback.

mod context;
mod cover;
mod cpu;
mod operator;
mod plan;
mod stage;
mod walk;
mod warm;

pub use operator::{Backward, BackwardBound, BackwardPlan, BackwardWorkspace};
pub use plan::BackwardPlanOptions;
