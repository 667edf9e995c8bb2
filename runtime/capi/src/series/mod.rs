//! Operators on separate channels. Every C function that needs the feature `series` is in this folder.

mod calls;
mod convert;
mod tensors;

pub use calls::*;
