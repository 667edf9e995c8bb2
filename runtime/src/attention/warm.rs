//! Runs a plan over tensors of zeros, so that later runs need no one-time work.

use super::operator::{Plan, Workspace};
use crate::cuda::memory::HostBuffer;
use crate::error::RunError;
use crate::plan::Execution;
use crate::report::Report;
use crate::tensors::largest;
use crate::workspace::Memory;
use elsa_core::attention::{Lengths, MaskKind, Operand, Operands, Problem};

/// Lists of lengths for a call over zeros: every key is valid, and one of the packed sequences has every token.
pub(super) struct OpenLists {
    keys: Option<HostBuffer<i64>>,
    cu_seqlens_q: Option<HostBuffer<i64>>,
    cu_seqlens_k: Option<HostBuffer<i64>>,
}

impl OpenLists {
    /// Allocates the lists that calls of `problem` have.
    ///
    /// # Errors
    /// Returns an error if host memory is not available.
    pub fn of(problem: &Problem) -> Result<OpenLists, RunError> {
        let spec = problem.spec();
        let list = |first, count: usize, others| -> Result<_, RunError> {
            let mut list = HostBuffer::<i64>::ordinary(count).map_err(RunError::Memory)?;
            list.fill(others);
            list.iter_mut().take(1).for_each(|length| *length = first);
            Ok(list)
        };
        let keys = problem.keys() as i64;
        // One sequence has every token, and the others have none.
        let bounds =
            |tokens: usize| spec.packed.map(|n| list(0, n.saturating_add(1), tokens as i64)).transpose();
        Ok(OpenLists {
            keys: spec.key_lengths.then(|| list(keys, spec.query.batch(), keys)).transpose()?,
            cu_seqlens_q: bounds(spec.query.tokens())?,
            cu_seqlens_k: bounds(spec.key.tokens())?,
        })
    }

    /// Returns the lengths of a call with these lists.
    pub fn lengths(&self) -> Lengths<'_> {
        Lengths {
            keys: self.keys.as_deref(),
            cu_seqlens_q: self.cu_seqlens_q.as_deref(),
            cu_seqlens_k: self.cu_seqlens_k.as_deref(),
            ..Lengths::default()
        }
    }
}

/// Returns `true` if the problem has a mask of bytes, in which zeros exclude every key.
pub(super) fn has_bool_mask(problem: &Problem) -> bool {
    problem.spec().mask.is_some_and(|mask| mask.kind() == MaskKind::Bool)
}

impl Plan {
    /// Runs the plan over tensors of zeros that it allocates. The next run in this workspace then takes no longer than
    /// later runs, and allocates nothing:
    ///
    /// - On a GPU, the kernels of every kind of run, with states and without, have been loaded and launched. The
    ///   workspace has allocated the device memory for copies of host tensors and for states ([`Plan::staging_bytes`],
    ///   [`Plan::state_workspace_bytes`]), whether later runs copy their tensors or not. If the workspace is in the
    ///   caller's memory ([`Plan::workspace_on_device`]), the memory for copies is freed again: runs on device tensors
    ///   then allocate nothing, but a run that copies host tensors allocates.
    /// - On the CPU, every worker has been woken.
    ///
    /// This takes the time of one or two runs, and host memory for their tensors. The result does not depend on the
    /// contents of the workspace, and no tensor of the caller is used. If a GPU fails, the report states the reason,
    /// like the report of any run.
    ///
    /// Without this function, the GPU kernels of runs without states are loaded when the plan is created. A new
    /// workspace has the memory that such runs on device tensors need. Unless the GPU is integrated, it also has the
    /// staging memory for host tensors.
    ///
    /// # Errors
    /// Returns an error if host memory is not available. Also returns the errors of [`Plan::bind`] and
    /// [`Bound::run`](crate::Bound::run).
    pub fn warm(&self, workspace: &mut Workspace) -> Result<Report, RunError> {
        let lists = OpenLists::of(&self.problem)?;
        let lengths = lists.lengths();
        let is_bool = has_bool_mask(&self.problem);
        // The mask allows every key.
        let open = |operand: Operand, bytes: &mut [u8]| {
            if operand == Operand::Mask && is_bool {
                bytes.fill(1);
            }
        };
        let states = self.takes_states(workspace);
        let mut report = self.run_over_zeros(
            lengths,
            largest(),
            |operand| states || !operand.is_state(),
            open,
            workspace,
        )?;
        if let Execution::Gpu { .. } = self.execution
            && states
            && report.fallback.is_none()
        {
            let without = |operand: Operand| !operand.is_state();
            report = self.run_over_zeros(lengths, largest(), without, open, workspace)?;
        }
        self.end_warm_up(workspace)?;
        Ok(report)
    }

    /// Returns `true` if runs in the workspace may output states. Returns `false` if the plan's budget, or a workspace
    /// in the caller's memory, is too small for states.
    fn takes_states(&self, workspace: &Workspace) -> bool {
        match (&self.execution, &workspace.memory) {
            (Execution::Gpu { gpu: plan, .. }, Memory::Gpu { gpu: Ok(memory), .. }) => {
                let states = Operands::from_fn(|operand| operand == Operand::StateReference);
                plan.check_partials(true).is_ok() && self.check_memory(plan, &states, memory).is_ok()
            }
            _ => true,
        }
    }
}
