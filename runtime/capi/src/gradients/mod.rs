//! Gradients of softmax attention. Every C function that needs the feature `gradients` is in this folder.

mod calls;
mod tensors;

pub use calls::*;
