//! Addresses of checked host tensors, for callers that run a plan over the same memory many times.

use crate::error::{BindError, RunError};
use crate::operator::{LengthsOf, OperandOf, Operator};
use crate::plan::{Execution, Plan};
use crate::report::Report;
use crate::tensors::HostTensors;
use crate::workspace::Workspace;

/// The addresses of host tensors that [`Plan::addresses`] has checked. They borrow nothing, so the memory may be used for
/// other purposes between two runs.
#[derive(Debug)]
pub struct Addresses<O: Operator>(HostTensors<'static, OperandOf<O>>);

impl<O: Operator> Plan<O> {
    /// Checks the host tensors of a call against the problem, and returns their addresses for [`Plan::run_at`]. Writes
    /// nothing and allocates nothing.
    ///
    /// # Errors
    /// Returns an error if the data do not match the problem.
    pub fn addresses(
        &self,
        inputs: O::Inputs<'_>,
        outputs: O::Outputs<'_>,
    ) -> Result<Addresses<O>, BindError> {
        O::check(&self.problem, &inputs, &outputs)?;
        Ok(Addresses(HostTensors::at_places_of(inputs, outputs)))
    }

    /// Checks that tensors at addresses that have been checked can be bound to the workspace. On a GPU, this also allocates
    /// the memory that the call needs, as [`Plan::bind`] does.
    ///
    /// # Errors
    /// Returns the errors of [`Plan::bind`], except for data that do not match the problem.
    ///
    /// # Safety
    /// - *checked*: [`Plan::addresses`] of this plan has returned the addresses. `lengths`, and the entries of a bias
    ///   index, have been checked against the problem, and do not change during `'a`.
    /// - *memory*: during `'a`, every tensor is readable for the bytes that it had when it was checked. Outputs are also
    ///   writable, and nothing else uses their memory. Nothing writes to the inputs.
    pub unsafe fn can_bind_at<'a>(
        &'a self,
        lengths: LengthsOf<'a, O>,
        addresses: &Addresses<O>,
        workspace: &'a mut Workspace<O>,
    ) -> Result<(), BindError> {
        // The invariant of `HostTensors` holds by both clauses.
        match &self.execution {
            Execution::Cpu(plan) => self.fits(plan, workspace),
            Execution::Gpu { gpu, standby } => {
                self.bind_to_gpu(gpu, standby.as_ref(), lengths, addresses.0.again(), workspace).map(drop)
            }
        }
    }

    /// Runs the plan once over tensors at addresses that have been checked, like [`Plan::run`]. The tensors are not checked
    /// again.
    ///
    /// # Errors
    /// Returns the errors of [`Plan::run`], except for data that do not match the problem.
    ///
    /// # Safety
    /// - The clauses *checked* and *memory* of [`Plan::can_bind_at`].
    pub unsafe fn run_at<'a>(
        &'a self,
        lengths: LengthsOf<'a, O>,
        addresses: &Addresses<O>,
        workspace: &'a mut Workspace<O>,
    ) -> Result<Report, RunError> {
        // The invariant of `HostTensors` holds by both clauses.
        match &self.execution {
            Execution::Cpu(plan) => self.run_on_cpu(plan, lengths, &addresses.0, workspace),
            Execution::Gpu { .. } => self.run_bound(lengths, addresses.0.again(), workspace),
        }
    }
}
