//! The chooser for GPUs: the kernel, the blocks of rows, the division of the keys, and the workspace.
//!
//! A block of threads computes a block of query rows over a part of the keys. Where the blocks of rows of one
//! sequence do not fill the device, the keys are divided into `splits` parts of `chunk` keys. Each part then
//! leaves a partial state per row in memory, and a second kernel merges the states of a row in the balanced tree
//! over the numbers of the parts.
//!
//! The division is a function of queries, keys, heads, head sizes, device and budget, never of the batch, so that
//! a sequence gives the same bits alone and among others. A budget alone looks at the batch: where the partial
//! states of the whole batch do not fit it, the keys are not divided.

use super::choice::ChooseError;
use crate::attention::problem::Problem;
use crate::dtype::DType;
use crate::profile::GpuProfile;
use crate::scan::stack;

/// What a block of a GPU kernel takes of an SM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuResources {
    /// Threads of a block.
    pub threads: usize,
    /// Static shared memory of a block in bytes.
    pub shared: usize,
    /// Registers of a thread on sm_62.
    pub registers: usize,
}

/// An attention kernel of a GPU as chooser and certificate see it. Names follow the grammar of
/// [`KernelSpec`](super::KernelSpec).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuKernelSpec {
    /// Its name.
    pub name: &'static str,
    /// Largest head size of keys and of values.
    pub head_dim: usize,
    /// Whether it takes 16-bit types instead of f32.
    pub half: bool,
    /// Most query rows of a sequence that it is meant for.
    pub most_queries: usize,
    /// The same of a plain problem, whose window is open to the right, and which has neither a mask of elements nor a
    /// soft cap nor a past.
    pub most_plain: usize,
    /// Query rows of a block.
    pub rows: usize,
    /// Keys of a tile; the keys of a split are a multiple of it.
    pub keys: usize,
    /// What a block takes of an SM.
    pub resources: GpuResources,
    /// Keys in the longest chain of additions before sums are added to those in memory.
    pub flush: usize,
    /// Longest chain of multiply-adds in a score, for head sizes up to the kernel's.
    pub chain: usize,
    /// Largest relative error of a weight against `2^x`, as the instruction set guarantees it.
    pub exp2_relative: f64,
    /// Longest chain of f16 products that is summed in f16 before f32 takes over; zero where f32 values are multiplied.
    pub half_chain: usize,
}

impl GpuKernelSpec {
    /// Whether products of f16 values are summed in f16.
    #[must_use]
    pub const fn half_scores(&self) -> bool {
        self.half_chain > 0
    }
}

impl GpuResources {
    /// Blocks that an SM holds at once, by registers, shared memory and threads. At least one.
    #[must_use]
    pub fn resident(&self, device: &GpuProfile) -> usize {
        let per = |room: usize, takes: usize| room.checked_div(takes).unwrap_or(MOST_BLOCKS);
        // Registers are handed out to warps in units of eight for each thread.
        let registers = self.registers.next_multiple_of(8) * self.threads;
        per(REGISTERS, registers)
            .min(per(device.shared_per_sm.max(SHARED), self.shared))
            .min(per(THREADS, self.threads))
            .clamp(1, MOST_BLOCKS)
    }
}

/// Registers of an SM, of every device from compute capability 6.0 on.
const REGISTERS: usize = 65_536;
/// Threads that an SM of any such device holds, at least.
const THREADS: usize = 1024;
/// Blocks that an SM of any such device holds, at least.
const MOST_BLOCKS: usize = 16;
/// Shared memory of an SM of any such device, at least, in bytes.
const SHARED: usize = 64 << 10;
/// Blocks of an SM that the division aims at.
const FILL: usize = 2;
/// Parts of the keys where rows differ in their keys, while the blocks would fill the device fewer than
/// `CAUSAL_FILL` times.
const CAUSAL_SPLITS: usize = 4;
const CAUSAL_FILL: usize = 8;
/// Partial states of a sequence may take this many bytes, or as many as its output does.
const PARTS: usize = 16 << 20;
/// Tokens, rows and blocks are counted in 32 bits on the device, and sums of two lengths must not overflow.
const MOST_TOKENS: usize = 1 << 30;
/// Bytes of an entry in the table of sequences.
pub const SEQUENCE_BYTES: usize = 40;

/// Fewest keys of a part. Few keys are soon done, and parts of them share little work: there the last idle SM
/// counts for more than the merge costs.
const fn least(keys: usize) -> usize {
    if keys <= 1024 { 64 } else { 256 }
}

