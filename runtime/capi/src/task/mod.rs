//! Tasks of quorums. Every C function that needs the feature `task` alone is in this folder.

pub(crate) mod calls;
pub(crate) mod planned;

pub use calls::*;
