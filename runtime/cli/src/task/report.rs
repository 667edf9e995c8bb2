//! Report of a command that computes a task.

use crate::error::{Error, one_line, say};
use crate::report::{self, count, object};
use elsa_core::quorum::{Division, Task};
use elsa_files::task::{Description, Kind};
use elsa_runtime::{Backend, Engine};
use std::path::Path;

/// A task whose states or gradient shares have been written.
pub struct Finished<'a> {
    /// The file with the states or shares.
    pub file: &'a Path,
    /// Description of the task, as `file` contains it.
    pub description: &'a Description,
    /// Division to which the task belongs.
    pub division: &'a Division,
    /// The task.
    pub task: &'a Task,
    /// Back end; `None` if the task needs no call.
    pub backend: Option<Backend>,
    /// Attention kernel of the first call.
    pub kernel: Option<&'static str>,
    /// Two numbers: the calls that ran, and the calls that were unnecessary because of causality, windows or lengths.
    pub calls: [usize; 2],
    /// Three sizes in bytes: of the tensors that were read, of the states or shares that were written, and of the
    /// workspace.
    pub bytes: [usize; 3],
    /// Reason why the CPU computed instead of the requested GPU.
    pub fallback: Option<String>,
    /// Total time of the calls in milliseconds.
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
            // The shape of the whole problem: batch, heads, key heads, queries, keys, head size and head size of
            // values.
            shape: whole.shape,
            tokens: tokens,
            // Number of pairs of a query and a key that the task computes, for one head.
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
        "wrote {}: {shares}task {path} of {}, {} of {} queries and {} of {} keys, {} in {ms:.3} ms",
        one_line(&file.display().to_string()),
        division.tasks(),
        tokens[0],
        whole.shape[3],
        tokens[1],
        whole.shape[4],
        count(calls as u64, "call"),
    ));
    Ok(())
}
