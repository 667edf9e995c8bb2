//! Report of a command that has computed a task.

use crate::error::{Error, one_line, say};
use crate::report::{self, object};
use elsa_core::quorum::{Division, Task};
use elsa_files::task::{Description, Kind};
use elsa_runtime::{Backend, Engine};
use std::path::Path;

/// A task whose states or shares are written.
pub struct Finished<'a> {
    /// Their file.
    pub file: &'a Path,
    /// The description in it.
    pub description: &'a Description,
    /// The division.
    pub division: &'a Division,
    /// The task.
    pub task: &'a Task,
    /// Back end; `None` if the task has no call.
    pub backend: Option<Backend>,
    /// The first attention kernel.
    pub kernel: Option<&'static str>,
    /// Calls of plans, and calls that causality, windows or lengths made unnecessary.
    pub calls: [usize; 2],
    /// Bytes of tensors that were read, of states or shares that were written, and of the workspace.
    pub bytes: [usize; 3],
    /// Reason why the CPU computed instead of the requested GPU.
    pub fallback: Option<String>,
    /// Milliseconds of the calls.
    pub ms: f64,
}

/// Prints the report.
///
/// # Errors
/// Returns an error if standard output fails.
pub fn tell(json: bool, engine: &Engine, of: Finished<'_>) -> Result<(), Error> {
    let Finished { file, description: Description { kind, whole, path }, division, task, .. } = of;
    let tokens = [task.query_tokens(), task.key_tokens()];
    let ([calls, skipped], ms) = (of.calls, of.ms);
    if json {
        let report = object! {
            what: if *kind == Kind::States { "task" } else { "backward task" },
            task: path.to_string(),
            quorum: division.sets().iter().map(|set| set.chunks()).collect::<Vec<_>>(),
            tasks: division.tasks(),
            backend: of.backend.map(|backend| backend.to_string()),
            kernel: of.kernel,
            threads: engine.threads(),
            dtype: whole.dtype().name(),
            // Batch, heads, key heads, queries, keys, head size and head size of values of the whole.
            shape: whole.shape,
            tokens: tokens,
            // Pairs of a query and a key that the task computes, for one head.
            pairs: task.pair_count() as f64,
            calls: calls,
            skipped: skipped,
            bytes_read: of.bytes[0],
            bytes_written: of.bytes[1],
            workspace_bytes: of.bytes[2],
            fallback: of.fallback,
            ms: ms,
        };
        return Ok(report::json(&mut crate::foreign::stdout(), &report)?);
    }
    let shares = if *kind == Kind::States { "" } else { "shares of " };
    say(&format!(
        "wrote {}: {shares}task {path} of {}, {} of {} queries and {} of {} keys, {calls} calls in {ms:.3} ms",
        one_line(&file.display().to_string()),
        division.tasks(),
        tokens[0],
        whole.shape[3],
        tokens[1],
        whole.shape[4],
    ));
    Ok(())
}
