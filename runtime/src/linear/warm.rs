//! Runs a plan of linear attention over tensors of zeros, so that later runs do no one-time work.

use super::operator::{LinearPlan, LinearWorkspace};
use crate::cuda::memory::HostBuffer;
use crate::error::RunError;
use crate::report::Report;
use crate::tensors::largest;

impl LinearPlan {
    /// Runs over tensors of zeros in `workspace`. This wakes every worker. A GPU launches its kernels and allocates the
    /// device memory for copies of host tensors. So the next run in this workspace takes no longer than later runs and
    /// allocates nothing. If the workspace is in the caller's memory, the device memory for copies is freed again.
    ///
    /// Warming takes the time of one run, and host memory for the tensors. The contents of the workspace are
    /// irrelevant, and no tensor of the caller is used. If a GPU fails, the report states the reason, as after any run.
    ///
    /// Returns an error if host memory is not available. Also returns the errors of [`Plan::bind`](crate::Plan::bind)
    /// and [`Bound::run`](crate::Bound::run).
    pub fn warm(&self, workspace: &mut LinearWorkspace) -> Result<Report, RunError> {
        // One sequence has every token, the others have none.
        let packed = self.problem.spec().packed;
        let mut bounds = HostBuffer::<i64>::ordinary(packed.map_or(0, |n| n.saturating_add(1)))
            .map_err(RunError::Memory)?;
        if let [_, rest @ ..] = &mut *bounds {
            rest.fill(self.problem.tokens() as i64);
        }
        let bounds = packed.map(|_| &*bounds);
        let report = self.run_over_zeros(bounds, largest(), |_| true, |_, _| (), workspace)?;
        self.end_warm_up(workspace)?;
        Ok(report)
    }
}
