//! Runs a checked call on the CPU. A call consists of a plan, its tensors and a workspace; workers divide its work.

use super::context::{Context, Shared, tiles_per_task};
use super::finish;
use super::mask_cache::MaskCache;
use super::plan::CpuPlan;
use super::{math, measure, norms, stage, traverse, walk};
use crate::cpu::memory::{Memory, write_list};
use crate::cpu::plan;
use crate::cpu::pool::Crew;
use crate::error::{BindError, RunError};
use crate::tensors::HostTensors;
use elsa_core::attention::plan::Method;
use elsa_core::attention::{Lengths, Operand, Problem, Sequence};
use std::marker::PhantomData;

/// A checked call on the CPU.
pub struct CpuCall<'a> {
    context: Context<'a>,
    memory: &'a mut Memory,
    sequences: &'a [Sequence],
    /// Index of the first task of each sequence, followed by the total number of tasks.
    tasks: &'a [usize],
    /// Number of workers that compute the attention.
    workers: usize,
    /// Borrows the tensors for the lifetime of the call.
    tensors: PhantomData<&'a mut ()>,
}

// SAFETY: a call is equivalent to references: shared ones to the inputs, exclusive ones to outputs and workspace.
unsafe impl Send for CpuCall<'_> {}

impl std::fmt::Debug for CpuCall<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CpuCall").field("choice", self.context.choice).finish_non_exhaustive()
    }
}

impl CpuCall<'_> {
    /// Returns `true` if the call copies keys or values to a present tensor.
    fn has_present(&self) -> bool {
        let presents = [Operand::PresentKey, Operand::PresentValue];
        presents.into_iter().any(|present| self.context.has(present))
    }

    /// Returns the memory of the call.
    pub fn memory(&mut self) -> &mut Memory {
        self.memory
    }
}

impl plan::CpuCall for CpuCall<'_> {
    fn run(&mut self, crew: &Crew<'_>) -> Result<(), RunError> {
        let context = &self.context;
        let shared = Shared { context, sequences: self.sequences, tasks: self.tasks };
        // The present tensors receive every key, whatever the lengths are.
        if self.has_present() {
            let key = context.tensor(Operand::Key).view;
            // SAFETY: every pair of batch index and key head is one item, and items write disjoint rows of the present
            // tensors (invariants *inputs* and *outputs*).
            crew.divide(context.choice.workers, key.batch() * key.heads(), &|_, i| unsafe {
                stage::write_present(context, i);
            })?;
        }
        for worker in 0..context.choice.workers {
            // SAFETY: no worker is active yet.
            unsafe { MaskCache::forget(context, context.worker_part(worker)) };
        }
        // SAFETY: no worker is active yet.
        unsafe { finish::begin(context) };
        let parts = shared.sequences.len() * context.problem.kv_heads() * context.choice.measured_parts();
        if parts > 0 {
            // SAFETY: the present tensors have been written, and the pool gives each part to one worker.
            crew.divide(self.workers, parts, &|_, part| unsafe { norms::measure(&shared, part) })?;
        }
        let certify = context.choice.certify;
        if certify {
            // SAFETY: no worker is active yet.
            unsafe { measure::clear(context, context.choice.workers) };
        }
        // SAFETY: `Context::new` established the invariants. The pool gives each task to one worker, and each worker has
        // its own number.
        let attend = |worker, number| unsafe {
            let task = shared.task(number);
            if certify {
                measure::inputs(&shared, &task, worker);
            }
            match context.choice.traverses() {
                true => traverse::attend(context, &task, worker, crew),
                false => walk::attend(context, &task, worker, crew),
            }
            if certify {
                measure::output(context, &task, worker);
            }
        };
        match context.choice.method {
            Method::Elsa => crew.divide(self.workers, shared.count(), &attend)?,
            Method::Math => math::run(&shared, self.workers, crew)?,
        }
        if certify && context.choice.method == Method::Math {
            // SAFETY: as for `attend`.
            crew.divide(self.workers, shared.count(), &|worker, number| unsafe {
                measure::inputs(&shared, &shared.task(number), worker);
                measure::output(context, &shared.task(number), worker);
            })?;
        }
        if certify {
            // SAFETY: no worker is active any longer.
            unsafe { measure::join(context, context.choice.workers) };
        }
        Ok(())
    }

    fn workers(&self) -> usize {
        if self.has_present() { self.context.choice.workers } else { self.workers }
    }
}

impl plan::CpuPlan for CpuPlan {
    type Problem = Problem;
    type Call<'a> = CpuCall<'a>;

    fn bytes(&self) -> usize {
        self.layout.bytes()
    }

    fn kernel(&self) -> &'static str {
        self.executed().kernel
    }

    fn call<'a>(
        &'a self,
        problem: &'a Problem,
        lengths: Lengths<'a>,
        tensors: &HostTensors<'a, Operand>,
        memory: &'a mut Memory,
    ) -> Result<CpuCall<'a>, BindError> {
        let base = memory.lines_for(self.layout.bytes())?;
        let context = Context::new(self, problem, tensors, base);
        let (count, layout) = (problem.sequences(), &self.layout);
        // SAFETY: *room*: the memory has the layout, and is borrowed exclusively. The layout reserves a place for each
        // sequence.
        let sequences =
            unsafe { write_list(base, layout.sequences, count, |index| problem.sequence(&lengths, index)) };
        let (mut next, mut pairs) = (0, 0.0);
        let task = |index: usize| {
            let first = next;
            if let Some(sequence) = sequences.get(index) {
                let tiles = self.choice.tiling(sequence.queries).count();
                next += problem.kv_heads()
                    * self.choice.head_sets(problem.group())
                    * tiles.div_ceil(tiles_per_task(&self.choice));
                pairs += sequence.queries as f64 * sequence.reach() as f64;
            }
            first
        };
        // SAFETY: *room*: as for the sequences above.
        let tasks = unsafe { write_list(base, layout.tasks, count + 1, task) };
        let workers = self.choice.workers_for(pairs * problem.heads() as f64);
        Ok(CpuCall { context, memory, sequences, tasks, workers, tensors: PhantomData })
    }
}
