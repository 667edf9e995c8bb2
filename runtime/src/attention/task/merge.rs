//! Merges the states of tasks into the states of the complete problem.

use super::merge as merge_slots;
use super::states::{RowStates, of_rows, spread};
use crate::error::PlanError;
use elsa_core::argument::ArgumentError;
use elsa_core::quorum::{Run, Span};
use elsa_core::scan::stack::MergeStack;

/// A merge of the states of all tasks in a [`Tree`](elsa_core::quorum::Tree). States are merged in the order of the
/// tasks, pairwise in a balanced binary tree. A task's states are empty for rows that it does not have, so the bits of
/// the result depend only on the states.
#[derive(Debug)]
pub struct TaskMerge {
    /// Number of sequences: batch times heads.
    sequences: usize,
    tokens: usize,
    dim: usize,
    stack: MergeStack,
    slots: Vec<RowStates>,
    next: usize,
}

impl TaskMerge {
    /// Allocates a merge for `tasks` tasks of a problem with `[sequences, tokens]` rows and values of size `dim`. The
    /// number of sequences is batch times heads.
    ///
    /// # Errors
    /// Returns an error if the system refuses the memory. The merge needs one set of states of the complete problem,
    /// and one more set for each doubling of the number of tasks.
    pub fn new(sequences: usize, tokens: usize, dim: usize, tasks: usize) -> Result<TaskMerge, PlanError> {
        let rows = sequences.checked_mul(tokens).ok_or(PlanError::TaskMemory { bytes: usize::MAX })?;
        let slots = (0..MergeStack::capacity(tasks)).map(|_| RowStates::empty(rows, dim));
        let slots = slots.collect::<Result<_, _>>()?;
        Ok(TaskMerge { sequences, tokens, dim, stack: MergeStack::default(), slots, next: 0 })
    }

    /// Adds the states of the next task, `[sequences, queries of the task]`. `runs` are the query runs of the task.
    ///
    /// # Errors
    /// Returns an error if the number of states differs from the number of rows in the runs, if a state cannot be the
    /// result of a run ([`RowStates::check`]), if a row is outside the complete problem, or if there are more tasks
    /// than [`TaskMerge::new`] made room for.
    pub fn push(&mut self, runs: &[Run], states: &RowStates) -> Result<(), ArgumentError> {
        self.push_by(runs.iter().map(Run::span), states)
    }

    /// Adds states of the next task, `[sequences, tokens of spans]`, like [`TaskMerge::push`]. `spans` places them: the
    /// offsets are rows of `states`, and the starts are tokens of the merge. A merge of a window of the tokens therefore
    /// receives the states of this window only, with starts that count from its first token. Each token has the bits of the
    /// merge of all tokens.
    ///
    /// # Errors
    /// Returns the errors of [`TaskMerge::push`].
    pub fn push_spans(&mut self, spans: &[Span], states: &RowStates) -> Result<(), ArgumentError> {
        self.push_by(spans.iter().copied(), states)
    }

    fn push_by(
        &mut self,
        spans: impl Iterator<Item = Span> + Clone,
        states: &RowStates,
    ) -> Result<(), ArgumentError> {
        let tokens: usize = spans.clone().map(|span| span.tokens).sum();
        let rows = tokens.saturating_mul(self.sequences);
        of_rows([states.m.len(), states.s.len(), states.w.len()], rows, self.dim, "the task")?;
        states.check()?;
        // The largest row that a span names, in the merge and in the states.
        let end = |first: usize, span: Span| first.saturating_add(span.tokens);
        let whole = spans.clone().map(|span| end(span.start, span)).max().unwrap_or(0);
        let part = spans.clone().map(|span| end(span.offset, span)).max().unwrap_or(0);
        for (argument, found, max) in [("task", whole, self.tokens), ("states", part, tokens)] {
            if found > max {
                return Err(ArgumentError::Count { argument, found, min: 0, max });
            }
        }
        let rows = self.sequences * self.tokens;
        let slots = &mut self.slots;
        let slot = self.stack.push(self.next, |slot| merge_slots(slots, slot, rows));
        self.next += 1;
        let Some(whole) = self.slots.get_mut(slot) else {
            let (argument, found, max) = ("tasks", self.next, self.next - 1);
            return Err(ArgumentError::Count { argument, found, min: 0, max });
        };
        let sizes = [self.sequences, self.tokens, self.dim];
        spread(spans, sizes, [&states.m, &states.s, &states.w], whole.first(rows));
        Ok(())
    }

