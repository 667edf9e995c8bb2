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
//! 1. *Columns are independent*, so they lie in the lanes, and the state is cut into strips of columns that fit the first
//!    cache with all their rows. Rows of keys and queries are broadcast, a scalar for each row of the strip.
//! 2. *No token multiplies the state.* With `c` the product of the gates since the last cut, the state is held as
//!    `S' = S / c`: a token writes `w / c` and reads `c Sᵀ q`; where gates belong to dims it writes `k / c` and reads `c q`.
//!    This costs nothing for each element of the state. A segment ends before `c` leaves `2^-40 ..= 2^40`, so nothing
//!    overflows and `exp(−G)` is never taken of a large sum. Then the state is multiplied, once for up to as many tokens as
//!    the caller's cut allows. A gate that leaves this range by itself begins a segment, and multiplies the state before: that
//!    of `−∞` clears rows by selection, every other one keeps a NaN ([`prepare`], [`factor`]).
//! 3. *Sums of gates are f64*, and what multiplies the state is the sum of two numbers, so with a fused multiply-add a gate
//!    that is the same for thousands of tokens is not off by the same rounding each time.
//! 4. *Several tokens pass together*, from four to eight of them. A row of the strip is loaded for the
//!    queries of all, and takes the sum of what all write: at once where the registers hold both, otherwise one after the
//!    other ([`recur`]). So the state rounds once for all of them: where nothing decays, its error grows with the root of the
//!    number of roundings.
//! 5. *A pass reads before it writes.* All its tokens read the state as it is before them, and what they write in between
//!    comes in through products: `O = Q S + tril(Q Kᵀ) W`, and for the delta rules
//!    `w_t = β_t (v_t − S'ᵀ k_t − Σ_{i<t} (k_t · k_i) w_i)`, by forward substitution, never through powers of a matrix. Long
//!    passes are the chunks of other forms. Tokens that come later are left out by selection: a NaN poisons nothing before
//!    it.
//! 6. *Nothing stays subnormal.* An element of the state that would become smaller than the smallest normal number is zero
//!    when the state is multiplied, and so is such an output. Sums of products begin with a number far below the rounding of
//!    any that is not tiny itself, so that with a fused multiply-add they are not subnormal on the way. So does the product with
//!    what a factor is above an f32 number.
//!
//! 7. *Long sums are sums of short ones.* What many tokens of a long pass add is summed up by itself, sixteen at a time. In
//!    long passes of the delta rule without gates it is eight at a time, and these sums are added up in f64, as are products
//!    of queries and keys over their dims: there errors relative to terms that cancel would grow with the root of the tokens.
//! 8. *What comes next is asked for early.* The rows of a head's tokens lie far apart, where no processor looks for them by
//!    itself. So as tokens pass, the values of those behind them, and the queries and keys of a later segment, are
//!    prefetched.
//!
//! 9. *A token that is alone passes the state once.* A decode step is bound by the memory that the state takes: it is read where
//!    it was, multiplied by its gate and written where it will be in one loop over its rows, with a loop for each kind of factor. The
//!    delta rules read it once more before, as they write what depends on all rows.
//!
//! 10. *Rows past those of the keys stay zero.* Keys are padded to quads with zeros, whose products with values that are not
//!     finite are NaN: after a pass these rows are zeroed, or every later query would meet them.
//!
//! An infinite element of a state stays infinite when it is multiplied; an infinity among the inputs may become NaN.
//!
//! | file | duty |
//! |---|---|
//! | [`kernel`] | what a kernel works on, and its entry points |
//! | [`prepare`] | segments of a head's tokens: gates |
//! | `meet` | products of queries and keys |
//! | `enter` | what a strip is as a segment begins |
//! | `exponential` | exponentials of sums of gates |
//! | [`recur`], `rows`, `update` | tokens pass a strip of the state |
//! | [`factor`] | the state times factors |
//! | [`read`], `tile` | products with a state |

mod enter;
mod exponential;
pub mod factor;
pub(crate) mod instance;
pub mod kernel;
mod meet;
pub mod prepare;
pub mod read;
pub mod recur;
mod rows;
mod tile;
mod update;

pub use kernel::{
    Ahead, CLEARS, Columns, Factors, Head, Kernel, Reading, Segment, Strip, head_room, strip_room,
};

/// Largest relative error of the exponentials of sums of gates inside a segment. Their product with the scale rounds once
/// more.
pub const EXP_RELATIVE: f64 = exponential::RELATIVE;
