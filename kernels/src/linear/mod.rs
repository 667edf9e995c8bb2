//! The micro-kernels of linear attention, written once over [`Lanes`](crate::lanes::Lanes).
//!
//! **The formula.** A token updates the state `S`, `[d_k, d_v]`, of its head and reads it, by the rules of
//! [`elsa_core::linear`]:
//!
//! ```text
//! naive:  for each token, with gate a (one, or one for each row), rate β, key k, value v, query q:
//!             S = a ⊙ S
//!             w = β (v − Sᵀ k)            or w = v, for the rules without rates
//!             S = S + k wᵀ
//!             o = scale · Sᵀ q
//! ```
//!
//! **Why the code differs.** The naive loop loads and stores the state for every token, and multiplies it by a gate
//! whose rounding error repeats.
//!
//! 1. *Columns are independent*, so they are in the lanes. The state is split into strips of columns. A strip is so
//!    narrow that all its rows fit the first-level cache. Rows of keys and queries are broadcast, one scalar per row of
//!    the strip.
//! 2. *No token multiplies the state.* With `c` the product of the gates since the segment began, the state is stored
//!    as `S' = S / c`: a token writes `w / c` and reads `c Sᵀ q`. With gates per dim it writes `k / c` and reads `c q`.
//!    The gates then add no work per element of the state. A segment ends before `c` leaves `2^-40 ..= 2^40`, so
//!    nothing overflows and `exp(−G)` never has a large argument. The state is multiplied once, at the end of the
//!    segment. A single gate outside this range starts a segment and multiplies the state first. A gate of `−∞` clears
//!    rows by selection; any other gate keeps a NaN (`prepare`, `factor`).
//! 3. *Sums of gates are f64*, and the factor of the state is a sum of two numbers. With a fused multiply-add, a gate
//!    that stays the same for thousands of tokens does not repeat the same rounding error.
//! 4. *A pass over the state processes four to eight tokens.* A row of the strip is loaded once for the queries of all
//!    these tokens and receives the sum of their writes: one loop does both if the registers have room; if not, there
//!    are two loops (`recur`). The state is therefore rounded once per pass. If nothing decays, the error of the state
//!    grows with the square root of the number of roundings.
//! 5. *A pass reads before it writes.* All its tokens read the state before the pass, and products supply the writes of
//!    earlier tokens: `O = Q S + tril(Q Kᵀ) W`, and for the delta rules `w_t = β_t (v_t − S'ᵀ k_t − Σ_{i<t} (k_t · k_i)
//!    w_i)`, by forward substitution. Powers of a matrix are never computed. Long passes are the chunks of the chunked
//!    algorithms. Later tokens are left out by selection, so that their NaN does not reach earlier tokens.
//! 6. *Nothing stays subnormal.* When the state is multiplied, elements that would become subnormal are set to zero.
//!    Outputs that would be subnormal are also set to zero. Sums of products start from a small number, so that with a
//!    fused multiply-add no intermediate sum is subnormal. This number is far below the rounding error of any sum that
//!    is not itself tiny. The product of a row with the low part of a factor is protected in the same way.
//! 7. *Long sums are split into short sums.* The contributions of a long pass are summed in groups of sixteen tokens.
//!    In long passes of the delta rule without gates the groups have eight tokens, and their sums are added in f64.
//!    Products of queries and keys over their dims are summed in f64 too. In such passes terms cancel, and f32 errors
//!    relative to these terms would grow with the square root of the number of tokens.
//! 8. *Operands are prefetched.* The rows of a head's tokens are too far apart for hardware prefetching. So while
//!    tokens are processed, the kernel prefetches the values of the following tokens, and the queries and keys of a
//!    later segment.
//! 9. *A single token needs one pass over the state.* A decode step is bound by the memory traffic of the state. A
//!    single loop over the rows reads the state from its old location, multiplies it by its gate and writes it to its
//!    new location. There is one such loop for each kind of factor. The delta rules read the state once more before
//!    this loop, because their writes depend on all rows.
//! 10. *Padding rows stay zero.* Keys are padded with zeros to a multiple of four dims. The products of these zeros
//!     with values that are not finite are NaN, so the padding rows of the state are zeroed after a pass. Otherwise
//!     every later query would read the NaN.
//!
//! An infinite element of a state stays infinite when it is multiplied; an infinity among the inputs may become NaN.
//!
//! | module | purpose |
//! |---|---|
//! | `kernel` | the operands of a kernel, and its entry points |
//! | `prepare` | segments of a head's tokens: gates |
//! | `products` | products of queries and keys |
//! | `initial` | the state of a strip at the start of a segment |
//! | `exponential` | exponentials of sums of gates |
//! | `recur`, `rows`, `update` | passes of tokens over a strip of the state |
//! | `factor` | the state times factors |
//! | `read`, `tile` | products with a state |

mod exponential;
pub(crate) mod factor;
mod initial;
pub(crate) mod instance;
pub(crate) mod kernel;
pub(crate) mod prepare;
mod products;
pub(crate) mod read;
pub(crate) mod recur;
mod rows;
mod tile;
mod update;

pub use kernel::{
    Ahead, CLEARS, Columns, Factors, Head, Kernel, Reading, Segment, Strip, head_room, strip_room,
};

/// Largest relative error of the exponentials of sums of gates inside a segment. An exponential that is multiplied by
/// the scale has one more rounding.
pub const EXP_RELATIVE: f64 = exponential::RELATIVE;
