//! The GPU plan: the kernels and the division of the keys, which are decided once per shape.

use crate::cuda::driver::{Context, Function};
use crate::cuda::gpu::Gpu;
use crate::error::{BindError, DeviceError, PlanError};
use elsa_core::attention::Problem;
use elsa_core::attention::certificate::Executed;
use elsa_core::attention::plan::{
    GpuChoice, GpuKernelSpec, GpuOptions, GpuWorkspaceLayout, SplitKernels, alternatives, choose_gpu,
    choose_gpu_math, choose_gpu_split,
};
use elsa_core::plan::ChooseError;
use elsa_kernels::cuda::attention::merging;
use elsa_kernels::cuda::{GPU_KERNELS, GpuKernel, HAS_TENSOR_CORES, Role};
use std::sync::{Arc, Once};

/// A plan for a GPU.
#[derive(Clone, Debug)]
pub struct GpuPlan {
    pub gpu: Arc<Gpu>,
    pub choice: GpuChoice,
    pub layout: GpuWorkspaceLayout,
    /// The attention kernel, which writes the output or partial states.
    pub attention: &'static GpuKernel,
    /// Kernels of the part that Tensor Cores compute; `attention` then computes the rows that they refuse.
    pub split: Option<Split>,
    pub budget: Option<usize>,
}

/// Compute capabilities on which `cuda_tensor::accumulators_keep_their_bits` has passed. Error bounds rest on its measurement.
const MEASURED: [(u32, u32); 1] = [(9, 0)];
/// Makes the warning about other GPUs appear once.
static UNMEASURED: Once = Once::new();

/// Kernels that compute on Tensor Cores.
#[derive(Clone, Copy, Debug)]
pub struct Split {
    /// Splits keys and values into planes.
    pub planes: &'static GpuKernel,
    /// Computes attention.
    pub attend: &'static GpuKernel,
}

/// The kernels of a plan, loaded in a context.
#[derive(Clone, Debug)]
pub struct Functions {
    /// Kernels of method math for scores and weights, which run before `attention`.
    pub matrix: Option<[Function; 2]>,
    /// Kernels of [`Split`], in launch order, which run before `attention`.
    pub split: Option<[Function; 2]>,
    pub attention: Function,
    pub merge: Option<Function>,
    pub present: Option<Function>,
    pub measure: Option<Function>,
}

/// Returns the kernel that writes the present tensors.
///
/// # Errors
/// Returns an error if this build has no such kernel.
pub fn presenting() -> Result<&'static GpuKernel, DeviceError> {
    let found = GPU_KERNELS.iter().find(|k| matches!(k.role, Role::AttentionPresent { .. }));
    found.ok_or(DeviceError::NoKernel { role: "the present" })
}

/// Returns the kernel that measures the tensors of a call.
///
/// # Errors
/// Returns an error if this build has no such kernel.
pub fn measuring() -> Result<&'static GpuKernel, DeviceError> {
    let found = GPU_KERNELS.iter().find(|k| matches!(k.role, Role::AttentionMeasure { .. }));
    found.ok_or(DeviceError::NoKernel { role: "measuring" })
}

