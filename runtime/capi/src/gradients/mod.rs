//! Gradients of softmax attention. Every C function that needs the feature `gradients` alone is in this folder.

mod calls;
pub(crate) mod tensors;

pub use calls::*;
