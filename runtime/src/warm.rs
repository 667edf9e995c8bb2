//! Runs a plan over tensors of zeros, so that all one-time work is done.

use crate::cuda::memory::HostBuffer;
use crate::error::RunError;
use crate::operator::{LengthsOf, OperandOf, Operator};
use crate::plan::Plan;
use crate::problem::Problem;
use crate::report::Report;
use crate::tensors::HostTensors;
use crate::workspace::Workspace;
use elsa_core::operands::Operands;

impl<O: Operator> Plan<O> {
    /// Runs over tensors of zeros in `workspace`, with every tensor that the problem has. The caller has checked
    /// `lengths` against the problem.
    ///
    /// # Errors
    /// Returns an error if host memory is not available, or the errors of [`Plan::bind`] and
    /// [`Bound::run`](crate::operators::Bound::run).
    pub(crate) fn run_over_zeros<'a>(
        &'a self,
        lengths: LengthsOf<'a, O>,
        workspace: &'a mut Workspace<O>,
    ) -> Result<Report, RunError> {
        let mut at = Operands::<OperandOf<O>, _>::from_fn(|_| std::ptr::null_mut());
        let mut room = Vec::new();
        for (operand, tensor) in self.problem.tensors().iter() {
            let Some(memory) = tensor.memory else { continue };
            // Zero bytes are zeros of any type.
            let words = memory.bytes().div_ceil(size_of::<f32>());
            let mut zeros = HostBuffer::<f32>::ordinary(words).map_err(RunError::Memory)?;
            at[operand] = zeros.as_mut_ptr().cast();
            room.push(zeros);
        }
        // The buffers are as large as the problem states, and are dropped after the run.
        let report = self.bind_tensors(lengths, HostTensors::largest(at), workspace)?.run()?;
        drop(room);
        Ok(report)
    }
}
