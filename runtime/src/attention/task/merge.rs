//! Merges the states of tasks into the states of the complete problem.

use super::merge as merge_slots;
use super::states::{RowStates, of_rows, spread};
use crate::error::PlanError;
use elsa_core::argument::ArgumentError;
use elsa_core::quorum::Run;
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
        let tokens: usize = runs.iter().map(|run| run.span().tokens).sum();
        let rows = tokens.saturating_mul(self.sequences);
        of_rows([states.m.len(), states.s.len(), states.w.len()], rows, self.dim, "the task")?;
        states.check()?;
        let end = |run: &Run| run.span().start.saturating_add(run.span().tokens);
        if let Some(found) = runs.iter().map(end).find(|end| *end > self.tokens) {
            let (argument, min, max) = ("task", 0, self.tokens);
            return Err(ArgumentError::Count { argument, found, min, max });
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
        spread(runs, sizes, [&states.m, &states.s, &states.w], whole.first(rows));
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
