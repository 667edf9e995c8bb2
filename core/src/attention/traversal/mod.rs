//! Traversal of key blocks: their order, the source of references, and which blocks are skipped.
//!
//! ```text
//! for every tile of query rows:
//!     m = first reference                          none, or from representatives of key blocks
//!     for every block of keys, in some order:
//!         skip the block?                          by its norms and the numbers added to its scores (a budget)
//!         s = scores                               of the rows with the keys they attend
//!         skip the block?                          by its largest scores (λ)
//!         m = moved by the largest scores          in every block, or only in the sink and the own blocks
//!         w = 2^(s − m)
//!         skip the products with values?           by its weights (a budget)
//!         S = S + Σ w    W = W + Σ w v             or D = D + Σ w if the block is skipped
//!     y = W / S                                    if the row passes the guard; else the exact schedule recomputes it
//! ```
//!
//! A [`Schedule`] expresses all of this as data. Algorithm 1 of VFA (vector relieved flash attention) is [`Schedule::VFA`],
//! and algorithm 2 is [`Schedule::vsa`]. The ablations in that article and the rules of BLASST are settings as well. All
//! schedules share the geometry in [`super::schedule`]: tiles, blocks, segments and the merge tree.
//!
//! The published algorithms guarantee nothing about the output. This implementation does:
//!
//! 1. **A frozen run is exact.** References are integers, so every reference yields the same output up to rounding as
//!    long as weights neither vanish nor overflow. If the sums of a row do not prove this, the exact schedule recomputes
//!    the row, and the run counts it ([`guard`]). A range of `2^±100` for `S` would be too wide: if `S` is below `2^-24`
//!    relative to the reference, [`WEIGHT_FLOOR`](crate::state::WEIGHT_FLOOR) begins to drop keys that matter. `S` alone
//!    is not sufficient either. If powers of two are built from integer bits, a score 128 above its reference yields a
//!    finite wrong weight, so the largest exponent is tracked as well.
//! 2. **A skipping run reports the skipped weights.** The state has a fourth sum `D`, the weights of skipped blocks
//!    ([`Thinned`]). It rescales and merges like `S`, and `D / (S + D)` bounds the error of the output. Under a budget
//!    `E` every tile independently keeps `D ≤ E (S + D)`, which implies this bound for all tiles, segments, splits and
//!    boards together. BLASST's rules guarantee nothing, but `D / (S + D)` bounds the error of their outputs as well.
//! 3. **Representatives only see attended keys.** The representative of a block is computed from the keys that every row of
//!    the tile attends (`proxy`), so a causal row never sees the future through it.
//! 4. **Values that are not finite are never skipped.** If some row of the tile attends a value with a NaN or an
//!    infinity, the tile does not skip its block.
//!
//! | step | items |
//! |---|---|
//! | the setting | [`Schedule`], [`Order`], [`First`], [`Movers`], [`Skip`] |
//! | the state with `D`, the budget, the error of skipping | [`Thinned`], [`odds`], [`fits`], [`share`] |
//! | upper bound of an unseen block's weights, lower bound of a row's own key | [`foresees`], [`reach`], [`unseen_weight`], [`own_score`], [`own_weight`] |
//! | representatives of a block and of a tile's queries | `proxy` |
//! | acceptance of rows | [`guard`] |
//! | the scalar run, its memory, and its counters | [`scalar`], [`TileSize`], [`Room`], [`LeftOut`], [`TraversalReport`] |
//!
//! The error bounds are [`Row::frozen`](super::bound::rounding::Row::frozen),
//! [`Row::bounds_left_out`](super::bound::rounding::Row::bounds_left_out),
//! [`Arithmetic::prior_frozen`](super::bound::Arithmetic::prior_frozen) and, if all scores are small,
//! [`Arithmetic::stays_near_zero`](super::bound::Arithmetic::stays_near_zero). `core/BOUNDS.md` derives them.

pub mod guard;
mod proxy;
mod report;
mod room;
pub mod scalar;
mod setting;
mod thinned;
mod unseen;
mod visits;

pub use report::{Shares, Spoilt, TraversalReport};
pub(in crate::attention) use room::tile_len;
pub use room::{LeftOut, Room, RowRoom, TileSize, scratch_len};
pub use setting::{First, KeySide, Movers, Order, QuerySide, Schedule, Skip, TABLE_3, TABLE_4};
pub use thinned::{Thinned, fits, odds, share};
pub use unseen::{LEAST_QUERIES, foresees, own_score, own_weight, reach, unseen_weight};
pub use visits::{Visit, own_blocks};