/// Returns the kernels of method math in launch order, and the kernel specification of the last one.
///
/// # Errors
/// Returns an error if this build has no such kernels.
pub fn multiplying() -> Result<([&'static GpuKernel; 3], &'static GpuKernelSpec), DeviceError> {
    let find = |is: fn(&Role) -> bool| GPU_KERNELS.iter().find(|k| is(&k.role));
    let scores = find(|role| matches!(role, Role::MathScores { .. }));
    let weights = find(|role| matches!(role, Role::MathWeights { .. }));
    let values = GPU_KERNELS.iter().find_map(|k| match &k.role {
        Role::MathValues(spec) => Some((k, spec)),
        _ => None,
    });
    match (scores, weights, values) {
        (Some(scores), Some(weights), Some((values, spec))) => Ok(([scores, weights, values], spec)),
        _ => Err(DeviceError::NoKernel { role: "method math" }),
    }
}

/// Returns the kernels that compute on Tensor Cores, each with the kernel of the rows that it refuses and with the one that prepares
/// its planes.
fn splitting() -> impl Iterator<Item = (SplitKernels, Split, &'static GpuKernel)> {
    GPU_KERNELS.iter().filter_map(|attend| {
        let Role::AttentionSplit(spec) = attend.role else { return None };
        let own = (spec.sixteen_bit, spec.one_product, spec.head_dim, spec.keys);
        let planes = GPU_KERNELS.iter().find(|k| {
            matches!(k.role, Role::SplitPlanes { sixteen_bit, one_product, head_dim, keys, .. }
                if (sixteen_bit, one_product, head_dim, keys) == own)
        })?;
        let slow = GPU_KERNELS.iter().filter_map(|k| match k.role {
            Role::AttentionRefused(slow)
                if slow.sixteen_bit == spec.sixteen_bit && slow.head_dim >= spec.head_dim =>
            {
                Some((k, slow))
            }
            _ => None,
        });
        let (refused, slow) = slow.min_by_key(|(_, slow)| slow.head_dim)?;
        Some((SplitKernels { attend: spec, refused: slow }, Split { planes, attend }, refused))
    })
}

/// Finds the merge kernel for plans with an error budget. Returns the kernel, and the number of partial states per row
/// that the kernel merges at once.
///
/// # Errors
/// Returns an error if this build has no such kernel.
pub fn merging_within() -> Result<(&'static GpuKernel, usize), DeviceError> {
    let found = GPU_KERNELS.iter().find_map(|k| match k.role {
        Role::AttentionMergeWithin { states, .. } => Some((k, states)),
        _ => None,
    });
    found.ok_or(DeviceError::NoKernel { role: "merging inside an error budget" })
}

/// Function that returns the specification of an attention kernel; `None` if the kernel is not a candidate. There is
/// one such function for plans with an error budget and one for plans without.
type SpecOf = fn(&GpuKernel) -> Option<&GpuKernelSpec>;

/// Returns the function that selects the candidate kernels for these options.
fn spec_of(options: &GpuOptions) -> SpecOf {
    match options.error_budget {
        Some(_) => GpuKernel::within,
        None => GpuKernel::attention,
    }
}

/// Iterates over the candidate attention kernels.
fn specs(of: SpecOf) -> impl Iterator<Item = &'static GpuKernelSpec> + Clone {
    GPU_KERNELS.iter().filter_map(of)
}

/// Returns the choices that a measurement compares. The chooser's own choice comes first.
///
/// # Errors
/// Returns an error if the chooser rejects the problem.
pub fn choices(gpu: &Gpu, problem: &Problem, options: &GpuOptions) -> Result<Vec<GpuChoice>, ChooseError> {
    Ok(alternatives(problem, gpu.profile(), specs(spec_of(options)), options)?.collect())
}

impl GpuPlan {
    /// Chooses the kernels and loads them.
    ///
    /// # Errors
    /// Returns an error if the kernels do not support the problem, or if the device fails.
    pub fn new(gpu: &Arc<Gpu>, problem: &Problem, options: GpuOptions) -> Result<GpuPlan, PlanError> {
        let of = spec_of(&options);
        let choice = choose_gpu(problem, gpu.profile(), specs(of), &options)?;
        let mut attending = GPU_KERNELS.iter().filter(|k| of(k).is_some());
        let attention = attending.nth(choice.candidate).ok_or(ChooseError::NoKernel)?;
        GpuPlan::of(gpu, problem, choice, attention, None, options.budget)
    }

