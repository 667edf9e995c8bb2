//! First-order recurrence, independently in each channel:
//!
//! ```text
//! h_t = a_t h_{t−1} + b_t
//! ```
//!
//! with factors `a_t`, or their natural logarithms ([`Gate`]). The maps `h ↦ a h + b` are closed under composition, earlier
//! first:
//!
//! ```text
//! (a_1, b_1) ⊕ (a_2, b_2) = (a_2 a_1, a_2 b_1 + b_2)
//! ```
//!
//! so any scan of [`crate::scan`] computes all `h_t` from [`Map`], and parts of a sequence fold to one map each.
//!
//! A factor of zero, or a logarithm of `−∞`, clears the state by selection, even if it is infinite or NaN. A NaN
//! poisons the state from its token on, until it is cleared. A factor beyond f32, from a logarithm above
//! [`MOST_LOG`](super::functions::MOST_LOG), follows the state: a zero state stays zero. A logarithm below
//! [`LEAST_LOG`](super::functions::LEAST_LOG) counts as `−∞`. A factor or a state whose magnitude is below the smallest
//! normal number may be taken as zero.

mod map;
mod problem;
pub mod reference;
pub mod scalar;

pub use crate::series::tensor::Outputs;
pub use map::Map;
pub use problem::{Gate, InputTensors, Inputs, Operand, Operands, Problem, Spec};
