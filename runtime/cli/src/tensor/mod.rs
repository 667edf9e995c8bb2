//! Tensors in files: `.npy`, and `.safetensors` with the name of a tensor.
//!
//! The parsers ([`npy::parse`], [`safetensors::parse`]) take bytes and return a [`Parsed`]: type, shape and a
//! slice of exactly as many bytes as the shape takes. They trust nothing in a file and never panic.
//! [`Tensor::load`] maps a file, parses it and keeps the map. It copies only data whose address does not fit
//! their type. [`output`] writes.

mod load;
pub mod npy;
pub mod output;
pub mod safetensors;
mod source;
mod stored;

pub use load::{Accept, Tensor};
pub use source::Source;
pub use stored::{Parsed, Stored};
