//! Attention over keys that pass in chunks, inside a budget.
//!
//! **The formula** is that of the run in memory, and so are its bits: a query tile meets the same blocks, segments and
//! merges in the same order, with its states resident from the first chunk to the last.
//!
//! **The naive way** computes each chunk as a call of its own, whose states are rounded to natural units and merged
//! outside. That is another tree and other bits.
//!
//! 1. *A unit* ([`units`]) is a box of sequences, heads and query tiles whose states stay in memory. Chunks that no row of
//!    it attends are not read.
//! 2. *An excerpt* ([`Excerpt`](crate::Excerpt)) says where a box of rows lies in a tensor and where in a buffer. Reads and writes are
//!    made of its pieces, and the same numbers tell the walk where the rows are.
//! 3. *The run* ([`run`]) has the chunks of all units pass through two buffers.
//! 4. *Everything is allocated before the first product* ([`memory`]). Where the system refuses, the plan is made anew with
//!    fewer resident rows ([`fit`]), as on a GPU ([`guard`](super::guard)).
//! 5. *A certificate* ([`certificate`]) is made of maxima over what passes, whose order and repetition change nothing.

pub mod certificate;
mod cuda;
pub mod error;
pub mod fit;
mod frame;
pub mod limits;
mod memory;
pub mod plan;
mod present;
pub mod run;
mod tensors;
mod units;
