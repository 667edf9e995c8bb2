//! Linear attention. Every C function that needs the feature `linear` is in this folder.

mod calls;
mod convert;
mod tensors;

pub use calls::*;
