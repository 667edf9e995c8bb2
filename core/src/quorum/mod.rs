//! Divides attention by cyclic quorums into independent tasks, each over some of the tokens. Together the tasks compute
//! every pair of a query and a key exactly once. The method is that of Stream-CQSA (arXiv 2604.20819), sections 2 and
//! 2.3, and appendices A and B.
//!
//! # The formula
//!
//! A sequence is cut into `c = l (l − 1) + 1` chunks. Task `q` contains the chunks `(q + o) mod c` for the `l` offsets
//! `o` of an [`InterestSet`]. Every nonzero difference modulo `c` occurs exactly once among these offsets. Two
//! different chunks are therefore together in exactly one task. Each chunk is contained in `l` tasks, but only task `q`
//! computes the pairs within chunk `q`: it owns this chunk.
//!
//! A task is itself a sequence, the concatenation of its chunks, and is divided in the same way. A path `q_1 … q_L`
//! names a task of `L` levels ([`TaskPath`]); the number of chunks may differ from level to level ([`Division`]). If a
//! query and a key are in the same chunk at some level, their pair is computed only in tasks that own this chunk and in
//! tasks below them.
//!
//! # The naive loop
//!
//! Algorithm 3 of the paper lists the tokens of a task, a label for each token and level, and a mask with one element
//! per pair; the kernel computes all pairs and discards the masked ones. Each level multiplies the work of attention by
//! `l² / c`.
//!
//! # Why the code differs
//!
//! 1. **Runs, not tokens.** Chunks are cut from the concatenated sequence, so a chunk of one level may extend over
//!    joints between the chunks of the levels above. Each of the `l` chunks of a task is one interval of the
//!    concatenated sequence, and a joint divides at most one of these chunks. A level therefore adds at most `l − 1`
//!    runs of consecutive tokens. For any number of tokens, a task of nine levels with `c = 7` has at most 19 runs, and
//!    usually 5. No task has more than [`MAX_RUNS`] runs. A task is planned in microseconds on the stack.
//! 2. **Decisions per pair of runs.** All tokens of a run have the same labels, so a task computes either all pairs of
//!    a query run and a key run or none ([`Task::computes_pairs`]). Pairs that it does not compute are never visited:
//!    the total work is that of plain attention.
//! 3. **Neighbours are joined.** Key runs that are adjacent in the original sequence and are all paired with a query
//!    run form one range ([`Task::keys_of`]).
//! 4. **Queries and keys are divided independently**, so the numbers of queries and keys may differ: the rule compares
//!    chunks, not tokens.
//!
//! Tasks return states `(m, S, W)`, which are merged as [`crate::state`] describes.

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
