//! Linear attention. Every C function that needs the feature `linear` is in this folder.

mod calls;
mod certify;
mod convert;
mod tensors;

pub use calls::*;
pub use certify::*;
