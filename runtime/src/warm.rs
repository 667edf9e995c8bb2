//! Runs a plan over tensors of zeros, so that later runs do no one-time work.

use crate::cuda::memory::HostBuffer;
use crate::error::{BindError, RunError};
use crate::operator::{LengthsOf, OperandOf, Operator};
use crate::plan::Plan;
use crate::problem::Problem;
use crate::report::Report;
use crate::tensors::{HostTensors, Types};
use crate::workspace::{Memory, Workspace};
use elsa_core::operands::Operands;

impl<O: Operator> Plan<O> {
    /// Runs over tensors of zeros in `workspace`. `types` are the element types of the tensors. The call has the tensors
    /// of the problem for which `keeps` returns `true`. `fill` may overwrite the zero bytes of a tensor. The caller has
    /// checked `lengths` against the problem.
    ///
    /// # Errors
    /// Returns an error if host memory is not available. Also returns the errors of [`Plan::bind`] and
    /// [`Bound::run`](crate::operators::Bound::run).
    pub(crate) fn run_over_zeros<'a>(
        &'a self,
        lengths: LengthsOf<'a, O>,
        types: Types<OperandOf<O>>,
        keeps: impl Fn(OperandOf<O>) -> bool,
        fill: impl Fn(OperandOf<O>, &mut [u8]),
        workspace: &'a mut Workspace<O>,
    ) -> Result<Report, RunError> {
        let mut at = Operands::<OperandOf<O>, _>::from_fn(|_| std::ptr::null_mut());
        let mut room = Vec::new();
        for (operand, tensor) in self.problem.tensors_of(&types).iter() {
            let Some(memory) = tensor.memory.filter(|_| keeps(operand)) else { continue };
            // Zero bytes are zeros of any type.
            let mut zeros = HostBuffer::<u8>::ordinary(memory.bytes()).map_err(RunError::Memory)?;
            fill(operand, &mut zeros);
            at[operand] = zeros.as_mut_ptr();
            room.push(zeros);
        }
        // The buffers are as large as the problem states, and are dropped after the run.
        let report = self.bind_tensors(lengths, HostTensors::of_types(at, types), workspace)?.run()?;
        drop(room);
        Ok(report)
    }

    /// Ends a warm-up: frees the memory for copies if the workspace is in the caller's memory, discards the record of
    /// the run over zeros, and wakes every worker.
    ///
    /// # Errors
    /// Returns the error that the device reports, or an error if a worker panicked.
    pub(crate) fn end_warm_up(&self, workspace: &mut Workspace<O>) -> Result<(), RunError> {
        if let Memory::Gpu { gpu: Ok(memory), .. } = &mut workspace.memory
            && memory.scratch.is_lent()
        {
            memory.free_copies().map_err(BindError::Device)?;
        }
        workspace.record = None;
        // The warm-up call may have been too small for some of the workers.
        self.engine.pool().run(self.engine.threads(), &|_| ())
    }
}
