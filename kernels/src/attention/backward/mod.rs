//! The micro-kernel of the backward pass, written once over [`Lanes`](crate::lanes::Lanes).
//!
//! **The formula.** For a tile of query rows `i` and a block of keys `j`, with the terms of
//! [`elsa_core::attention::backward`]:
//!
//! ```text
//! naive:  for each row i, for each key j:
//!             p = 2^(q_i · k_j − reference_i) / S_i;  ds = p (do_i · v_j − D_i) c
//!             dv_j += p do_i;  dk_j += ds q_i;  dq_i += ds k_j
//! ```
//!
//! **Why the code differs.**
//!
//! 1. *Five products, one function* (`product`). Scores and `dP` have query rows in the lanes, as in the forward pass:
//!    keys and values are read in place and broadcast. `dQ^T = K^T dS^T`, which sums over the keys, has the same
//!    arrangement. `dV = P^T dO` and `dK = dS^T Q` have dims in the lanes and sum over the rows of the tile; the
//!    probabilities, or the gradients of the scores, are broadcast. A tile therefore stores queries and upstream
//!    gradients both by columns and by rows; both copies are made once per chunk of keys.
//! 2. *Scores have the bits of the forward pass.* They come from equal products, added in the same order, so the
//!    probabilities are consistent with the sums of the forward states.
//! 3. *Everything between the products stays in registers*: soft cap, bias, exponential, differences.
//! 4. *Selection, not multiplication.* A masked pair has the score `−∞`, and its probability and gradient are set to
//!    zero by selection. Zero times a NaN or an infinity is NaN. If an operand of one of the last three products
//!    contains such a value, a slow product therefore computes one element at a time and omits masked pairs. Such
//!    operands are rare.
//!
//! | file | contents |
//! |---|---|
//! | `kernel` | the operands of the kernel |
//! | `step` | the five products of a tile and a block |
//! | `select` | the last three products for operands that are not finite |

pub(crate) mod instance;
mod kernel;
mod select;
mod step;

pub use kernel::{BackwardBlock, BackwardKernel, BackwardTile};
pub use step::step;
