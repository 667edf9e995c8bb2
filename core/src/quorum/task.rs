//! A task: its tokens as runs, and the pairs of runs that it computes.

use super::chunks::BalancedChunkLayout;
use super::division::Division;
use super::path::{MAX_LEVELS, TaskPath};
use super::singer::MAX_MEMBERS;
use crate::plan::ChooseError;
use heapless::Vec;

/// Largest number of runs in a task: the first level has at most `MAX_MEMBERS` runs, and each further level adds at
/// most `MAX_MEMBERS − 1`.
pub const MAX_RUNS: usize = MAX_LEVELS * (MAX_MEMBERS - 1) + 1;

/// Consecutive tokens of the original sequence that are also consecutive in a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Position of the first token in the original sequence.
    pub start: usize,
    /// Position of the first token among the tokens of the task.
    pub offset: usize,
    /// Number of tokens.
    pub tokens: usize,
}

/// Consecutive tokens of a task that are in the same chunk at every level. Never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    span: Span,
    /// Chunk of the run at each level.
    labels: [u16; MAX_LEVELS],
}

impl Run {
    /// Returns the tokens of the run.
    #[must_use]
    pub const fn span(&self) -> Span {
        self.span
    }

    /// Returns the chunk of the run at each of the `depth` levels of its task.
    #[must_use]
    pub fn labels(&self, depth: usize) -> &[u16] {
        &self.labels[..depth.min(MAX_LEVELS)]
    }
}

type Runs = Vec<Run, MAX_RUNS>;

/// A task of a division: the runs of its queries and the runs of its keys, both in the order of the task's tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    path: TaskPath,
    queries: Runs,
    keys: Runs,
}

impl Task {
    /// Creates task `path` of `division` over `queries` query tokens and `keys` key tokens, as algorithm 3 of the paper
    /// does.
    ///
    /// # Errors
    /// Returns an error if `path` is not a task of the division ([`Division::check`]).
    pub fn new(
        division: &Division,
        path: &TaskPath,
        queries: usize,
        keys: usize,
    ) -> Result<Task, ChooseError> {
        division.check(path)?;
        let queries = runs(division, path, queries);
        let keys = runs(division, path, keys);
        Ok(Task { path: *path, queries, keys })
    }

    /// Returns the path of the task.
    #[must_use]
    pub const fn path(&self) -> &TaskPath {
        &self.path
    }

    /// Returns the runs of the query tokens.
    #[must_use]
    pub fn queries(&self) -> &[Run] {
        &self.queries
    }

    /// Returns the runs of the key tokens.
    #[must_use]
    pub fn keys(&self) -> &[Run] {
        &self.keys
    }

    /// Returns the number of query tokens.
    #[must_use]
    pub fn query_tokens(&self) -> usize {
        tokens(&self.queries)
    }

    /// Returns the number of key tokens.
    #[must_use]
    pub fn key_tokens(&self) -> usize {
        tokens(&self.keys)
    }

    /// Returns `true` if this task computes the pairs of a query run and a key run. It does if, at every level, the
    /// runs are in different chunks or in the chunk that the task owns.
    #[must_use]
    pub fn computes_pairs(&self, query: &Run, key: &Run) -> bool {
        let labels = query.labels.iter().zip(&key.labels).zip(self.path.digits());
        labels.into_iter().all(|((a, b), owned)| a != b || a == owned)
    }

    /// Returns the keys with which this task pairs `query`, as ranges in the order of the task's tokens. Adjacent key runs
    /// are joined if they are also adjacent in the original sequence.
    #[must_use]
    pub fn keys_of<'a>(&'a self, query: &'a Run) -> KeySpans<'a> {
        KeySpans { task: self, query, next: 0 }
    }

    /// Iterates over the pairs of a query run and a range of keys that the task computes.
    pub fn pairs(&self) -> impl Iterator<Item = (Span, Span)> + '_ {
        self.queries.iter().flat_map(|query| self.keys_of(query).map(move |keys| (query.span, keys)))
    }

    /// Returns the number of pairs of a query and a key that the task computes.
    #[must_use]
    pub fn pair_count(&self) -> u128 {
        self.pairs().map(|(queries, keys)| queries.tokens as u128 * keys.tokens as u128).sum()
    }
}

/// Iterator over the ranges of keys with which a task pairs a query run. [`Task::keys_of`] creates it.
#[derive(Clone, Debug)]
pub struct KeySpans<'a> {
    task: &'a Task,
    query: &'a Run,
    next: usize,
}

impl Iterator for KeySpans<'_> {
    type Item = Span;

    fn next(&mut self) -> Option<Span> {
        let mut span: Option<Span> = None;
        while let Some(run) = self.task.keys.get(self.next) {
            let meets = self.task.computes_pairs(self.query, run);
            match &mut span {
                None if meets => span = Some(run.span),
                None => {}
                Some(span) if meets && span.start + span.tokens == run.span.start => {
                    span.tokens += run.span.tokens;
                }
                Some(_) => break,
            }
            self.next += 1;
        }
        span
    }
}

fn tokens(runs: &Runs) -> usize {
    runs.last().map_or(0, |run| run.span.offset + run.span.tokens)
}

/// Returns the runs of task `path` in a sequence of `tokens` tokens. `path` must be a task of the division.
fn runs(division: &Division, path: &TaskPath, tokens: usize) -> Runs {
    let mut runs = Runs::new();
    if tokens > 0 {
        push(&mut runs, Run { span: Span { start: 0, offset: 0, tokens }, labels: [0; MAX_LEVELS] });
    }
    for (level, (set, digit)) in division.sets().iter().zip(path.digits()).enumerate() {
        let layout = BalancedChunkLayout::new(self::tokens(&runs), set.chunks());
        let mut gathered = Runs::new();
        let mut offset = 0;
        for chunk in set.chunks_of(usize::from(*digit)) {
            let range = layout.range(chunk);
            // Runs are contiguous, and the first starts at zero.
            let first = runs.partition_point(|run| run.span.offset + run.span.tokens <= range.start);
            for run in runs.iter().skip(first).take_while(|run| run.span.offset < range.end) {
                let mut piece = *run;
                let from = range.start.max(run.span.offset);
                let to = range.end.min(run.span.offset + run.span.tokens);
                piece.span =
                    Span { start: run.span.start + (from - run.span.offset), offset, tokens: to - from };
                piece.labels[level] = chunk as u16;
                offset += piece.span.tokens;
                push(&mut gathered, piece);
            }
        }
        runs = gathered;
    }
    runs
}

/// Adds a run if it is not empty. The capacity is sufficient, as item 1 of "Why the code differs" in the module shows.
fn push(runs: &mut Runs, run: Run) {
    let full = run.span.tokens > 0 && runs.push(run).is_err();
    debug_assert!(!full, "more than {MAX_RUNS} runs");
}