    /// Returns the states of the complete problem, `[sequences, tokens]`; empty states if there was no task.
    #[must_use]
    pub fn finish(mut self) -> RowStates {
        let rows = self.sequences * self.tokens;
        let slots = &mut self.slots;
        self.stack.finish(|slot| merge_slots(slots, slot, rows));
        // There is at least one slot, whatever the number of tasks is.
        self.slots.swap_remove(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elsa_core::quorum::{Division, Task};
    use elsa_core::random::Random;

    #[test]
    fn windows_of_any_width_have_the_bits_of_the_whole() {
        let (sequences, tokens, dim) = (2, 23, 3);
        let division = Division::new(&[7]).unwrap();
        let mut random = Random::new(5);
        let tasks: Vec<(Task, RowStates)> = (0..7)
            .map(|number| {
                let task = Task::new(&division, &division.path(number).unwrap(), tokens, tokens).unwrap();
                let mut states = RowStates::empty(sequences * task.query_tokens(), dim).unwrap();
                let mut number = || random.below(2001) as f32 / 100.0 - 10.0;
                states.m.iter_mut().for_each(|m| *m = number());
                states.s.iter_mut().for_each(|s| *s = number().abs() + 1.0);
                states.w.iter_mut().for_each(|w| *w = number());
                (task, states)
            })
            .collect();
        let mut merge = TaskMerge::new(sequences, tokens, dim, 7).unwrap();
        tasks.iter().for_each(|(task, states)| merge.push(task.queries(), states).unwrap());
        let whole = merge.finish();
        for width in [1, 4, 10, tokens] {
            for first in (0..tokens).step_by(width) {
                let end = tokens.min(first + width);
                let mut merge = TaskMerge::new(sequences, end - first, dim, 7).unwrap();
                for (task, states) in &tasks {
                    let held = task.query_tokens();
                    let (mut spans, mut rows) = (Vec::new(), Vec::new());
                    for span in task.queries().iter().map(Run::span) {
                        let (from, to) = (span.start.max(first), (span.start + span.tokens).min(end));
                        if from < to {
                            spans.push(Span { start: from - first, offset: rows.len(), tokens: to - from });
                            rows.extend((from..to).map(|token| token - span.start + span.offset));
                        }
                    }
                    let mut part = RowStates::empty(0, dim).unwrap();
                    for sequence in 0..sequences {
                        for row in rows.iter().map(|row| sequence * held + row) {
                            part.m.push(states.m[row]);
                            part.s.push(states.s[row]);
                            part.w.extend(&states.w[row * dim..(row + 1) * dim]);
                        }
                    }
                    merge.push_spans(&spans, &part).unwrap();
                }
                let part = merge.finish();
                for sequence in 0..sequences {
                    for token in first..end {
                        let (at, of) = (sequence * (end - first) + token - first, sequence * tokens + token);
                        assert_eq!((part.m[at], part.s[at]), (whole.m[of], whole.s[of]), "{width} {token}");
                        assert_eq!(part.w[at * dim..(at + 1) * dim], whole.w[of * dim..(of + 1) * dim]);
                    }
                }
            }
        }
        let mut merge = TaskMerge::new(1, 4, 1, 1).unwrap();
        let beyond = Span { start: 3, offset: 0, tokens: 2 };
        assert!(merge.push_spans(&[beyond], &RowStates::empty(2, 1).unwrap()).is_err());
        let elsewhere = Span { start: 0, offset: 1, tokens: 2 };
        assert!(merge.push_spans(&[elsewhere], &RowStates::empty(2, 1).unwrap()).is_err());
    }
}
