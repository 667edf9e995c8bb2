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
//! **Why the code differs.** The naive loop loads and stores the state for every token, and multiplies it by a gate whose
//! rounding repeats.
//!
//! 1. *Columns are independent*, so they are in the lanes, and the state is split into strips of columns that fit the
//!    first cache with all their rows. Rows of keys and queries are broadcast, one scalar per row of the strip.
//! 2. *No token multiplies the state.* With `c` the product of the gates since the last cut, the state is held as
//!    `S' = S / c`: a token writes `w / c` and reads `c Sᵀ q`. With gates per dim it writes `k / c` and reads `c q`.
//!    Elements of the state then cost nothing extra. A segment ends before `c` leaves `2^-40 ..= 2^40`, so nothing
//!    overflows and `exp(−G)` never has a large argument. The state is multiplied at the end, once for up to the number
//!    of tokens that the caller's cut allows. A single gate outside this range starts a segment and multiplies the
//!    state first: a gate of `−∞` clears rows by selection, and any other keeps a NaN (`prepare`, `factor`).
//! 3. *Sums of gates are f64*, and the factor of the state is a sum of two numbers. With a fused multiply-add, a gate
//!    that stays the same for thousands of tokens does not repeat the same rounding error.
//! 4. *A pass over the state takes several tokens*, four to eight. A row of the strip is loaded once for the queries of all
//!    and receives the sum of what all write: in one loop if the registers hold both, otherwise in two (`recur`). The
//!    state is therefore rounded once for all of them; where nothing decays, its error grows with the root of the
//!    number of roundings.
//! 5. *A pass reads before it writes.* All its tokens read the state before the pass, and products supply the writes of
//!    earlier tokens: `O = Q S + tril(Q Kᵀ) W`, and for the delta rules
//!    `w_t = β_t (v_t − S'ᵀ k_t − Σ_{i<t} (k_t · k_i) w_i)`, by forward substitution, never through powers of a matrix.
//!    Long passes are the chunks of other forms. Later tokens are left out by selection: a NaN poisons nothing before
//!    it.
//! 6. *Nothing stays subnormal.* When the state is multiplied, elements that would become subnormal are set to zero; so
//!    are such outputs. Sums of products start from a number far below the rounding of any sum that is not itself tiny,
//!    so that with a fused multiply-add they are never subnormal on the way. The same holds for the product with the
//!    part of a factor beyond an f32 number.
//!
//! 7. *Long sums are sums of short ones.* The contributions of a long pass are summed separately, sixteen tokens at a
//!    time. In long passes of the delta rule without gates it is eight at a time, and these sums are added in f64, as
//!    are products of queries and keys over their dims: there, errors relative to terms that cancel would grow with the
//!    root of the tokens.
//! 8. *Operands are prefetched.* The rows of a head's tokens are too far apart for hardware prefetching. As tokens
//!    pass, the kernel therefore prefetches the values of the following tokens, and the queries and keys of a later
//!    segment.
//!
//! 9. *A lone token passes the state once.* A decode step is bound by the memory traffic of the state. The state is
//!    read from its old location, multiplied by its gate and written to its new one in a single loop over its rows,
//!    with one loop per kind of factor. The delta rules read it once more before that, because they write what depends
//!    on all rows.
//!
//! 10. *Padding rows stay zero.* Keys are padded to quads with zeros, whose products with values that are not finite
//!     are NaN. These rows are zeroed after a pass, because every later query would otherwise read them.
//!
//! An infinite element of a state stays infinite when it is multiplied; an infinity among the inputs may become NaN.
//!
//! | file | duty |
//! |---|---|
//! | `kernel` | the operands of a kernel, and its entry points |
//! | `prepare` | segments of a head's tokens: gates |
//! | `products` | products of queries and keys |
//! | `initial` | the state of a strip as a segment begins |
//! | `exponential` | exponentials of sums of gates |
//! | `recur`, `rows`, `update` | tokens pass a strip of the state |
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

/// Largest relative error of the exponentials of sums of gates inside a segment. Their product with the scale adds one
/// rounding.
pub const EXP_RELATIVE: f64 = exponential::RELATIVE;
