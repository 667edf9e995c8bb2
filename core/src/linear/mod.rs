//! Linear attention: attention whose memory is a state of fixed size. A rule updates the state token by token.
//!
//! # The definition
//!
//! Each head of values has a state `S`, f32 `[d_k, d_v]`. Token `t` updates it with its key `k`, value `v`, gate
//! `a = exp(decay)` and rate `β`, and reads it with its query `q`:
//!
//! ```text
//! linear        S ← S + k vᵀ
//! gated         S ← a ⊙ S + k vᵀ                         a scales rows of S
//! delta         S ← S + β k (v − Sᵀ k)ᵀ
//! gated-delta   S ← a ⊙ S,  then as delta
//! output        o_t = scale · Sᵀ q                        S after the update
//! ```
//!
//! Semantics and names are those of `LinearAttention` in ONNX opset 27. In addition, past and present states may share
//! memory, sequences may be packed, queries and keys may be normalised, and tokens may be processed in other orders
//! ([`Direction`]).
//!
//! A decay of `−∞` sets the rows of its gate to zero by selection, not by multiplication, so rows that contain
//! infinities or NaN become zero too. A finite decay may do the same if its exponential is not a positive f32 number. A
//! NaN makes every later state NaN. State elements below the smallest normal number in magnitude may be treated as
//! zero.
//!
//! # Modules
//!
//! | step | items |
//! |---|---|
//! | rules, directions, forms | [`Rule`], [`Gates`], [`Direction`], [`Form`] |
//! | the list of tensors | [`Operand`], [`Operands`] |
//! | a checked problem | [`Spec`], [`Problem`], [`Sequence`] |
//! | the tensors of a call | [`Inputs`], [`Outputs`] |
//! | tokens and runs of tokens as affine maps of the state | `law` |
//! | the plan of a run on a CPU | [`plan`] |
//! | the scalar fallback, for every form | [`scalar`] |
//! | the f64 oracle, and the error bound of a run relative to it | [`mod@reference`], [`bound`] |

pub mod bound;
mod data;
mod law;
mod operands;
pub mod plan;
mod problem;
pub mod reference;
mod rule;
pub mod scalar;
#[cfg(all(test, not(miri)))]
mod tests;
mod token;

pub use data::{InputTensors, Inputs, OutputTensors, Outputs};
pub use operands::{Operand, Operands};
pub use problem::{Problem, Sequence, Spec};
pub use rule::{Direction, Form, Gates, Rule};
