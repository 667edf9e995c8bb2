//! Merges the states of tasks into the states of the complete problem.

use super::merge as merge_slots;
use super::states::RowStates;
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
        for (argument, found, allowed) in [
            ("state_m", states.m.len(), rows),
            ("state_s", states.s.len(), rows),
            ("state_w", states.w.len(), rows.saturating_mul(self.dim)),
        ] {
            if found != allowed {
                let (axis, of) = ("elements", "the task");
                return Err(ArgumentError::Mismatch { argument, axis, found, allowed, of });
            }
        }
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
        whole.clear();
        for run in runs {
            let span = run.span();
            for sequence in 0..self.sequences {
                let from = sequence * tokens + span.offset;
                let to = sequence * self.tokens + span.start;
                let (from, to) = (from..from + span.tokens, to..to + span.tokens);
                whole.m[to.clone()].copy_from_slice(&states.m[from.clone()]);
                whole.s[to.clone()].copy_from_slice(&states.s[from.clone()]);
                let wide = |range: std::ops::Range<usize>| range.start * self.dim..range.end * self.dim;
                whole.w[wide(to)].copy_from_slice(&states.w[wide(from)]);
            }
        }
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
