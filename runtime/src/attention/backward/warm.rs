//! Runs a backward plan over tensors of zeros, so that later runs need no one-time work.

use super::operator::{BackwardPlan, BackwardWorkspace};
use crate::attention::warm::{OpenLists, has_bool_mask};
use crate::error::RunError;
use crate::report::Report;
use crate::tensors::Types;
use elsa_core::attention::backward::Operand;
use elsa_core::attention::{MaskKind, Spec};
use elsa_core::dtype::DType;

/// Returns the element types of a call whose output and upstream gradient are f32.
fn types(spec: &Spec) -> Types<Operand> {
    Types::from_fn(|operand| match operand {
        Operand::Query | Operand::Key | Operand::Value => spec.dtype,
        Operand::Mask => match spec.mask.map(|mask| mask.kind()) {
            Some(MaskKind::Additive(dtype)) => dtype,
            _ => DType::F32,
        },
        Operand::Bias => spec.bias.map_or(DType::F32, |bias| bias.dtype()),
        _ => DType::F32,
    })
}

impl BackwardPlan {
    /// Runs over tensors of zeros in `workspace`, which wakes every worker and touches the workspace. So the next run in
    /// this workspace takes no longer than later runs.
    ///
    /// Warming takes the time of one run, and host memory for the tensors. The contents of the workspace are irrelevant,
    /// and no tensor of the caller is used.
    ///
    /// # Errors
    /// Returns an error if host memory is not available. Also returns the errors of [`Plan::bind`](crate::Plan::bind)
    /// and [`Bound::run`](crate::Bound::run).
    pub fn warm(&self, workspace: &mut BackwardWorkspace) -> Result<Report, RunError> {
        let forward = self.problem.forward();
        let lists = OpenLists::of(forward)?;
        let is_bool = has_bool_mask(forward);
        // The mask allows every key.
        let open = |operand: Operand, bytes: &mut [u8]| {
            if operand == Operand::Mask && is_bool {
                bytes.fill(1);
            }
        };
        let keeps = |operand: Operand| !matches!(operand, Operand::StateReference | Operand::StateSum);
        let report = self.run_over_zeros(lists.lengths(), types(forward.spec()), keeps, open, workspace)?;
        self.end_warm_up(workspace)?;
        Ok(report)
    }
}
