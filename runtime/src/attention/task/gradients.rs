//! Adds the tasks' shares of gradients.

use super::states::allocated;
use crate::error::PlanError;
use elsa_core::argument::ArgumentError;
use elsa_core::attention::Problem;
use elsa_core::attention::backward::Gradients;
use elsa_core::quorum::{Run, Span, Task};
use elsa_core::scan::stack::{MergeStack, depth};
use elsa_core::view::View;

/// The sizes that determine the shapes of gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GradientSizes {
    /// Number of query sequences: batch times query heads.
    pub query_sequences: usize,
    /// Number of key sequences: batch times key heads.
    pub key_sequences: usize,
    /// Number of query tokens per sequence.
    pub queries: usize,
    /// Number of key tokens per sequence.
    pub keys: usize,
    /// Head size of queries and keys.
    pub dim: usize,
    /// Head size of values.
    pub value_dim: usize,
}

impl GradientSizes {
    /// Returns the sizes of a problem's gradients.
    #[must_use]
    pub const fn of_problem(problem: &Problem) -> GradientSizes {
        let spec = problem.spec();
        GradientSizes {
            query_sequences: spec.query.batch() * spec.query.heads(),
            key_sequences: spec.key.batch() * spec.key.heads(),
            queries: spec.query.tokens(),
            keys: spec.key.tokens(),
            dim: spec.query.dim(),
            value_dim: spec.value.dim(),
        }
    }

    /// Returns a copy of `self` in which the numbers of tokens are those of `task` instead of those of the complete
    /// problem.
    #[must_use]
    pub fn of(self, task: &Task) -> GradientSizes {
        GradientSizes { queries: task.query_tokens(), keys: task.key_tokens(), ..self }
    }

    /// Returns the number of sequences, the number of tokens and the head size of each gradient.
    const fn each(&self) -> [[usize; 3]; 3] {
        let GradientSizes { query_sequences, key_sequences, queries, keys, dim, value_dim } = *self;
        [[query_sequences, queries, dim], [key_sequences, keys, dim], [key_sequences, keys, value_dim]]
    }
}

/// Gradients of a complete problem, or a task's shares of them, in dense f32 memory.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskGradients {
    /// Gradients of the queries, `[batch, heads, queries, d]`.
    pub query: Vec<f32>,
    /// Gradients of the keys, `[batch, kv_heads, keys, d]`.
    pub key: Vec<f32>,
    /// Gradients of the values, `[batch, kv_heads, keys, d_v]`.
    pub value: Vec<f32>,
}

impl TaskGradients {
    /// Allocates gradients and sets them to zero.
    ///
    /// # Errors
    /// Returns an error if the system refuses the memory.
    pub fn zeros(sizes: &GradientSizes) -> Result<TaskGradients, PlanError> {
        let of = |sizes: [usize; 3]| {
            let count = sizes.into_iter().try_fold(1usize, usize::checked_mul).unwrap_or(usize::MAX);
            allocated(count, 0.0)
        };
        let [query, key, value] = sizes.each();
        Ok(TaskGradients { query: of(query)?, key: of(key)?, value: of(value)? })
    }

    /// Borrows the gradients for writing.
    pub fn borrow(&mut self) -> Gradients<'_> {
        Gradients { query: &mut self.query, key: &mut self.key, value: &mut self.value }
    }

    /// Copies the gradient `dense`, in the order of batch, head and token, to the rows of a view with the same shape.
    pub fn lay(dense: &[f32], view: &View, to: &mut [f32]) {
        let [_, heads, tokens, dim] = view.shape();
        for (row, from) in dense.chunks_exact(dim.max(1)).enumerate().take(view.count() / dim.max(1)) {
            let (token, sequence) = (row % tokens, row / tokens);
            let at = view.row(sequence / heads, sequence % heads, token);
            if let Some(to) = to.get_mut(at..at + dim) {
                to.copy_from_slice(from);
            }
        }
    }

    fn each_mut(&mut self) -> [&mut Vec<f32>; 3] {
        [&mut self.query, &mut self.key, &mut self.value]
    }

    fn each(&self) -> [&[f32]; 3] {
        [&self.query, &self.key, &self.value]
    }
}

/// Sum of the shares of all tasks of a [`Tree`](elsa_core::quorum::Tree). Shares are added in the order of the tasks,
/// pairwise in a balanced binary tree:
///
/// ```text
/// tasks 0 1 2 3 4 5 6:  ((0 + 1) + (2 + 3)) + ((4 + 5) + 6)
/// ```
///
/// The share of a token that a task does not have is zero, so the bits of the sum depend only on the shares. An element
/// takes part in at most [`GradientMerge::additions`] additions. Each addition is rounded once.
#[derive(Debug)]
pub struct GradientMerge {
    sizes: GradientSizes,
    stack: MergeStack,
    slots: Vec<TaskGradients>,
    next: usize,
}

