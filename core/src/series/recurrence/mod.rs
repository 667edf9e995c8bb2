//! The first-order recurrence, computed independently in each channel:
//!
//! ```text
//! h_t = a_t h_{t−1} + b_t
//! ```
//!
//! with factors `a_t`, or their natural logarithms ([`Gate`]). The maps `h ↦ a h + b` are closed under composition,
//! with the earlier map first:
//!
//! ```text
//! (a_1, b_1) ⊕ (a_2, b_2) = (a_2 a_1, a_2 b_1 + b_2)
//! ```
//!
//! Therefore any scan of [`crate::scan`] computes all `h_t` from [`Map`]s, and each part of a sequence reduces to one
//! map.
//!
//! A factor of zero, or a logarithm of `−∞`, sets the state to zero by selection, even if the state is infinite or NaN.
//! A NaN makes every later state NaN until the state is cleared. If a logarithm is above
//! [`MOST_LOG`](super::functions::MOST_LOG), its factor exceeds the range of f32, but a zero state stays zero. A
//! logarithm below [`LEAST_LOG`](super::functions::LEAST_LOG) counts as `−∞`. Factors and states below the smallest
//! normal number in magnitude may be treated as zero.

mod map;
mod problem;
pub mod reference;
pub mod scalar;

pub use crate::series::tensor::Outputs;
pub use map::Map;
pub use problem::{Gate, InputTensors, Inputs, Operand, Operands, Problem, Spec};
