//! Tasks of quorums. Every C function that needs the feature `task` is in this folder.

mod calls;

pub use calls::*;
