//! Plans attention on Tensor Cores: products of operands that are split into two f16 values each, or rounded to one on request.
//!
//! **The naive way** uses the tallest blocks and never divides the keys.
//!
//! **Why the code differs.**
//!
//! 1. *Not every problem.* The chooser returns `None` for head sizes that the kernels do not have, and with an error budget. Soft
//!    caps, masks, biases and shifted windows have kernels of their own.
//! 2. *Waves.* All blocks of a sequence take about the same time for a tile, so the time of a launch is the number of waves of
//!    resident blocks times the tiles of a block. The number of splits and the height of the blocks minimise it.
//! 3. *The batch does not matter.* The division affects the bits, as in [`choose_gpu`](super::choose_gpu). The lengths of packed
//!    sequences arrive with the data, so their keys are not divided, the tallest blocks compute them, and no product is too small.
//! 4. *One product* is a choice of the caller. Problems without such a kernel are computed as without this choice.
//! 5. *Rows that are refused* are computed by f32 products, in blocks that are at most as tall, with the same division.

use super::gpu::{MEASURING_BLOCKS, check_blocks, check_budget, check_counts};
use super::gpu_choice::{GpuChoice, GpuKernelSpec, GpuOptions, SplitChoice, TensorCores};
use crate::attention::problem::Problem;
use crate::dtype::DType;
use crate::profile::GpuProfile;

/// The kernels of a plan on Tensor Cores. Both support the head sizes of `attend`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SplitKernels {
    /// Kernel on Tensor Cores.
    pub attend: GpuKernelSpec,
    /// Kernel of f32 products for the rows that `attend` refuses.
    pub refused: GpuKernelSpec,
}

/// Oldest compute capability with the instructions of the kernels.
const CAPABILITY: (u32, u32) = (8, 0);
/// Largest number of splits.
const MOST_SPLITS: usize = 8;
/// Time in which the states of the splits are merged, in hundredths of a microsecond: of the launch, and of each MiB of states.
const MERGE: usize = 360;
const MERGE_MEBIBYTE: usize = 42;
/// Largest number of keys in a split: each tile adds a rounding.
const MOST_KEYS: usize = 1 << 13;
/// Time of a block before its first tile, in tiles.
const OUTSET: usize = 2;
/// Smallest number of products of scores in a sequence for which splitting keys and values pays.
const LEAST_WORK: usize = 1 << 25;

