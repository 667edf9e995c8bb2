//! The selective scan of Mamba: each of the `D` channels has a state of `N` numbers, and the gates of its update depend
//! on the token.
//!
//! ```text
//! δ_t  = delta_t + delta_bias                              or its softplus, if requested
//! x_t  = exp(δ_t A) x_{t−1} + δ_t B_t u_t                  A is [D, N]
//! y_t  = C_t · x_t + d u_t                                 times silu(z_t), if z is given
//! ```
//!
//! (Gu and Dao, *Mamba: Linear-Time Sequence Modeling with Selective State Spaces*, algorithm 2; `selective_scan_ref`
//! of their `mamba_ssm`.) `B` and `C` either vary from token to token and are shared by groups of channels, or vary
//! from channel to channel and are shared by all tokens ([`Coefficient`]). `A` is real, as in Mamba's models. The
//! preceding models (S4D) have complex rates, each equivalent to two real states. The state after the last token can be
//! the past state of the next call, which may have one token or more.
//!
//! Factors `exp(δ A)` and states below the smallest normal number in magnitude may be treated as zero. A factor of zero
//! clears the state by selection, even if the state is infinite or NaN. A NaN makes every later state of its channel
//! NaN.

mod problem;
pub mod reference;
pub mod scalar;

pub use crate::series::tensor::Outputs;
pub use problem::{Coefficient, InputTensors, Inputs, MAX_STATES, Operand, Operands, Problem, Spec};
