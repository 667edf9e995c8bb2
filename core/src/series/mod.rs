//! Operators that treat each channel of a tensor of tokens and channels independently.
//!
//! | module | operator |
//! |---|---|
//! | [`recurrence`] | `h_t = a_t h_{t−1} + b_t` |
//! | [`selective`] | Mamba's selective scan |
//! | [`convolution`] | the causal convolution: relative decay, and the convolution before Mamba's scan |
//!
//! Each operator has a checked problem, the tensors of a call, an f64 oracle with an error bound, and a scalar
//! implementation that needs no allocator. Tensors of tokens and channels are of type [`Series`]. The module [`plan`]
//! contains the chooser and the layouts of workspaces.

pub mod bound;
pub mod convolution;
pub mod functions;
pub mod plan;
pub mod recurrence;
pub mod selective;
mod tensor;

pub use tensor::{OutputTensors, Outputs, Series, token_of};
