//! Attention divided by cyclic quorums: tasks that share nothing, each over a part of the tokens, which together compute
//! every pair of a query and a key exactly once. From Stream-CQSA (arXiv 2604.20819), sections 2 and 2.3, and appendices A
//! and B.
//!
//! # The formula
//!
//! A sequence is cut into `c = l (l − 1) + 1` chunks. Task `q` holds the chunks `(q + o) mod c` for the `l` offsets `o` of an
//! [`InterestSet`], in which every nonzero difference modulo `c` occurs exactly once: so two different chunks meet in exactly
//! one task. A chunk meets itself in `l` tasks, and only task `q` owns the diagonal of chunk `q`.
//!
//! A task is a sequence again, its chunks one after the other, and is divided in the same way. A path `q_1 … q_L` names a task
//! of `L` levels ([`TaskPath`]); the number of chunks may differ from level to level ([`Division`]). Two tokens that lie in one
//! chunk which the task does not own, at any level, do not meet in the task or in any below it.
//!
//! # The naive loop
//!
//! Algorithm 3 of the paper lists the tokens of a task, a label for each of them and level, and a mask with one element for each
//! pair; the kernel computes all pairs and drops those masked. It does `l² / c` times the work of attention for each
//! level.
//!
//! # Why the code differs
//!
//! 1. **Runs, not tokens.** Chunks are cut from the gathered sequence, so that a chunk of one level straddles the joints of the
//!    levels above. Each of `l` chunks is one interval of that sequence, and a joint divides at most one of them: a level adds
//!    at most `l − 1` runs of consecutive tokens. A task of nine levels with `c = 7` has at most 19 runs, and commonly 5, however many tokens
//!    ([`MAX_RUNS`] in all cases), and is planned in microseconds on the stack.
//! 2. **Runs meet as wholes.** All tokens of a run have the same labels, so the tile of a query run and a key run is owned, or
//!    not ([`Task::meet`]). Tiles that are not owned are never visited: the work is that of plain attention.
//! 3. **Neighbours are joined.** Key runs that follow each other in the original sequence and all meet a query run are one
//!    range ([`Task::keys_of`]).
//! 4. **Queries and keys are laid out by themselves**, so that their numbers may differ: the rule speaks of chunks, not of
//!    tokens.
//!
//! What tasks return are states `(m, S, W)`, which merge by the law of [`crate::state`].

mod chunks;
mod division;
mod error;
mod path;
mod set;
mod singer;
mod task;
mod tree;

pub use chunks::BalancedChunkLayout;
pub use division::Division;
pub use error::QuorumError;
pub use path::{MAX_LEVELS, NotAPath, TaskPath};
pub use set::{InterestSet, MAX_CHUNKS};
pub use singer::MAX_MEMBERS;
pub use task::{KeySpans, MAX_RUNS, Run, Span, Task};
pub use tree::Tree;
