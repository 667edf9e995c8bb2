//! The backward pass: the gradients of softmax attention.
//!
//! # The formula
//!
//! With the scores `s_ij` of [`crate::attention`], the output `o_i = Σ_j p_ij v_j`, and the upstream gradient `do_i` of a
//! loss with respect to `o_i`:
//!
//! ```text
//! p_ij  = exp(s_ij − lse_i)                          the probabilities, recomputed
//! D_i   = ⟨do_i, o_i⟩
//! dp_ij = ⟨do_i, v_j⟩
//! ds_ij = p_ij (dp_ij − D_i)
//! dv_j  = Σ_i p_ij do_i
//! dq_i  = scale Σ_j ds_ij c_ij k_j                   c_ij = 1 − tanh²(scale q_i · k_j / X) with a soft cap X, else 1
//! dk_j  = scale Σ_i ds_ij c_ij q_i
//! ```
//!
//! The sums run over the pairs in which row `i` attends key `j`. The query heads of a group share a key head, and their `dk`
//! and `dv` are summed in the order of the heads.
//!
//! This is the stable form of Stream-CQSA, algorithm 2 and equations 4 to 6 (derived in its appendix D). The paper has
//! `dNum = do / Den`, `dDen = −⟨do, Num⟩ / Den²`, `P = exp(R)`, and `dR = P ∘ (dNum V^T + dDen 1^T)`. `exp(R)` and `Den`
//! overflow if a score exceeds 88.7. The form here absorbs the factors `1 / Den` into `P / Den = exp(R − lse)` and
//! `Num / Den = o`. Then every number in the sums is a probability times elements of the tensors.
//!
//! # The naive loop
//!
//! ```text
//! P = exp(Q K^T · scale − lse);  dV = P^T dO;  dP = dO V^T;  dS = P ∘ (dP − D);  dQ = scale dS K;  dK = scale dS^T Q
//! ```
//!
//! This loop stores three matrices of `queries × keys`.
//!
//! # Why the code differs
//!
//! 1. *Tiles.* Five products run over a tile of queries and a block of keys, so only a tile of each of the three matrices
//!    exists at a time, and it stays in cache. The extra memory is linear in the number of tokens.
//! 2. *One pass, five products.* One pass over the keys could compute `dk` and `dv`, and a second pass over the queries
//!    could compute `dq`. The second pass would repeat two products, `Q K^T` and `dO V^T`: seven products instead of five,
//!    `14 n² d` multiply-adds instead of `10 n² d`. Here a single pass computes all three. The keys of a head are divided
//!    into at most [`MOST_PARTS`] parts. Each part has its own `dq`, and the `dq` of all parts are added in the order of
//!    the parts. The number of parts depends only on the keys and the key heads.
//! 3. *The order never depends on timing.* A part of a key head is computed by one worker, which visits the query
//!    heads, query tiles and key blocks of the part in order. So the bits are reproducible and do not depend on the
//!    number of threads or the batch.
//! 4. *`(m, S)` if available.* An f32 log-sum-exp of 4,000 is rounded by up to 1.2e-4, and this rounding becomes a
//!    relative error of every probability of its row. With [`Statistics::State`], the reference is subtracted exactly,
//!    and the weights are divided by `S`.
//! 5. *Masked keys are excluded by selection.* Weights and score gradients of pairs that are not attended are set to
//!    zero, not multiplied by zero. If keys, queries or upstream gradients contain a NaN or an infinity, products skip
//!    the pairs that are not attended. So masked keys neither receive nor contribute anything.
//! 6. *Chains are bounded.* Sums over keys or queries are accumulated block by block.
//!
//! # Over tasks of quorums
//!
//! Every sum above runs over pairs, and [`crate::quorum`] divides the pairs among tasks. A task consists of tiles, each
//! with a run of queries and a range of keys ([`Task::pairs`](crate::quorum::Task::pairs)). A call with a
//! [`Chunk`](crate::attention::Chunk) computes such a tile with the positions and statistics of the complete attention, and
//! its gradients are the tile's contributions to equation 6. Because the statistics are those of the complete attention,
//! the contributions need no common denominator: [`Gradients::add`] adds the contributions of tiles to the contribution of
//! their task, and the contributions of all tasks to the gradients.
//!
//! # The error
//!
//! [`Structure::bound`] bounds the error of an element, relative to the sum of the absolute values of its terms. For scores
//! of order one, plain f32 stays below 5e-7.
//!
//! | item | contents |
//! |---|---|
//! | [`BackwardSpec`], [`BackwardProblem`] | shapes and strides |
//! | [`BackwardInputs`], [`Statistics`], [`Gradients`] | the data of a call, and sums of contributions |
//! | [`RowWeights`] | probabilities from scores, by state or log-sum-exp |
//! | [`choose`], [`BackwardChoice`], [`BackwardLayout`] | parts, chunks, workers and the workspace |
//! | [`scalar`] | the scalar fallback, without an allocator |
//! | [`mod@reference`] | the f64 oracle |

mod bound;
mod data;
mod operands;
mod plan;
mod problem;
pub mod reference;
pub mod scalar;
mod weights;

pub use bound::Structure;
pub use data::{BackwardInputs, Gradients, Statistics};
pub use operands::{Operand, Operands};
pub use plan::{
    BackwardChoice, BackwardKernelSpec, BackwardLayout, BackwardOptions, BackwardRegions, MOST_PARTS, choose,
};
pub use problem::{BackwardProblem, BackwardSpec};
pub use weights::{LARGEST_EXPONENT, RowWeights, upstream_dot};
