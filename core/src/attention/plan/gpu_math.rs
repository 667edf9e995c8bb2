//! Plans [`Method::Math`](super::Method::Math) on a GPU: the score matrix in memory, its softmax, and its product with the
//! values.
//!
//! There is nothing to choose: one kernel per step computes any problem except packed sequences, and the layout of the
//! memory depends on the shape alone.

use super::gpu::{MEASURING_BLOCKS, check_blocks, check_budget, check_counts};
use super::gpu_choice::{GpuChoice, GpuKernelSpec, GpuOptions};
use crate::attention::problem::Problem;
use crate::plan::ChooseError;
use crate::profile::GpuProfile;

/// Plans [`Method::Math`](super::Method::Math) for `problem` on `device`. `kernel` describes the kernel that multiplies
/// weights and values. The plan uses this description for all steps. [`GpuOptions::division`] and
/// [`GpuOptions::half_scores`] are ignored.
///
/// # Errors
/// Returns an error if the problem is packed, if a count exceeds 32 bits on the device, if the size of the workspace
/// overflows, or if the matrix of scores does not fit the budget.
pub fn choose_gpu_math(
    problem: &Problem,
    device: &GpuProfile,
    kernel: &GpuKernelSpec,
    options: &GpuOptions,
) -> Result<GpuChoice, ChooseError> {
    let s = problem.spec();
    if s.packed.is_some() {
        return Err(ChooseError::Packed);
    }
    check_counts(problem)?;
    let (keys, tile) = (problem.keys(), kernel.keys.max(1));
    let stride = keys.max(1).next_multiple_of(tile);
    let choice = GpuChoice {
        kernel: GpuKernelSpec { chain: problem.head_dim().max(1), ..*kernel },
        candidate: 0,
        heads_at_once: 1,
        longest_first: false,
        short_last: false,
        row_blocks: s.query.tokens().div_ceil(kernel.rows.max(1)),
        splits: 1,
        chunk: stride,
        partial_dim: problem.value_dim().next_multiple_of(4),
        rows: problem.rows(),
        sequences: if s.key_lengths { problem.sequences() } else { 0 },
        records: if options.certify { MEASURING_BLOCKS * device.sms.max(1) } else { 0 },
        scores: stride,
        error_budget: None,
        counting: 0,
        flushes: true,
        keys,
        serial: false,
        cut: s.window.left.is_some(),
        split: None,
    };
    check_budget(&choice, options.budget)?;
    let columns = stride.max(problem.value_dim()).div_ceil(tile);
    check_blocks(&[problem.sequences(), problem.heads(), choice.row_blocks, columns])?;
    Ok(choice)
}

#[cfg(test)]
mod tests;
