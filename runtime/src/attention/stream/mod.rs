//! Computes attention over keys that are streamed in chunks, within a memory budget.
//!
//! **The formula** is that of the in-memory run, and the bits are the same: a query tile visits the same blocks,
//! segments and merges in the same order, and its states stay in memory from the first chunk to the last.
//!
//! **The naive way** computes each chunk as a separate call, rounds the states of each call to natural units, and
//! merges the rounded states. This is a different merge tree, so its bits differ.
//!
//! 1. *A unit* ([`units`]) is a box of sequences, heads and query tiles whose states stay in memory. Chunks that no row
//!    of the unit attends are not read.
//! 2. *An excerpt* ([`Excerpt`](crate::Excerpt)) describes where a box of rows is in a tensor and in a buffer. Reads
//!    and writes transfer its contiguous pieces. Kernels use the row numbers of the tensor to find rows in the buffer.
//! 3. *The run* ([`run`]) moves the chunks of all units through two buffers.
//! 4. *Everything is allocated before the computation starts* ([`memory`]). If the system refuses memory, a new plan
//!    has fewer resident rows ([`fit`]), as on a GPU ([`guard`](super::guard)).
//! 5. *A certificate* ([`certificate`]) consists of maxima over the streamed data. The maxima do not depend on the
//!    order in which data are measured, or on how often.

pub mod certificate;
mod cuda;
pub mod error;
pub mod fit;
pub mod limits;
mod memory;
pub mod plan;
mod present;
mod regions;
pub mod run;
mod tensors;
mod units;
