//! The micro-kernel of the backward pass, written once over [`Lanes`](crate::lanes::Lanes).
//!
//! **The formula.** For a tile of query rows `i` and a block of keys `j`, with what
//! [`elsa_core::attention::backward`] defines:
//!
//! ```text
//! naive:  for each row i, for each key j:
//!             p = 2^(q_i · k_j − reference_i) / S_i;  ds = p (do_i · v_j − D_i) c
//!             dv_j += p do_i;  dk_j += ds q_i;  dq_i += ds k_j
//! ```
//!
//! **Why the code differs.**
//!
//! 1. *Five products of one form* ([`crate::product`]). Scores and `dP` have query rows in the lanes, as the forward pass
//!    has: keys and values are read in place and broadcast. So has `dQ^T = K^T dS^T`, which runs down the keys. `dV = P^T dO`
//!    and `dK = dS^T Q` have dims in the lanes and run along the rows of the tile, with probabilities broadcast. For that
//!    queries and upstream gradients lie twice in a tile, in columns and in rows; both are made once for a chunk of keys.
//! 2. *Scores have the bits of the forward pass.* They are the same products in the same chains, so probabilities fit the
//!    sums of the states.
//! 3. *Between the products everything is in registers*: soft cap, bias, exponential, differences.
//! 4. *Selection, not multiplication.* A pair that is not attended has the score `−∞`, and its probability and gradient
//!    are selected to be zero. Zero times a NaN or an infinity is NaN, so where an operand of the last three products
//!    holds one, the product leaves such pairs out, element by element. That is slow and rare.
//!
//! | file | duty |
//! |---|---|
//! | `kernel` | what the kernel works on |
//! | `step` | the five products of a tile and a block |
//! | `select` | the last three products where an operand is not finite |

pub(crate) mod instance;
mod kernel;
mod select;
mod step;

pub use kernel::{BackwardBlock, BackwardKernel, BackwardTile};
pub use step::step;
