//! In which order blocks of keys are visited, where references come from, and which blocks are left out.
//!
//! ```text
//! for every tile of query rows:
//!     m = first reference                          none, or from what represents blocks of keys
//!     for every block of keys, in some order:
//!         skip the block?                          from its norms and what is added to its scores (a budget)
//!         s = scores                               of the rows with the keys they attend
//!         skip the block?                          from its largest scores (λ)
//!         m = moved by the largest scores          in every block, or in the sink and the own blocks alone
//!         w = 2^(s − m)
//!         skip the products with values?           from its weights (a budget)
//!         S = S + Σ w    W = W + Σ w v             or D = D + Σ w where the block is left out
//!     y = W / S                                    if the row passes the guard; else the exact schedule computes it again
//! ```
//!
//! A [`Schedule`] says all of this as data. Algorithm 1 of VFA (vector relieved flash attention) is [`Schedule::VFA`],
//! algorithm 2 is [`Schedule::vsa`], and its ablations and the rules of BLASST beside it are settings, too. The
//! geometry that all of them share (tiles, blocks, segments, the merge tree) is [`super::schedule`], from which this
//! module has its different name.
//!
//! The published algorithms promise nothing about the answer. Here:
//!
//! 1. **A frozen run is exact.** References are whole numbers, so that any of them yields the same answer but for
//!    rounding, as long as weights neither vanish nor overflow. Each row proves that by its sums, or is computed again
//!    by the exact schedule and counted ([`guard`]). A range of `2^±100` for `S` would be too wide: below `2^-24` of the
//!    reference, [`WEIGHT_FLOOR`](crate::state::WEIGHT_FLOOR) begins to take keys that count. Nor does `S` suffice. Where
//!    powers of two are made of integer bits, a score 128 above its reference gives a finite wrong weight; so the largest
//!    exponent is watched as well.
//! 2. **A skipping run says what it left out.** The state has a fourth sum `D`, the weights of skipped blocks
//!    ([`Thinned`]). It rescales and merges as `S` does, and `D / (S + D)` bounds what the answer lost. Under a budget `E`
//!    every tile keeps `D ≤ E (S + D)` by itself, and then so do all tiles, segments, splits and boards together. BLASST's
//!    rules promise nothing, but their answers carry the same bound.
//! 3. **Representatives see attended keys only.** What stands for a block of keys is taken over the keys that every row
//!    of the tile attends ([`proxy`]); a causal row does not see the future through it.
//! 4. **Values that are not finite stay.** A block with one that some row of the tile attends is never left out.
//!
//! | step | items |
//! |---|---|
//! | the setting | [`Schedule`], [`Order`], [`First`], [`Movers`], [`Skip`] |
//! | the state with `D`, the budget, what an answer lost | [`Thinned`], [`odds`], [`fits`], [`share`] |
//! | what a block weighs at most before it is seen, and a row's own key at least | [`foresees`], [`reach`], [`unseen()`], [`own_score`], [`own_weight`] |
//! | what stands for a block, or for a tile's queries | [`proxy`] |
//! | which rows are accepted | [`guard`] |
//! | the scalar run, its memory, and what it counted | [`scalar`], [`Tile`], [`Room`], [`LeftOut`], [`Report`] |
//!
//! The bounds are [`Row::frozen`](super::bound::rounding::Row::frozen),
//! [`Row::bounds_left_out`](super::bound::rounding::Row::bounds_left_out),
//! [`Arithmetic::prior_frozen`](super::bound::Arithmetic::prior_frozen) and, where all scores are small,
//! [`Arithmetic::stays_near_zero`](super::bound::Arithmetic::stays_near_zero). `core/BOUNDS.md` derives them.

pub mod guard;
pub mod proxy;
mod report;
mod room;
pub mod scalar;
mod setting;
mod thinned;
mod unseen;
mod visits;

pub use report::{Report, Shares, Spoilt};
pub(in crate::attention) use room::tile_len;
pub use room::{LeftOut, Room, RowRoom, Tile, scratch_len};
pub use setting::{First, KeySide, Movers, Order, QuerySide, Schedule, Skip, TABLE_3, TABLE_4};
pub use thinned::{Thinned, fits, odds, share};
pub use unseen::{LEAST_QUERIES, foresees, own_score, own_weight, reach, unseen};
pub use visits::{Visit, own_blocks, visits};
