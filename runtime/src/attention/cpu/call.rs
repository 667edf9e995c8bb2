//! A checked call: a plan, the tensors of a frame and a workspace, divided among workers.

use super::context::{Context, Shared, tiles_of_a_task};
use super::plan::{CpuPlan, CpuWorkspace};
use super::{math, stage, walk};
use crate::attention::tensors::HostTensors;
use crate::cpu::pool::Pool;
use crate::error::{BindError, RunError};
use elsa_core::attention::plan::Method;
use elsa_core::attention::{Inputs, Operand, Problem};
use std::marker::PhantomData;

/// A call that was checked.
pub struct CpuCall<'a> {
    context: Context<'a>,
    workspace: &'a mut CpuWorkspace,
    /// The tensors are borrowed for as long as the call lives.
    tensors: PhantomData<&'a mut ()>,
}

// SAFETY: a call holds what references would hold: inputs shared, outputs and workspace exclusively.
unsafe impl Send for CpuCall<'_> {}

impl std::fmt::Debug for CpuCall<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CpuCall").field("choice", self.context.choice).finish_non_exhaustive()
    }
}

impl<'a> CpuCall<'a> {
    /// Checks the workspace against the plan. Inputs and outputs were checked against the problem, and the plan's
    /// kernel is one whose instruction set is present, which engines see to.
    ///
    /// # Errors
    /// A workspace that is too small.
    pub fn new(
        plan: &'a CpuPlan,
        problem: &'a Problem,
        inputs: Inputs<'a>,
        tensors: &HostTensors<'a>,
        workspace: &'a mut CpuWorkspace,
    ) -> Result<CpuCall<'a>, BindError> {
        let (base, room) = workspace.memory.lines();
        if room < plan.layout.total || workspace.room() < problem.sequences() {
            return Err(BindError::Workspace {
                found: workspace.bytes(),
                needed: plan.layout.bytes(),
                found_sequences: workspace.room(),
                sequences: problem.sequences(),
            });
        }
        let context = Context::new(plan, problem, inputs, tensors, base);
        workspace.sequences.clear();
        workspace.tasks.clear();
        let mut first = 0;
        for index in 0..problem.sequences() {
            let sequence = problem.sequence(&inputs.lengths, index);
            workspace.tasks.push(first);
            let tiles = plan.choice.tiling(sequence.queries).count();
            first += problem.heads() * tiles.div_ceil(tiles_of_a_task(&plan.choice));
            workspace.sequences.push(sequence);
        }
        workspace.tasks.push(first);
        Ok(CpuCall { context, workspace, tensors: PhantomData })
    }

    /// Workers among which it is divided, if the pool has that many.
    pub fn workers(&self) -> usize {
        self.context.choice.workers
    }

    /// Computes.
    ///
    /// # Errors
    /// A worker that panicked.
    pub fn run(&mut self, pool: &Pool) -> Result<(), RunError> {
        let context = &self.context;
        let shared = Shared { context, sequences: &self.workspace.sequences, tasks: &self.workspace.tasks };
        let presents = [Operand::PresentKey, Operand::PresentValue];
        if presents.into_iter().any(|present| context.tensor(present).is_present()) {
            let key = context.tensor(Operand::Key).view;
            // SAFETY: every pair of batch and key head is one item, and items write disjoint rows of the
            // present (invariants *inputs* and *outputs*).
            pool.divide(context.choice.workers, key.batch() * key.heads(), &|_, i| unsafe {
                stage::write_present(context, i);
            })?;
        }
        match context.choice.method {
            // SAFETY: `Context::new` established the invariants, and the pool gives every task to one worker and
            // every worker a number of its own.
            Method::Elsa => pool.divide(context.choice.workers, shared.count(), &|worker, number| unsafe {
                walk::attend(context, &shared.task(number), worker);
            }),
            Method::Math => math::run(&shared, pool),
        }
    }
}
