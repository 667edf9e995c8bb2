//! Divides attention by cyclic quorums: independent tasks, each over some of the tokens, that together compute every pair of
//! a query and a key exactly once. From Stream-CQSA (arXiv 2604.20819), sections 2 and 2.3, and appendices A and B.
//!
//! # The formula
//!
//! A sequence is cut into `c = l (l − 1) + 1` chunks. Task `q` holds the chunks `(q + o) mod c` for the `l` offsets `o` of an
//! [`InterestSet`], in which every nonzero difference modulo `c` occurs exactly once. Two different chunks therefore meet in
//! exactly one task. A chunk meets itself in `l` tasks, and only task `q` owns the diagonal of chunk `q`.
//!
//! A task is itself a sequence, the concatenation of its chunks, and is divided in the same way. A path `q_1 … q_L` names a
//! task of `L` levels ([`TaskPath`]); the number of chunks may differ from level to level ([`Division`]). If two tokens are
//! in the same chunk at some level and the task does not own that chunk, they do not meet in the task or in any task below
//! it.
//!
//! # The naive loop
//!
//! Algorithm 3 of the paper lists the tokens of a task, a label for each token and level, and a mask with one element for
//! each pair; the kernel computes all pairs and drops the masked ones. It does `l² / c` times the work of attention for each
//! level.
//!
//! # Why the code differs
//!
//! 1. **Runs, not tokens.** Chunks are cut from the gathered sequence, so a chunk of one level straddles the joints of the
//!    levels above. Each of `l` chunks is one interval of that sequence, and a joint divides at most one of them: a level
//!    adds at most `l − 1` runs of consecutive tokens. A task of nine levels with `c = 7` has at most 19 runs, and commonly
//!    5, for any number of tokens ([`MAX_RUNS`] in all cases). It is planned in microseconds on the stack.
//! 2. **Whole runs meet.** All tokens of a run have the same labels, so the tile of a query run and a key run is either owned
//!    or not ([`Task::meet`]). Tiles that are not owned are never visited: the work is that of plain attention.
//! 3. **Neighbours are joined.** Key runs that are adjacent in the original sequence and all meet a query run form one range
//!    ([`Task::keys_of`]).
//! 4. **Queries and keys are divided independently**, so their numbers may differ: the rule refers to chunks, not to tokens.
//!
//! Tasks return states `(m, S, W)`, which merge by the law of [`crate::state`].

mod chunks;
mod division;
mod path;
mod set;
mod singer;
mod task;
mod tree;

pub use chunks::BalancedChunkLayout;
pub use division::Division;
pub use path::{MAX_LEVELS, NotAPath, TaskPath};
pub use set::InterestSet;
pub use singer::MAX_MEMBERS;
pub use task::{KeySpans, MAX_RUNS, Run, Span, Task};
pub use tree::Tree;
