//! Exact softmax attention, from the problem to the error of its result.
//!
//! # The definition
//!
//! For every query row `i` of a sequence the output is
//!
//! ```text
//! s_j = cap(scale · q_i · k_j) + bias_ij + mask_ij       for the keys j that row i attends
//! y_i = Σ_j exp(s_j) v_j / Σ_j exp(s_j)                 zeros if it attends no key
//! ```
//!
//! where `cap(s) = X · tanh(s / X)` if a soft cap is set, else `cap(s) = s`. A row attends the keys in the
//! intersection of
//! - the valid keys of its sequence: all, or the first `key_lengths[b]`;
//! - `j ≤ i + offset`, if causal;
//! - `i + offset − L ≤ j ≤ i + offset + R`, with a window;
//! - the keys whose mask element is true (boolean mask) or not `−∞` (additive mask), and whose bias is not `−∞`. Keys
//!   beyond the mask's last axis are not attended;
//! - the tokens on the same side as row `i`, if the problem has shifted [`Windows`].
//!
//! If a query or a key is infinite, arithmetic may yield the score `−∞`. Such a score has weight zero. If the value of
//! a key with such a score contains a NaN or an infinity, the output of the row is unspecified.
//!
//! Scores and weighted sums are f32 values; [`Spec`] states how large queries, scores, masks and values may be.
//!
//! Keys are counted from the start of the past, if the problem has one. The first three conditions define one
//! interval per row, [`Sequence::range`]; only mask, bias and sides are evaluated per key ([`Addends`]).
//!
//! # Modules
//!
//! | step | items |
//! |---|---|
//! | the list of tensors | [`Operand`], [`Operands`] |
//! | a checked problem, with masks and lengths as data | [`Spec`], [`Problem`], [`MaskView`], [`BiasView`], [`Windows`], [`Sequence`] |
//! | the tensors of a call | [`Inputs`], [`Outputs`] |
//! | kernel descriptions, the choice of a kernel, the workspace layout | [`plan`] |
//! | query tiles, key blocks and segments | [`schedule`] |
//! | the scalar fallback, without an allocator | [`scalar`] |
//! | the baseline of benchmarks, without tiles and without a scan | [`rows`] |
//! | block orders, frozen references and skipped blocks, each with its proof | [`traversal`] |
//! | gradients | [`backward`] |
//! | the f64 oracle, error bounds, certificates | [`mod@reference`], [`bound`], [`certificate`] |
//! | distances of weights and outputs from those of the oracle | [`drift`] |

mod addends;
pub mod backward;
mod bias;
pub mod bound;
pub mod certificate;
mod data;
pub mod drift;
pub mod mask;
pub mod measured;
mod operands;
mod pairs;
mod past;
pub mod plan;
mod problem;
pub mod reference;
mod repeated;
pub mod rows;
pub mod run_certificate;
pub mod scalar;
pub mod schedule;
mod sequence;
pub mod traversal;
mod windows;

pub use addends::Addends;
pub use bias::{BiasView, TableView};
pub use data::{InputTensors, Inputs, OutputTensors, Outputs, StateOut, StateTensors};
pub use mask::{MASK_LIMIT, MaskElements, MaskKind, MaskRow, MaskView};
pub use operands::{Operand, Operands};
pub use pairs::Present;
pub use problem::{LARGEST_FACTOR, Problem, Spec};
pub use repeated::repeated;
pub use sequence::{Alignment, Chunk, Lengths, Sequence, Window};
pub use windows::{Sides, Windows};
