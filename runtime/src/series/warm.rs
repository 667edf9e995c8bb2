//! Runs plans of series once over tensors of zeros, so that everything that happens only once is done.

use super::cpu::OnCpu;
use super::cpu::plan::CpuPlan;
use super::cuda::plan::{GpuPlan, OnGpu};
use crate::error::RunError;
use crate::operator::Operator;
use crate::plan::Plan;
use crate::report::Report;
use crate::workspace::Workspace;

impl<O, P> Plan<O>
where
    P: OnCpu + OnGpu,
    O: Operator<Problem = P, Cpu = CpuPlan<P>, Gpu = GpuPlan<P>>,
{
    /// Runs over f32 tensors of zeros in `workspace`. The first run in it then takes as long as later runs, and allocates
    /// nothing: every worker has been woken, and a GPU has launched its kernels and holds the device memory for copies of
    /// host tensors. In a workspace in the caller's memory, that device memory is freed again.
    ///
    /// It takes as long as a run, and host memory for the tensors. Contents of the workspace do not matter, and no tensor of
    /// the caller's is used. If a GPU fails, the report names the reason, as that of a run does.
    ///
    /// # Errors
    /// Returns an error if host memory is not available, or the errors of [`Plan::bind`](crate::Plan::bind) and
    /// [`Bound::run`](crate::Bound::run).
    pub fn warm(&self, workspace: &mut Workspace<O>) -> Result<Report, RunError> {
        self.run_over_zeros((), workspace)
    }
}
