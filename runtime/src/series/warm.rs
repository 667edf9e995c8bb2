//! Runs a plan of a per-channel operator over tensors of zeros, so that later runs do no one-time work.

use super::cpu::OnCpu;
use super::cpu::plan::CpuPlan;
use super::cuda::plan::{GpuPlan, OnGpu};
use crate::error::RunError;
use crate::operator::Operator;
use crate::plan::Plan;
use crate::report::Report;
use crate::tensors::largest;
use crate::workspace::Workspace;

impl<O, P> Plan<O>
where
    P: OnCpu + OnGpu,
    O: Operator<Problem = P, Cpu = CpuPlan<P>, Gpu = GpuPlan<P>>,
{
    /// Runs over f32 tensors of zeros in `workspace`. This wakes every worker. A GPU launches its kernels and allocates
    /// the device memory for copies of host tensors. So the next run in this workspace takes no longer than later runs
    /// and allocates nothing. If the workspace is in the caller's memory, the device memory for copies is freed again.
    ///
    /// Warming takes the time of one run, and host memory for the tensors. The contents of the workspace are
    /// irrelevant, and no tensor of the caller is used. If a GPU fails, the report states the reason, as after any run.
    ///
    /// # Errors
    /// Returns an error if host memory is not available. Also returns the errors of [`Plan::bind`](crate::Plan::bind)
    /// and [`Bound::run`](crate::Bound::run).
    pub fn warm(&self, workspace: &mut Workspace<O>) -> Result<Report, RunError> {
        let report = self.run_over_zeros((), largest(), |_| true, |_, _| (), workspace)?;
        self.end_warm_up(workspace)?;
        Ok(report)
    }
}
