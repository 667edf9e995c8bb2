//! Streams of softmax attention. Every C function that needs the feature `stream` is in this folder.

mod calls;
mod convert;
mod gpu;
mod rows;

pub use calls::*;