/// Chooses kernels and division for `problem` on the Tensor Cores of `device`. Returns `None` if the options do not allow it, if they
/// cannot compute the problem, if it is so small that f32 products are faster, or if the planes do not fit the budget or the device.
pub fn choose_gpu_split<'a>(
    problem: &Problem,
    device: &GpuProfile,
    kernels: impl IntoIterator<Item = &'a SplitKernels> + Clone,
    options: &GpuOptions,
) -> Option<GpuChoice> {
    let s = problem.spec();
    let (queries, keys, heads) = (s.query.tokens(), problem.keys(), problem.heads());
    let (d, dv) = (problem.head_dim(), problem.value_dim());
    let shifted = s.windows.is_some_and(|windows| windows.is_shifted());
    let changed = s.mask.is_some() || s.bias.is_some() || shifted || s.softcap.is_some();
    let packed = s.packed.is_some();
    let work = [queries, keys, d].iter().fold(heads, |all, n| all.saturating_mul(*n));
    let allowed = d.is_multiple_of(4)
        && dv.is_multiple_of(4)
        && d.min(dv) > 0
        && options.error_budget.is_none()
        && device.capability >= CAPABILITY
        && match options.tensor_cores {
            TensorCores::Off => false,
            TensorCores::Allow => packed || work >= LEAST_WORK,
            TensorCores::Always | TensorCores::F16 => true,
        };
    if !allowed || check_counts(problem).is_err() {
        return None;
    }
    let sms = device.sms.max(1);
    // Returns the time of a launch, and its number of splits.
    let race = |k: &SplitKernels| {
        let blocks = heads.saturating_mul(queries.div_ceil(k.attend.rows.max(1)));
        let (resident, tiles) = (k.attend.resources.resident(device), keys.div_ceil(k.attend.keys.max(1)));
        let time = |splits: usize| {
            let all = blocks.saturating_mul(splits);
            let waves = all.div_ceil(sms * resident);
            // Blocks that share an SM share its Tensor Cores.
            let shared = all.div_ceil(sms).clamp(1, resident);
            let pace = (k.attend.paces.late.shared * shared).max(k.attend.paces.late.alone);
            let states = heads.saturating_mul(queries).saturating_mul(4 * dv * splits);
            let merge = if splits > 1 { MERGE + (states >> 20) * MERGE_MEBIBYTE } else { 0 };
            waves * (tiles.div_ceil(splits) + OUTSET) * pace + merge
        };
        if packed {
            return (usize::MAX - k.attend.rows, 1);
        }
        let most = MOST_SPLITS.min(tiles).max(1);
        (keys.div_ceil(MOST_KEYS).clamp(1, most)..=most)
            .map(|splits| (time(splits), splits))
            .min()
            .unwrap_or((usize::MAX, 1))
    };
    let at_most = if packed { usize::MAX } else { queries.max(1) };
    let suits = |k: &SplitKernels| {
        let wide = k.attend.head_dim >= d.max(dv);
        let typed = k.attend.sixteen_bit == (s.dtype != DType::F32);
        let most = if changed { k.attend.most_queries } else { k.attend.most_plain };
        typed && wide && most >= at_most && k.attend.resources.shared <= device.shared_per_sm
    };
    let rounds = |k: &SplitKernels| k.attend.one_product && suits(k);
    let one_product = options.tensor_cores == TensorCores::F16 && kernels.clone().into_iter().any(rounds);
    let mut best: Option<(usize, usize, usize, &SplitKernels)> = None;
    let mut narrowest = usize::MAX;
    for (candidate, k) in kernels.into_iter().enumerate() {
        if k.attend.one_product != one_product || !suits(k) || k.attend.head_dim > narrowest {
            continue;
        }
        let (time, splits) = race(k);
        if k.attend.head_dim < narrowest || best.is_none_or(|(soonest, ..)| time < soonest) {
            best = Some((time, splits, candidate, k));
        }
        narrowest = k.attend.head_dim;
    }
    let (_, splits, candidate, kernels) = best?;
    let (kernel, attend) = (kernels.refused, kernels.attend);
    // Both kernels have the same splits.
    let tile = kernel.keys.max(attend.keys).max(1);
    let chunk = keys.div_ceil(splits).max(1).next_multiple_of(tile);
    let (sequences, batch) = (problem.sequences(), s.query.batch());
    // Packed sequences share the blocks and tiles of a head.
    let shared_by = |tokens: usize, at_once: usize| match packed {
        true => (tokens / at_once.max(1)).saturating_add(sequences),
        false => tokens.div_ceil(at_once.max(1)),
    };
    let choice = GpuChoice {
        kernel,
        candidate,
        heads_at_once: 1,
        longest_first: problem.grows_with_the_row() && !packed,
        short_last: false,
        row_blocks: queries.div_ceil(kernel.rows.max(1)),
        splits: keys.div_ceil(chunk).max(1),
        chunk,
        partial_dim: dv.next_multiple_of(4),
        rows: problem.rows(),
        sequences: if packed || s.key_lengths { sequences } else { 0 },
        records: if options.certify { MEASURING_BLOCKS * sms } else { 0 },
        scores: 0,
        error_budget: None,
        counting: 0,
        flushes: true,
        keys,
        serial: false,
        cut: s.window.left.is_some(),
        split: Some(SplitChoice {
            kernel: attend,
            row_blocks: shared_by(queries, attend.rows),
            tiles: shared_by(keys, attend.keys),
            kv_heads: problem.kv_heads(),
            heads,
            batch,
            sequences,
            packed,
        }),
    };
    let tiles = keys.div_ceil(attend.keys.max(1)).max(1);
    let fits = check_blocks(&[sequences, heads, choice.splits, choice.row_blocks.max(1)])
        .and_then(|()| check_blocks(&[sequences, problem.kv_heads(), 2, tiles]))
        .and_then(|()| check_budget(&choice, options.budget));
    fits.is_ok().then_some(choice)
}

#[cfg(test)]
mod tests;