/// What the caller wishes of a plan for a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuOptions {
    /// Most bytes of workspace: partial states and tables.
    pub budget: Option<usize>,
    /// Whether products of halves may be summed in halves.
    pub half_scores: bool,
}

/// Everything that is decided before pointers are known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuChoice {
    /// The attention kernel.
    pub kernel: GpuKernelSpec,
    /// Its position among the candidates.
    pub candidate: usize,
    /// Blocks of rows of a sequence; of packed sequences, of one that holds every row.
    pub row_blocks: usize,
    /// Parts of the keys; one when they are not divided.
    pub splits: usize,
    /// Keys of a part, a multiple of the kernel's tile.
    pub chunk: usize,
    /// Singles from one partial weighted sum to the next: the head size of values, rounded up to a multiple of
    /// four.
    pub part_dim: usize,
    /// Query rows in all.
    pub rows: usize,
    /// Entries of the table of sequences; zero when one entry serves all.
    pub sequences: usize,
    /// Whether a kernel that finishes itself adds its sums to those in memory every [`GpuKernelSpec::flush`] keys.
    flushes: bool,
    /// Keys of the longest sequence.
    keys: usize,
}

/// What a run executes along the longest path from a key to the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuDepth {
    /// Merges of partial states.
    pub merges: usize,
    /// Additions, those of the merges included.
    pub additions: usize,
}

impl GpuChoice {
    /// Whether the attention kernel leaves partial states, and another one merges them.
    #[must_use]
    pub const fn divided(&self) -> bool {
        self.splits > 1
    }

    /// Additions and merges on the longest path, `states` saying whether states are given too: they go
    /// through memory even when the keys are not divided.
    #[must_use]
    pub fn depth(&self, states: bool) -> GpuDepth {
        let merges = stack::depth(self.splits);
        let leaf = self.chunk.min(self.keys).max(1);
        let chain = match self.flushes || self.divided() || states {
            true if self.kernel.flush > 0 && self.kernel.flush < leaf => {
                self.kernel.flush + leaf.div_ceil(self.kernel.flush)
            }
            _ => leaf,
        };
        GpuDepth { merges, additions: chain + merges }
    }
}

/// A part of the device workspace, in bytes from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuSpan {
    /// First byte, a multiple of 256.
    pub start: usize,
    /// Bytes.
    pub len: usize,
}

/// The device workspace: everything beyond inputs and outputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuWorkspaceLayout {
    /// References and sums of partial states, singles `[row][split][2]`.
    pub part_ms: GpuSpan,
    /// Weighted sums of partial states, singles `[row][split][part_dim]`.
    pub part_w: GpuSpan,
    /// The table of sequences.
    pub sequences: GpuSpan,
    /// Bytes in all.
    pub bytes: usize,
}

impl GpuWorkspaceLayout {
    /// Lays out the workspace of a choice; none if it cannot be counted. `states` gives partial states room even
    /// when the keys are not divided.
    #[must_use]
    pub fn of(choice: &GpuChoice, states: bool) -> Option<GpuWorkspaceLayout> {
        let parts = if choice.divided() || states { choice.rows.checked_mul(choice.splits)? } else { 0 };
        let mut at = 0usize;
        let mut take = |len: usize| {
            let span = GpuSpan { start: at, len };
            at = at.checked_add(len)?.checked_next_multiple_of(256)?;
            Some(span)
        };
        let part_ms = take(parts.checked_mul(8)?)?;
        let part_w = take(parts.checked_mul(4)?.checked_mul(choice.part_dim)?)?;
        let sequences = take(choice.sequences.checked_mul(SEQUENCE_BYTES)?)?;
        (at <= isize::MAX as usize).then_some(GpuWorkspaceLayout { part_ms, part_w, sequences, bytes: at })
    }
}