    /// Creates a plan whose products run on Tensor Cores, and loads its kernels. Returns `None` if Tensor Cores cannot compute the
    /// problem, or not as fast as f32 products.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn on_tensor_cores(
        gpu: &Arc<Gpu>,
        problem: &Problem,
        options: &GpuOptions,
    ) -> Result<Option<GpuPlan>, PlanError> {
        if !HAS_TENSOR_CORES {
            return Ok(None);
        }
        let kernels: Vec<_> = splitting().collect();
        let specs = kernels.iter().map(|(specs, ..)| specs);
        let Some(choice) = choose_gpu_split(problem, gpu.profile(), specs, options) else { return Ok(None) };
        let (_, split, refused) = kernels.get(choice.candidate).ok_or(ChooseError::NoKernel)?;
        let (major, minor) = gpu.profile().capability;
        if !MEASURED.contains(&(major, minor)) {
            UNMEASURED.call_once(|| {
                log::warn!(
                    "tensor_cores: the sums of Tensor Cores of compute capability {major}.{minor} have not been measured; error \
                     bounds assume those of 9.0. `cargo xtask gpu-test` measures them (accumulators_keep_their_bits)"
                );
            });
        }
        GpuPlan::of(gpu, problem, choice, refused, Some(*split), options.budget).map(Some)
    }

    /// Creates a plan of method math, and loads its kernels.
    ///
    /// # Errors
    /// Returns an error if the problem is packed, if the score matrix does not fit the budget, or if the device
    /// fails.
    pub fn math(gpu: &Arc<Gpu>, problem: &Problem, options: GpuOptions) -> Result<GpuPlan, PlanError> {
        let ([_, _, values], spec) = multiplying()?;
        let choice = choose_gpu_math(problem, gpu.profile(), spec, &options)?;
        GpuPlan::of(gpu, problem, choice, values, None, options.budget)
    }

    fn of(
        gpu: &Arc<Gpu>,
        problem: &Problem,
        choice: GpuChoice,
        attention: &'static GpuKernel,
        split: Option<Split>,
        budget: Option<usize>,
    ) -> Result<GpuPlan, PlanError> {
        let layout =
            GpuWorkspaceLayout::of(&choice, false).ok_or(ChooseError::Memory { needed: usize::MAX })?;
        let plan = GpuPlan { gpu: gpu.clone(), choice, layout, attention, split, budget };
        plan.functions(&gpu.context()?, problem, false)?;
        Ok(plan)
    }

    /// Returns the kernels that a run needs, loaded in `context`. `partial` must be `true` if the run outputs states or
    /// has no output tensor: every row then passes through partial states, even if the keys are not divided.
    ///
    /// # Errors
    /// Returns an error if the driver refuses a module.
    pub fn functions(
        &self,
        context: &Arc<Context>,
        problem: &Problem,
        partial: bool,
    ) -> Result<Functions, DeviceError> {
        let merge = match self.choice.divided() || partial {
            true => Some(self.gpu.function(context, self.merging()?.0)?),
            false => None,
        };
        let s = problem.spec();
        let present = match s.present_key.is_some() || s.present_value.is_some() {
            true => Some(self.gpu.function(context, presenting()?)?),
            false => None,
        };
        let measure = match self.choice.records > 0 {
            true => Some(self.gpu.function(context, measuring()?)?),
            false => None,
        };
        let matrix = match self.choice.scores > 0 {
            true => {
                let ([scores, weights, _], _) = multiplying()?;
                Some([self.gpu.function(context, scores)?, self.gpu.function(context, weights)?])
            }
            false => None,
        };
        let split = match &self.split {
            Some(Split { planes, attend }) => {
                Some([self.gpu.function(context, planes)?, self.gpu.function(context, attend)?])
            }
            None => None,
        };
        let attention = self.gpu.function(context, self.attention)?;
        Ok(Functions { matrix, split, attention, merge, present, measure })
    }

    /// Returns the kernel that merges the partial states of each row, and the number of states per row that the kernel
    /// reads at once.
    ///
    /// # Errors
    /// Returns an error if no kernel can merge the plan's number of states.
    pub fn merging(&self) -> Result<(&'static GpuKernel, usize), DeviceError> {
        match self.choice.error_budget {
            Some(_) => merging_within(),
            None => merging(GPU_KERNELS, self.choice.splits).ok_or(DeviceError::NoKernel { role: "merging" }),
        }
    }

    /// Returns the structure and the arithmetic of a run that outputs no states. The certificate and the error bounds
    /// of the run are computed from them.
    pub fn executed(&self) -> Executed {
        self.choice.executed()
    }

    /// Returns the size in bytes of a workspace that also has room for calls that output states or have no output
    /// tensor. If the keys are not divided, this workspace ends with the partial states of such calls. Returns
    /// `usize::MAX` on overflow.
    pub fn bytes_with_states(&self) -> usize {
        if self.choice.divided() {
            return self.layout.bytes;
        }
        let partials = GpuWorkspaceLayout::of(&self.choice, true).map(|layout| layout.partial_bytes());
        partials.and_then(|bytes| self.layout.bytes.checked_add(bytes)).unwrap_or(usize::MAX)
    }

    /// If `partial` is `true` (see [`GpuPlan::functions`]), checks that the partial states of a call fit the budget.
    ///
    /// # Errors
    /// If the partial states do not fit, returns an error that contains the number of bytes needed.
    pub fn check_partials(&self, partial: bool) -> Result<(), BindError> {
        if let (true, Some(budget)) = (partial, self.budget) {
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
    use elsa_kernels::cuda::attention::{MATH_ROWS, MATH_TILE};

    #[test]
    fn kernels_compute_and_merge() {
        let mut attention = 0;
        for spec in GPU_KERNELS.iter().filter_map(GpuKernel::attention) {
            attention += 1;
            let warps = spec.resources.threads.is_multiple_of(32);
            assert!(spec.rows > 0 && spec.keys > 0 && warps, "{}", spec.name);
        }
        assert!(attention > 0);
        assert!(presenting().is_ok());
        let (steps, spec) = multiplying().unwrap();
        assert_eq!([spec.rows, spec.keys], [MATH_TILE; 2]);
        assert_eq!(steps[1].resources().threads, 32 * MATH_ROWS, "a warp has a row");
        // The kernel for few states merges up to its limit; beyond that, the kernel for any number of states is chosen.
        let names = [1, 2, 4, 5, 8, 9, 1 << 20].map(|splits| merging(GPU_KERNELS, splits).unwrap().0.name);
        let (few, many) = ("merge_f32_s4__sm53", "merge_f32_s8__sm53");
        assert_eq!(names, [few, few, few, many, many, many, many]);
    }
}
