//! Sums the shares that tasks have in gradients.

use crate::error::PlanError;
use elsa_core::argument::ArgumentError;
use elsa_core::attention::Problem;
use elsa_core::attention::backward::Gradients;
use elsa_core::quorum::{Run, Span, Task};
use elsa_core::scan::stack::{MergeStack, depth};
use elsa_core::view::View;

/// The sizes of gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GradientSizes {
    /// Batch times query heads.
    pub query_sequences: usize,
    /// Batch times key heads.
    pub key_sequences: usize,
    /// Query tokens.
    pub queries: usize,
    /// Key tokens.
    pub keys: usize,
    /// Head size of queries and keys.
    pub dim: usize,
    /// Head size of values.
    pub value_dim: usize,
}

impl GradientSizes {
    /// Returns the sizes of a problem.
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

    /// Returns these sizes with the numbers of tokens of a task.
    #[must_use]
    pub fn of(self, task: &Task) -> GradientSizes {
        GradientSizes { queries: task.query_tokens(), keys: task.key_tokens(), ..self }
    }

    /// Returns sequences, tokens and head size of each gradient.
    const fn each(&self) -> [[usize; 3]; 3] {
        let GradientSizes { query_sequences, key_sequences, queries, keys, dim, value_dim } = *self;
        [[query_sequences, queries, dim], [key_sequences, keys, dim], [key_sequences, keys, value_dim]]
    }
}

/// Gradients in dense memory of their own, f32: those of a whole, or the shares of a task in them.
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
    /// Allocates gradients of zeros.
    ///
    /// # Errors
    /// Returns an error if the system refuses the memory.
    pub fn zeros(sizes: &GradientSizes) -> Result<TaskGradients, PlanError> {
        let of = |sizes: [usize; 3]| {
            let count = sizes.into_iter().try_fold(1usize, usize::checked_mul).unwrap_or(usize::MAX);
            let mut data: Vec<f32> = Vec::new();
            let refused = PlanError::TaskMemory { bytes: count.saturating_mul(4) };
            data.try_reserve_exact(count).map_err(|_| refused)?;
            data.resize(count, 0.0);
            Ok::<_, PlanError>(data)
        };
        let [query, key, value] = sizes.each();
        Ok(TaskGradients { query: of(query)?, key: of(key)?, value: of(value)? })
    }

    /// Borrows them to be written.
    pub fn borrow(&mut self) -> Gradients<'_> {
        Gradients { query: &mut self.query, key: &mut self.key, value: &mut self.value }
    }

    /// Copies one of them, `dense`, to the rows of a view of its shape, in the order of batch, head and token.
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

/// Adds the shares of a tree's tasks, in the order of the tree, by the balanced tree over their numbers:
///
/// ```text
/// tasks 0 1 2 3 4 5 6:  ((0 + 1) + (2 + 3)) + ((4 + 5) + 6)
/// ```
///
/// A token that a task does not hold has zeros there, so the bits depend on the shares alone. An element meets
/// [`GradientMerge::additions`] additions, each of which is rounded once.
#[derive(Debug)]
pub struct GradientMerge {
    sizes: GradientSizes,
    stack: MergeStack,
    slots: Vec<TaskGradients>,
    next: usize,
}

impl GradientMerge {
    /// Allocates a merge of `tasks` tasks of a whole of `sizes`.
    ///
    /// # Errors
    /// Returns an error if the system refuses the memory: the gradients of the whole, and once more for each time that the
    /// number of tasks doubles.
    pub fn new(sizes: &GradientSizes, tasks: usize) -> Result<GradientMerge, PlanError> {
        let slots = (0..MergeStack::capacity(tasks)).map(|_| TaskGradients::zeros(sizes));
        let slots = slots.collect::<Result<_, _>>()?;
        Ok(GradientMerge { sizes: *sizes, stack: MergeStack::default(), slots, next: 0 })
    }

    /// Returns the largest number of additions to an element among the shares of `tasks` tasks: `ceil(log2 tasks)`.
    #[must_use]
    pub const fn additions(tasks: usize) -> usize {
        depth(tasks)
    }

    /// Adds the shares of the next task.
    ///
    /// # Errors
    /// Returns an error if the shares are not those of the task's tokens, if these lie beyond the whole, or if there are more
    /// tasks than were announced.
    pub fn push(&mut self, task: &Task, shares: &TaskGradients) -> Result<(), ArgumentError> {
        let own = self.sizes.of(task);
        for ((argument, sizes), found) in ["d_q", "d_k", "d_v"].into_iter().zip(own.each()).zip(shares.each())
        {
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
        let data = self.slots[slot].each_mut().into_iter().zip(shares.each());
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

    /// Returns the gradients of the whole problem; zeros if there was no task.
    #[must_use]
    pub fn finish(mut self) -> TaskGradients {
        let slots = &mut self.slots;
        self.stack.finish(|slot| add(slots, slot));
        // There is a slot for any number of tasks.
        self.slots.swap_remove(0)
    }
}

/// Adds slot `slot + 1` to `slot`.
fn add(slots: &mut [TaskGradients], slot: usize) {
    if let Some([earlier, later]) = slots.get_mut(slot..slot + 2) {
        for (sums, more) in earlier.each_mut().into_iter().zip(later.each()) {
            sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        }
    }
}
