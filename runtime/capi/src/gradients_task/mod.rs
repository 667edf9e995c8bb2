//! Gradients of quorums. Every C function that needs both features `gradients` and `task` is in this folder.

mod calls;
mod merge;

pub use calls::*;
pub use merge::*;