/// Chooses kernel, blocks of rows and division of the keys for `problem` on `device`. Of `kernels` that suffice the
/// one is taken that computes the fewest rows and dims, with those that pad its blocks; of equal ones, that for
/// the fewest queries. Packed sequences, whose lengths come with the data, take one for any number of queries,
/// and undivided keys.
///
/// # Errors
/// A head size, or a number of tokens or rows, that no kernel takes; a budget that even the undivided form
/// exceeds.
pub fn choose_gpu<'a>(
    problem: &Problem,
    device: &GpuProfile,
    kernels: impl IntoIterator<Item = &'a GpuKernelSpec>,
    options: &GpuOptions,
) -> Result<GpuChoice, ChooseError> {
    let s = problem.spec();
    let (queries, keys, heads) = (s.query.tokens(), problem.keys(), problem.heads());
    let (d, dv) = (problem.head_dim(), problem.value_dim());
    let half = s.dtype != DType::F32;
    let packed = s.packed.is_some();
    let at_once = if packed { usize::MAX } else { queries };
    let causal = problem.grows_with_the_row();
    let past = s.past_key.is_some() || s.past_value.is_some();
    let plain = !causal && s.mask.is_none() && s.softcap.is_none() && !past;
    let mut widest = 0;
    let mut best: Option<(_, usize, GpuKernelSpec)> = None;
    for (candidate, k) in kernels.into_iter().enumerate() {
        let scores = !k.half_scores() || (options.half_scores && s.dtype == DType::F16);
        let most = if plain { k.most_plain } else { k.most_queries };
        if k.half != half || at_once > most || !scores {
            continue;
        }
        widest = widest.max(k.head_dim);
        // Rows and dims that are computed, padded ones too. Packed sequences have any number of rows each.
        let rows = if packed { 1 } else { queries.max(1).next_multiple_of(k.rows.max(1)) };
        let work = rows.saturating_mul(k.head_dim);
        // Among equals, sums in halves are what was asked for.
        let rank = (work, most, k.head_dim, k.rows, !k.half_scores());
        if k.head_dim >= d.max(dv) && best.is_none_or(|(least, ..)| rank < least) {
            best = Some((rank, candidate, *k));
        }
    }
    let Some((_, candidate, kernel)) = best else {
        return Err(match widest {
            0 => ChooseError::NoKernel,
            max => ChooseError::HeadSize { found: d.max(dv), max },
        });
    };
    let row_blocks = queries.div_ceil(kernel.rows);
    let counts = [
        ("queries", queries),
        ("keys", keys),
        ("heads", heads),
        ("sequences", problem.sequences()),
        ("rows", problem.rows()),
        ("head size", d.max(dv)),
    ];
    for (axis, found) in counts {
        if found > MOST_TOKENS {
            return Err(ChooseError::Extent { axis, found, max: MOST_TOKENS });
        }
    }
    let part_dim = dv.next_multiple_of(4);
    let sequences = if packed || s.key_lengths { problem.sequences() } else { 0 };
    let whole = keys.max(1).next_multiple_of(kernel.keys.max(1));
    let mut choice = GpuChoice {
        kernel,
        candidate,
        row_blocks,
        splits: 1,
        chunk: whole,
        part_dim,
        rows: problem.rows(),
        sequences,
        flushes: !half,
        keys,
    };
    if !packed {
        let fill = device.sms.max(1) * kernel.resources.resident(device).min(FILL);
        let blocks = row_blocks.saturating_mul(heads).max(1);
        // As many as come nearest to filling the device.
        let even = (fill + blocks / 2) / blocks;
        // The blocks of the last rows take longest, and end last unless they are cut.
        let wanted = if causal && blocks < CAUSAL_FILL * fill { even.max(CAUSAL_SPLITS) } else { even };
        let least = least(keys);
        let output = heads.saturating_mul(queries).saturating_mul(dv).saturating_mul(s.dtype.size());
        let part = heads.saturating_mul(queries).saturating_mul(4 * (part_dim + 2));
        let held = output.max(PARTS) / part.max(1);
        let splits = wanted.min(keys / least).min(held).max(1);
        if splits > 1 {
            choice.chunk = keys.div_ceil(splits).next_multiple_of(kernel.keys.max(1));
            choice.splits = keys.div_ceil(choice.chunk);
        }
    }
    let size = |choice: &GpuChoice| GpuWorkspaceLayout::of(choice, false).map(|layout| layout.bytes);
    if let Some(budget) = options.budget
        && choice.divided()
        && size(&choice).is_none_or(|bytes| bytes > budget)
    {
        (choice.splits, choice.chunk) = (1, whole);
    }
    match (size(&choice), options.budget) {
        (None, _) => return Err(ChooseError::Memory { needed: usize::MAX }),
        (Some(needed), Some(budget)) if needed > budget => {
            return Err(ChooseError::Budget { needed, budget });
        }
        _ => {}
    }
    let blocks = [heads, choice.splits, row_blocks]
        .iter()
        .try_fold(problem.sequences(), |a, n| a.checked_mul(*n))
        .unwrap_or(usize::MAX);
    if blocks > i32::MAX as usize {
        return Err(ChooseError::Extent { axis: "blocks", found: blocks, max: i32::MAX as usize });
    }
    Ok(choice)
}

#[cfg(test)]
#[path = "gpu_tests.rs"]
mod tests;
