//! Counts the blocks of rows that Tensor Cores refused.

use super::cuda::plan::GpuPlan;
use super::run_memory::RunMemory;
use crate::error::RunError;
use core::mem::offset_of;
use elsa_kernels::cuda::attention::Sequence;

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
    words: usize,
    /// The table of packed sequences, because some words then have no block.
    packed: Option<Packed>,
}

/// Location of the packed sequences of a run in the memory of the GPU's workspace.
#[derive(Clone, Copy, Debug)]
struct Packed {
    /// Offset of the table in bytes.
    at: usize,
    /// Number of sequences.
    sequences: usize,
    /// Number of query heads.
    heads: usize,
    /// Number of rows of a block.
    rows: usize,
}

impl Packed {
    /// Number of 32-bit words of a sequence, and that of its number of queries.
    const ENTRY: [usize; 2] = [size_of::<Sequence>() / 4, offset_of!(Sequence, queries) / 4];

    /// Number of words of the table.
    const fn words(&self) -> usize {
        self.sequences * Packed::ENTRY[0]
    }

    /// Returns the number of blocks of all heads. `table` has the words of the sequences.
    fn blocks(&self, table: &[f32]) -> usize {
        let [entry, queries] = Packed::ENTRY;
        let blocks =
            table.chunks_exact(entry).map(|words| (words[queries].to_bits() as usize).div_ceil(self.rows));
        self.heads * blocks.sum::<usize>()
    }
}

impl Refusals {
    /// Returns the location of the words for runs of `plan`; `None` if the plan is not on Tensor Cores.
    pub fn of(plan: &GpuPlan) -> Option<Refusals> {
        let (split, layout) = (plan.choice.split?, &plan.layout);
        let words = split.row_words();
        // The words of the blocks are the last ones.
        let all: usize = split.words().iter().sum();
        let packed = Packed {
            at: layout.sequences.start,
            sequences: split.sequences,
            heads: split.heads,
            rows: split.kernel.rows.max(1),
        };
        let packed = split.packed.then_some(packed);
        Some(Refusals { at: layout.zeroed.start + (all - words) * size_of::<u32>(), words, packed })
    }

    /// Counts the blocks that a run refused. The words of the run are in `memory`. Waits if the run is still pending.
    ///
    /// # Errors
    /// Returns an error if the device fails, if host memory is not available, or if the memory does not belong to the run.
    pub fn count(self, memory: RunMemory<'_>) -> Result<RefusedBlocks, RunError> {
        let Refusals { at, words, packed } = self;
        let RunMemory::Gpu(workspace) = memory else { return Err(RunError::NoRun) };
        let table = packed.map_or(0, |packed| packed.words());
        workspace.reserve_fetched(words.max(table) * size_of::<u32>())?;
        let blocks = match packed {
            Some(packed) => packed.blocks(workspace.fetch(packed.at, table)?),
            None => words,
        };
        let refused = workspace.fetch(at, words)?.iter().filter(|word| word.to_bits() != 0).count();
        // If every block is refused, words without a block are set too.
        Ok(RefusedBlocks { refused: refused.min(blocks), blocks })
    }
}
