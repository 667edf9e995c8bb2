//! Reports of a task's commands.

use serde::Serialize;

/// The object that `--json` prints.
#[derive(Debug, Serialize)]
pub struct TaskReport {
    /// `task`, or `backward task`.
    pub what: &'static str,
    /// Path of the task.
    pub task: String,
    /// Chunks of each level.
    pub quorum: Vec<usize>,
    /// Tasks of the division.
    pub tasks: u64,
    /// Back end; `None` if the task has no call.
    pub backend: Option<String>,
    /// The first attention kernel.
    pub kernel: Option<&'static str>,
    /// Threads of the engine.
    pub threads: usize,
    /// Type of the inputs.
    pub dtype: &'static str,
    /// Batch, heads, key heads, queries, keys, head size and head size of values of the whole.
    pub shape: [usize; 7],
    /// Query and key tokens of the task.
    pub tokens: [usize; 2],
    /// Pairs of a query and a key that the task computes, for one head.
    pub pairs: f64,
    /// Calls of plans.
    pub calls: usize,
    /// Calls that causality, windows or lengths made unnecessary.
    pub skipped: usize,
    /// Bytes of tensors that were read.
    pub bytes_read: usize,
    /// Bytes of states or shares that were written.
    pub bytes_written: usize,
    /// Bytes of the workspace.
    pub workspace_bytes: usize,
    /// Why the CPU computed in place of the requested GPU.
    pub fallback: Option<String>,
    /// Milliseconds of the calls.
    pub ms: f64,
}
