//! Predicts the latency of a call on a GPU that is not available, from the chooser's plan and the costs of its kernels.

use super::costs::COSTS;
use super::latency::{GpuCall, GpuMachine, GpuMerge, GpuPart, GpuPrediction, predict};
use elsa_core::attention::Problem;
use elsa_core::attention::plan::{GpuChoice, GpuOptions, choose_gpu};
use elsa_core::plan::ChooseError;
use elsa_kernels::cuda::attention::{merge_blocks, merging};
use elsa_kernels::cuda::{GPU_KERNELS, GpuKernel};

/// Predicted latency of a call, and the plan that the prediction assumes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forecast {
    /// Name of the attention kernel.
    pub kernel: &'static str,
    /// Number of splits of the keys.
    pub splits: usize,
    /// Instruction and cycle counts of one warp for a tile of keys that every row attends.
    pub tile: GpuPart,
    /// Predicted times of the launches.
    pub prediction: GpuPrediction,
}

/// Reason why the time of a call cannot be predicted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ForecastError {
    /// The chooser finds no plan for the call.
    #[error(transparent)]
    Choose(#[from] ChooseError),
    /// A property of the machine is unknown.
    #[error("{fact} of the GPU: not known; allowed: a profile that has it")]
    Unknown {
        /// Name of the property.
        fact: &'static str,
    },
    /// The GPU is too old for the kernels of this build.
    #[error("GPU of compute capability {}.{}: no kernel; allowed: 5.3 and newer", found.0, found.1)]
    Capability {
        /// Compute capability of the GPU.
        found: (u32, u32),
    },
    /// The machine code of a kernel has not been analysed well enough to predict its time.
    #[error("kernel {kernel}: of unknown cost, not predicted; allowed: calls that another kernel takes")]
    Cost {
        /// Name of the kernel.
        kernel: &'static str,
    },
    /// The time of the call depends on the data of the call, or no model covers a call with this property.
    #[error(
        "{found}: not predicted; allowed: fixed lengths, without mask, bias, window, soft cap and past; causal or not"
    )]
    Changed {
        /// Property of the call that prevents the prediction.
        found: &'static str,
    },
}

/// Oldest compute capability that can load the kernels.
const OLDEST: (u32, u32) = (5, 3);

impl GpuMachine {
    /// Checks that the properties that predictions need are known.
    ///
    /// # Errors
    /// Returns an error if one is not known, or if the GPU cannot load the kernels.
    pub(super) fn check(&self) -> Result<(), ForecastError> {
        let profile = &self.profile;
        let known = [
            ("number of multiprocessors", profile.sms > 0),
            ("clock", profile.mhz > 0),
            ("memory bandwidth", self.bandwidth_gbs > 0.0),
            ("launch", self.launch_us >= 0.0),
            ("efficiency", self.efficiency > 0.0),
        ];
        if profile.capability < OLDEST {
            return Err(ForecastError::Capability { found: profile.capability });
        }
        match known.into_iter().find(|(_, known)| !known) {
            Some((fact, _)) => Err(ForecastError::Unknown { fact }),
            None => Ok(()),
        }
    }
}

/// Predicts the latency of a call whose tensors are in the memory of `machine`. If `half_scores` is set, the plan may
/// sum short chains of f16 products in f16.
///
/// # Errors
/// Returns an error if the call cannot be predicted, or if too little is known about the machine.
pub fn forecast(
    problem: &Problem,
    machine: &GpuMachine,
    half_scores: bool,
) -> Result<Forecast, ForecastError> {
    machine.check()?;
    let (s, profile) = (problem.spec(), &machine.profile);
    let past = s.has_past();
    let changes = [
        ("mask", s.mask.is_some()),
        ("bias", s.bias.is_some()),
        ("windows", s.windows.is_some()),
        ("window", s.window.left.is_some()),
        ("softcap", s.softcap.is_some()),
        ("past", past),
        ("packed sequences", s.packed.is_some()),
        ("lengths of keys", s.key_lengths),
    ];
    if let Some((found, _)) = changes.into_iter().find(|(_, changed)| *changed) {
        return Err(ForecastError::Changed { found });
    }
    let kernels = || GPU_KERNELS.iter().filter_map(GpuKernel::attention);
    let choice =
        choose_gpu(problem, profile, kernels(), &GpuOptions { half_scores, ..GpuOptions::default() })?;
    of_choice(problem, machine, &choice)
}

/// Predicts the latency of the plan `choice` for `problem`, which has no mask, bias, window, soft cap, past or packing.
fn of_choice(problem: &Problem, machine: &GpuMachine, choice: &GpuChoice) -> Result<Forecast, ForecastError> {
    let s = problem.spec();
    let cost_of = |kernel: &'static str| {
        let found = COSTS.iter().find(|(name, _)| *name == kernel);
        found.map(|(_, cost)| cost).ok_or(ForecastError::Cost { kernel })
    };
    let cost = cost_of(choice.kernel.name)?;
    // If each block processes all splits of its rows, a launch takes as long as a launch with undivided blocks, plus
    // the time of the merges in place.
    let mut whole = *choice;
    (whole.splits, whole.chunk) = (1, choice.chunk.saturating_mul(choice.splits));
    let choice = if choice.serial { &whole } else { choice };
    let merge = match choice.divided() {
        true => {
            let (kernel, states) = merging(GPU_KERNELS, choice.splits).ok_or(ChooseError::NoKernel)?;
            let cost = *cost_of(kernel.name)?;
            let blocks = merge_blocks(states, choice.rows, choice.splits, choice.partial_dim);
            Some(GpuMerge { cost, resources: kernel.resources(), blocks })
        }
        false => None,
    };
    let blocks = problem.sequences() * problem.heads() * choice.splits * choice.row_blocks;
    let (rows, keys) = (problem.rows(), problem.sequences() * problem.kv_heads() * problem.keys());
    let elements = (rows + keys) * (problem.head_dim() + problem.value_dim());
    let bytes = elements as f64 * s.dtype.size() as f64;
    let causal = problem.grows_with_the_row();
    let padded = !choice.has_plain_tiles([problem.head_dim(), problem.value_dim()]);
    let (kernel, queries) = (&choice.kernel, s.query.tokens());
    let live = kernel.busy_warps(queries) as f64 / kernel.all_warps(queries).max(1) as f64;
    let call = GpuCall { blocks, live, keys: problem.keys(), causal, padded, bytes };
    let prediction = predict(choice, cost, merge.as_ref(), &call, machine);
    Ok(Forecast { kernel: choice.kernel.name, splits: choice.splits, tile: cost.plain, prediction })
}

#[cfg(test)]
pub(super) mod tests;
