//! Files of tasks. Every C function that needs the feature `files` is in this folder.

mod calls;

pub use calls::*;
