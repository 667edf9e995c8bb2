//! The selective scan of Mamba: each channel `d` of `D` has a state of `N` numbers, which the token itself gates.
//!
//! ```text
//! δ_t  = delta_t + delta_bias                              softplus of it, if asked for
//! x_t  = exp(δ_t A) x_{t−1} + δ_t B_t u_t                  A is [D, N]
//! y_t  = C_t · x_t + D u_t                                 times silu(z_t), if there is a z
//! ```
//!
//! (Gu and Dao, *Mamba: Linear-Time Sequence Modeling with Selective State Spaces*, algorithm 2; `selective_scan_ref` of
//! their `mamba_ssm`.) `B` and `C` vary per token, for groups of channels, or per channel ([`Coefficient`]). `A` is
//! real, as in Mamba's models. Its predecessors (S4D) have complex rates, each equivalent to two real states. The state
//! after the last token continues as the past state of the next call, of one or more tokens.
//!
//! A factor `exp(δ A)` or a state whose magnitude is below the smallest normal number may be taken as zero. A factor of
//! zero clears the state by selection, even if it is infinite or NaN. A NaN poisons the states of its channel from its
//! token on.

mod problem;
pub mod reference;
pub mod scalar;

pub use crate::series::tensor::Outputs;
pub use problem::{Coefficient, InputTensors, Inputs, MAX_STATES, Operand, Operands, Problem, Spec};