impl GradientMerge {
    /// Allocates a merge of the shares of `tasks` tasks, for a problem whose gradients have the sizes `sizes`.
    ///
    /// # Errors
    /// Returns an error if the system refuses the memory. The merge needs one set of gradients of the complete problem,
    /// and one more set for each doubling of the number of tasks.
    pub fn new(sizes: &GradientSizes, tasks: usize) -> Result<GradientMerge, PlanError> {
        let slots = (0..MergeStack::capacity(tasks)).map(|_| TaskGradients::zeros(sizes));
        let slots = slots.collect::<Result<_, _>>()?;
        Ok(GradientMerge { sizes: *sizes, stack: MergeStack::default(), slots, next: 0 })
    }

    /// Returns the largest number of additions in which an element of a share takes part, for `tasks` tasks:
    /// `ceil(log2 tasks)`.
    #[must_use]
    pub const fn additions(tasks: usize) -> usize {
        depth(tasks)
    }

    /// Adds the shares of the next task.
    ///
    /// # Errors
    /// Returns an error if the shares do not have the task's sizes, if a token of the task is outside the complete
    /// problem, or if there are more tasks than [`GradientMerge::new`] made room for.
    pub fn push(&mut self, task: &Task, shares: &TaskGradients) -> Result<(), ArgumentError> {
        self.push_slices(task, shares.each())
    }

    /// Adds the shares of the next task, which are the gradients of its queries, keys and values, in the order and layout of
    /// [`TaskGradients`]. Allocates nothing.
    ///
    /// # Errors
    /// Returns the errors of [`GradientMerge::push`], and then adds nothing.
    pub fn push_slices(&mut self, task: &Task, shares: [&[f32]; 3]) -> Result<(), ArgumentError> {
        let own = self.sizes.of(task);
        for ((argument, sizes), found) in ["d_q", "d_k", "d_v"].into_iter().zip(own.each()).zip(shares) {
            let (found, allowed) = (found.len(), sizes.into_iter().fold(1, usize::saturating_mul));
            if found != allowed {
                let (axis, of) = ("elements", "the task");
                return Err(ArgumentError::Mismatch { argument, axis, found, allowed, of });
            }
        }
        let runs: [&[Run]; 3] = [task.queries(), task.keys(), task.keys()];
        for (runs, max) in [(runs[0], self.sizes.queries), (runs[1], self.sizes.keys)] {
            let end = |run: &Run| run.span().start.saturating_add(run.span().tokens);
            if let Some(found) = runs.iter().map(end).find(|end| *end > max) {
                return Err(ArgumentError::Count { argument: "task", found, min: 0, max });
            }
        }
        if MergeStack::capacity(self.next + 1) > self.slots.len() {
            let (argument, found, max) = ("tasks", self.next + 1, self.next);
            return Err(ArgumentError::Count { argument, found, min: 0, max });
        }
        let slots = &mut self.slots;
        let slot = self.stack.push(self.next, |slot| add(slots, slot));
        self.next += 1;
        let places = own.each().into_iter().zip(self.sizes.each());
        let data = self.slots[slot].each_mut().into_iter().zip(shares);
        for ((runs, ([sequences, tokens, dim], [_, total, _])), (to, from)) in
            runs.into_iter().zip(places).zip(data)
        {
            to.fill(0.0);
            for Span { start, offset, tokens: count } in runs.iter().map(Run::span) {
                for sequence in 0..sequences {
                    let at = (sequence * total + start) * dim;
                    let share = (sequence * tokens + offset) * dim;
                    to[at..at + count * dim].copy_from_slice(&from[share..share + count * dim]);
                }
            }
        }
        Ok(())
    }

    /// Returns the gradients of the complete problem; zeros if there was no task.
    #[must_use]
    pub fn finish(mut self) -> TaskGradients {
        self.sums();
        self.slots.swap_remove(0)
    }

    /// Returns the gradients of the complete problem, like [`GradientMerge::finish`], and keeps the memory: the next task
    /// that is pushed is the first one of another sum. Allocates nothing.
    pub fn sums(&mut self) -> &TaskGradients {
        // There is at least one slot, whatever the number of tasks is.
        let slots = &mut self.slots;
        if !self.stack.finish(|slot| add(slots, slot)) {
            slots[0].each_mut().into_iter().for_each(|sums| sums.fill(0.0));
        }
        self.stack.clear();
        self.next = 0;
        &self.slots[0]
    }
}

/// Adds the gradients in slot `slot + 1` to those in slot `slot`.
fn add(slots: &mut [TaskGradients], slot: usize) {
    if let Some([earlier, later]) = slots.get_mut(slot..slot + 2) {
        for (sums, more) in earlier.each_mut().into_iter().zip(later.each()) {
            sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        }
    }
}
