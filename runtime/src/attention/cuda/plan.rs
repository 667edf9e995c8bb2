//! The GPU plan: the kernels and the division of the keys, decided once per shape.

use crate::cuda::driver::{Context, Function};
use crate::cuda::gpu::Gpu;
use crate::error::{BindError, DeviceError, PlanError};
use elsa_core::attention::Problem;
use elsa_core::attention::certificate::Executed;
use elsa_core::attention::plan::{
    ChooseError, GpuChoice, GpuKernelSpec, GpuOptions, GpuWorkspaceLayout, choose_gpu,
};
use elsa_kernels::cuda::{GPU_KERNELS, GpuKernel, Role};
use std::sync::Arc;

/// A plan for a GPU.
#[derive(Clone, Debug)]
pub struct GpuPlan {
    pub gpu: Arc<Gpu>,
    pub choice: GpuChoice,
    pub layout: GpuWorkspaceLayout,
    pub attention: &'static GpuKernel,
    pub budget: Option<usize>,
}

/// The kernels of a plan, loaded in a context.
#[derive(Clone, Debug)]
pub struct Functions {
    pub attention: Function,
    pub merge: Option<Function>,
    pub present: Option<Function>,
}

/// The description of an attention kernel for the chooser; `None` for kernels of other roles.
fn spec(kernel: &GpuKernel) -> Option<GpuKernelSpec> {
    match kernel.role {
        Role::Attention { head_dim, half, half_scores, most_queries, most_plain } => Some(GpuKernelSpec {
            name: kernel.name,
            head_dim,
            sixteen_bit: half,
            half_scores,
            most_queries,
            most_plain,
            threads: kernel.threads as usize,
            rows: kernel.rows,
            keys: kernel.keys,
            shared: kernel.shared,
            registers: kernel.registers,
            flush: kernel.flush,
        }),
        Role::Merge { .. } | Role::Present => None,
    }
}

/// The only kernel of a role. `name` names the role in an error.
///
/// # Errors
/// Returns an error if this build has no such kernel.
pub fn of_role(role: Role, name: &'static str) -> Result<&'static GpuKernel, DeviceError> {
    GPU_KERNELS.iter().find(|k| k.role == role).ok_or(DeviceError::NoKernel { role: name })
}

/// The kernel that merges `splits` partial states of a row, and the number of states that it reads at once. Of the
/// sufficient kernels, returns the one with the lowest limit.
///
/// # Errors
/// Returns an error if no kernel suffices.
pub fn merging(splits: usize) -> Result<(&'static GpuKernel, usize), DeviceError> {
    let suffices = |k: &'static GpuKernel| match k.role {
        Role::Merge { states, most } if splits <= most => Some((most, states, k)),
        _ => None,
    };
    let fewest = GPU_KERNELS.iter().filter_map(suffices).min_by_key(|(most, ..)| *most);
    fewest.map(|(_, states, k)| (k, states)).ok_or(DeviceError::NoKernel { role: "merging" })
}

impl GpuPlan {
    /// Chooses the kernels and loads them.
    ///
    /// # Errors
    /// Returns an error if the kernels do not support the problem, or if the device fails.
    pub fn new(gpu: &Arc<Gpu>, problem: &Problem, options: GpuOptions) -> Result<GpuPlan, PlanError> {
        let specs = GPU_KERNELS.iter().filter_map(spec).collect::<Vec<_>>();
        let choice = choose_gpu(problem, gpu.profile(), &specs, &options)?;
        let mut kernels = GPU_KERNELS.iter().filter(|kernel| spec(kernel).is_some());
        let attention = kernels.nth(choice.candidate).ok_or(ChooseError::NoKernel)?;
        let layout =
            GpuWorkspaceLayout::of(&choice, false).ok_or(ChooseError::Memory { needed: usize::MAX })?;
        let plan = GpuPlan { gpu: gpu.clone(), choice, layout, attention, budget: options.budget };
        plan.functions(&gpu.context()?, problem, false)?;
        Ok(plan)
    }

    /// The kernels that a run needs, loaded in `context`. `states` says whether the run outputs states.
    ///
    /// # Errors
    /// Returns an error if the driver refuses a module.
    pub fn functions(
        &self,
        context: &Arc<Context>,
        problem: &Problem,
        states: bool,
    ) -> Result<Functions, DeviceError> {
        let merge = match self.choice.divided() || states {
            true => Some(self.gpu.function(context, merging(self.choice.splits)?.0)?),
            false => None,
        };
        let s = problem.spec();
        let present = match s.present_key.is_some() || s.present_value.is_some() {
            true => Some(self.gpu.function(context, of_role(Role::Present, "the present")?)?),
            false => None,
        };
        Ok(Functions { attention: self.gpu.function(context, self.attention)?, merge, present })
    }

    /// The structure that a run without states executes, for its certificate.
    pub fn executed(&self) -> Executed {
        let path = self.choice.longest_path(false);
        let block = self.choice.kernel.keys.max(1);
        Executed {
            block,
            segment_blocks: self.choice.chunk / block,
            merge_depth: path.merges,
            additions: path.additions,
            half_chain: self.attention.half_chain,
        }
    }

    /// Checks that the partial states of a call fit the budget. `states` says whether the call outputs states.
    ///
    /// # Errors
    /// Returns an error with the number of bytes needed if they do not fit.
    pub fn check_states(&self, states: bool) -> Result<(), BindError> {
        if let (true, Some(budget)) = (states, self.budget) {
            let needed = GpuWorkspaceLayout::of(&self.choice, true).map_or(usize::MAX, |layout| layout.bytes);
            if needed > budget {
                return Err(BindError::Budget { needed, budget });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elsa_core::attention::bound::rounding::APPROXIMATION;
    use elsa_core::dtype::DType;

    #[test]
    fn kernels_are_within_what_the_bound_counts() {
        let mut attention = 0;
        for kernel in GPU_KERNELS {
            let Some(spec) = spec(kernel) else { continue };
            attention += 1;
            assert!(kernel.exp2_relative <= APPROXIMATION * DType::F32.unit_roundoff(), "{}", kernel.name);
            assert_eq!(spec.half_scores, kernel.half_chain > 0, "{}", kernel.name);
            assert!(spec.rows > 0 && spec.keys > 0 && spec.threads.is_multiple_of(32), "{}", kernel.name);
        }
        assert!(attention > 0);
        assert!(of_role(Role::Present, "the present").is_ok());
        // The kernel for few states where it suffices, else the one for any number.
        let names = [1, 2, 4, 5, 8, 9, 1 << 20].map(|splits| merging(splits).unwrap().0.name);
        assert_eq!(names, ["merge_few", "merge_few", "merge_few", "merge", "merge", "merge", "merge"]);
    }
}
