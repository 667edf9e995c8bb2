//! Runs a checked call on the CPU. A call consists of a plan, its tensors and a workspace; workers divide its work.

use super::context::Context;
use super::plan::CpuPlan;
use super::{scan, walk};
use crate::cpu::memory::{Memory, write_list};
use crate::cpu::plan;
use crate::cpu::pool::Crew;
use crate::error::{BindError, RunError};
use crate::tensors::HostTensors;
use elsa_core::linear::plan::WorkspaceLayout;
use elsa_core::linear::{Form, Operand, Problem, Sequence};
use std::marker::PhantomData;

/// A call on the CPU whose tensors have been checked.
pub struct CpuCall<'a> {
    context: Context<'a>,
    sequences: &'a [Sequence],
    /// Number of workers that share the work.
    workers: usize,
    /// Borrows the tensors for the lifetime of the call.
    tensors: PhantomData<&'a mut ()>,
}

// SAFETY: a call is equivalent to shared references to the inputs, and exclusive references to the outputs and the
// workspace.
unsafe impl Send for CpuCall<'_> {}

impl std::fmt::Debug for CpuCall<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CpuCall").field("choice", self.context.choice).finish_non_exhaustive()
    }
}

impl plan::CpuCall for CpuCall<'_> {
    fn workers(&self) -> usize {
        self.workers
    }

    fn run(&mut self, crew: &Crew<'_>) -> Result<(), RunError> {
        let (c, sequences) = (&self.context, self.sequences);
        if c.choice.form == Form::Scan {
            return scan::run(c, sequences, self.workers, crew);
        }
        let (states, groups) = (c.problem.state_heads(), c.choice.groups);
        crew.divide(self.workers, sequences.len() * states * groups, &|worker, item| {
            let (head, group) = (item / groups, item % groups);
            let place = (head % states, group);
            // SAFETY: `Context::new` established the invariants. The pool gives each item to one worker, and each worker
            // has its own number.
            unsafe { walk::attend(c, &sequences[head / states], place, worker, *crew) }
        })
    }
}

impl plan::CpuPlan for CpuPlan {
    type Problem = Problem;
    type Call<'a> = CpuCall<'a>;

    fn bytes(&self) -> usize {
        WorkspaceLayout::bytes(&self.layout)
    }

    fn kernel(&self) -> &'static str {
        self.choice.kernel.name
    }

    fn call<'a>(
        &'a self,
        problem: &'a Problem,
        cu_seqlens: Option<&'a [i64]>,
        tensors: &HostTensors<'a, Operand>,
        memory: &'a mut Memory,
    ) -> Result<CpuCall<'a>, BindError> {
        let base = memory.lines_for(WorkspaceLayout::bytes(&self.layout))?;
        let context = Context::new(self, problem, tensors, base);
        let (count, mut tokens) = (problem.sequences(), 0.0);
        let sequence = |index| {
            let sequence = problem.sequence(cu_seqlens, index);
            tokens += sequence.tokens as f64;
            sequence
        };
        // SAFETY: *room*: the memory has the plan's layout, with room for `count` sequences, and is borrowed
        // exclusively.
        let sequences = unsafe { write_list(base, self.layout.sequences, count, sequence) };
        let workers = self.choice.workers_for(tokens * problem.state_heads() as f64);
        Ok(CpuCall { context, sequences, workers, tensors: PhantomData })
    }
}
