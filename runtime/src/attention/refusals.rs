//! Counts the blocks of rows that Tensor Cores refused.

use super::cuda::plan::GpuPlan;
use super::run_memory::RunMemory;
use crate::error::RunError;

/// Blocks of rows of a run on Tensor Cores. Each block has rows of one head of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedBlocks {
    /// Number of blocks that the guard refused. The GPU computed them by f32 products.
    pub refused: usize,
    /// Number of all blocks.
    pub blocks: usize,
}

/// Location of the words in which a run on Tensor Cores marks the blocks that it refuses.
#[derive(Clone, Copy, Debug)]
pub struct Refusals {
    /// Offset of the first word in the memory of the GPU's workspace, in bytes.
    at: usize,
    /// Number of words, one for each block.
    blocks: usize,
}

impl Refusals {
    /// Returns the location of the words for runs of `plan`; `None` if the plan is not on Tensor Cores.
    pub fn of(plan: &GpuPlan) -> Option<Refusals> {
        let split = plan.choice.split?;
        let blocks = split.heads * split.row_blocks;
        // The words of the blocks are the last ones.
        let all: usize = split.words().iter().sum();
        Some(Refusals { at: plan.layout.zeroed.start + (all - blocks) * size_of::<u32>(), blocks })
    }

    /// Counts the blocks that a run refused. The words of the run are in `memory`. Waits if the run is still pending.
    ///
    /// # Errors
    /// Returns an error if the device fails, if host memory is not available, or if the memory does not belong to the run.
    pub fn count(self, memory: RunMemory<'_>) -> Result<RefusedBlocks, RunError> {
        let Refusals { at, blocks } = self;
        let RunMemory::Gpu(workspace) = memory else { return Err(RunError::NoRun) };
        workspace.reserve_fetched(blocks * size_of::<u32>())?;
        let words = workspace.fetch(at, blocks)?;
        let refused = words.iter().filter(|word| word.to_bits() != 0).count();
        Ok(RefusedBlocks { refused, blocks })
    }
}
