//! Exact softmax attention, from the problem to what an answer is worth.
//!
//! # The definition
//!
//! For every query row `i` of a sequence the answer is
//!
//! ```text
//! s_j = cap(scale · q_i · k_j) + mask_ij       for the keys j that row i attends
//! y_i = Σ_j exp(s_j) v_j / Σ_j exp(s_j)        zeros when it attends none
//! ```
//!
//! with `cap(s) = X · tanh(s / X)` where a soft cap is set. Which keys a row attends is the intersection of
//! - the valid keys of its sequence (all, or the first `key_lengths[b]`),
//! - `j ≤ i + offset` when causal,
//! - `i + offset − L ≤ j ≤ i + offset + R` with a window,
//! - the mask: true, or not `−∞`; keys beyond its last axis are not attended.
//!
//! A score that is `−∞` by arithmetic, from an infinite query or key, weighs nothing; what a NaN or an infinity
//! in the value of that key then does to the row is not specified.
//!
//! Scores are held in singles in units of `log 2`, and sums before they are divided: a row is only finite where
//! `|s_j| < 2.3e38`, every partial sum of `q_i · k_j` too, and `keys · 2^8 · max |v_j| < 3.4e38`. Beyond that it
//! may hold infinities and NaN, and scores below `−2.3e38` count as `−∞`.
//!
//! Keys are counted from the start of the past, where there is one. The first three make one interval per
//! row, [`Sequence::range`]; only the mask is looked up.
//!
//! # The rooms
//!
//! | step | here |
//! |---|---|
//! | the one list of tensors | [`Operand`], [`Operands`] |
//! | a checked problem, with masks and lengths as data | [`Spec`], [`Problem`], [`MaskView`], [`Sequence`] |
//! | the tensors of a frame | [`Inputs`], [`Outputs`] |
//! | kernels, the choice among them, the workspace | [`plan`] |
//! | tiles, blocks and segments | [`schedule`] |
//! | attention with nothing but memory and arithmetic | [`scalar`] |
//! | the f64 oracle, error bounds, certificates | [`mod@reference`], [`bound`], [`certificate`] |

pub mod bound;
pub mod certificate;
mod data;
mod mask;
mod operands;
pub mod plan;
mod problem;
pub mod reference;
pub mod scalar;
pub mod schedule;
mod sequence;

pub use data::{Inputs, Outputs, StateOut};
pub use mask::{MaskElements, MaskKind, MaskRow, MaskView};
pub use operands::{Operand, Operands};
pub use problem::{Memory, Problem, Spec};
pub use sequence::{Alignment, Lengths, Sequence, Window};
