//! Descriptions of GPU kernels, the result of the GPU choosers, and the layout of the workspace.

use super::choice::{Division, LongestPath, chained, dealt};
use super::race::Paces;
use crate::attention::certificate::{Executed, Order};
use crate::attention::measured::MEASURED;
use crate::attention::traversal::odds;
use crate::profile::GpuProfile;
use crate::scan::{ceil_log2, stack};

/// The resources of an SM that a block of a GPU kernel occupies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuResources {
    /// Number of threads per block.
    pub threads: usize,
    /// Static shared memory per block, in bytes.
    pub shared: usize,
    /// Number of registers per thread, as compiled for a Jetson Nano or a Jetson TX2.
    pub registers: usize,
}

/// Order in which a GPU kernel sums over the keys of a split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Summation {
    /// Keys are processed one tile after another. `W` accumulates along the keys. If `W` is stored in memory in f32,
    /// the sum is added to memory after every `flush` keys. Each lane sums the weights of `columns` keys per tile and
    /// adds the result to its sum over the earlier tiles. At the end a tree sums over the lanes of a row.
    Tiles {
        /// Number of keys in a tile whose weights one lane sums.
        columns: usize,
        /// Number of keys between two additions to memory.
        flush: usize,
    },
    /// Keys are distributed over groups of lanes, each with a separate state. After every `flush` keys, a group adds
    /// its sums to outer sums in registers. The states of the groups merge in a balanced tree.
    Groups {
        /// Number of groups.
        groups: usize,
        /// Number of keys of one group between two additions to the outer sums.
        flush: usize,
    },
}

impl Summation {
    /// Returns two numbers for `keys` keys in tiles of `tile` keys: the largest number of additions that a weight
    /// passes through on its way into `S`, and the largest number that a weighted value passes through on its way into
    /// `W`. `in_memory` is `true` if `W` is accumulated in memory in f32.
    pub(super) fn additions(self, tile: usize, keys: usize, in_memory: bool) -> [usize; 2] {
        match self {
            Summation::Tiles { columns, flush } => {
                let w = chained(keys, if in_memory { flush } else { usize::MAX });
                let lanes = tile / columns.max(1);
                [dealt(keys.min(tile), lanes) + keys.div_ceil(tile.max(1)).saturating_sub(1), w]
            }
            // A lane adds up at most as many weights as its group multiplies values.
            Summation::Groups { groups, flush } => {
                [chained(keys.div_ceil(groups.max(1)), flush) + ceil_log2(keys.min(groups)); 2]
            }
        }
    }
}

/// Properties of a GPU attention kernel that the chooser and the certificate use. Names follow the grammar of
/// [`KernelSpec`](super::KernelSpec).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuKernelSpec {
    /// Name of the kernel.
    pub name: &'static str,
    /// Largest head size of keys and of values.
    pub head_dim: usize,
    /// `true` if its tensors have a 16-bit type (f16 or bf16), `false` if they are f32.
    pub sixteen_bit: bool,
    /// Largest number of query rows per sequence for which the kernel is used.
    pub most_queries: usize,
    /// Like `most_queries`, for a plain problem. A plain problem is not causal, has no window that is limited on the
    /// right, and has no mask, bias, shifted windows, soft cap or past.
    pub most_plain: usize,
    /// Like `most_plain`, for a problem that is causal, or whose window is limited on the right.
    pub most_causal: usize,
    /// Like `most_queries`, for a problem whose head sizes equal the kernel's and whose scores are changed only by a
    /// boolean mask, by one mask or bias of f32 elements with key stride 1, or by both.
    pub most_added: usize,
    /// `true` if the kernel is only for problems with at most one row block per SM of the device. Plain problems are
    /// exempt from this limit, but their keys are not divided if the row blocks outnumber half the SMs.
    pub few_blocks: bool,
    /// `true` if the kernel takes part in the race even for plain problems with more than `most_plain` queries,
    /// provided that its blocks leave half of the SMs idle. The keys are then not divided.
    pub joins_race: bool,
    /// `true` if a block can process all splits of its rows one after another, for problems whose scores are unchanged.
    pub serial: bool,
    /// Largest number of splits whose states the last block of a row block can merge; zero if it merges none.
    pub merges: usize,
    /// `true` if a tile takes longer when some row does not attend all keys of the tile.
    pub slow_edges: bool,
    /// `true` if warps without rows skip the multiplications.
    pub idles: bool,
    /// Number of query rows per block.
    pub rows: usize,
    /// Time that a block takes per tile, on each generation of devices.
    pub paces: Paces,
    /// Number of keys per tile; the size of a split is a multiple of this number.
    pub keys: usize,
    /// The resources that a block occupies.
    pub resources: GpuResources,
    /// Order in which the kernel sums over the keys of a split.
    pub summation: Summation,
    /// Longest chain of multiply-adds in a score, for head sizes up to the kernel's.
    pub chain: usize,
    /// Largest relative error of a weight, compared with `2^x`, as guaranteed by the instruction set.
    pub exp2_relative: f64,
    /// Longest chain of f16 products that is summed in f16 before the sum continues in f32; zero if products are f32.
    pub half_chain: usize,
    /// `true` if a kernel on Tensor Cores rounds f32 operands and weights to one f16 value each.
    pub one_product: bool,
}

impl GpuKernelSpec {
    /// Returns `true` if chains of f16 products are summed in f16.
    #[must_use]
    pub const fn half_scores(&self) -> bool {
        self.half_chain > 0
    }
}

/// Number of lanes per warp.
const WARP: usize = 32;

impl GpuKernelSpec {
    /// Returns the number of query rows per warp. In few-row kernels, the lanes of a warp share all rows of a block.
    const fn warp_rows(&self) -> usize {
        let warps = match self.summation {
            Summation::Tiles { .. } => self.resources.threads / WARP,
            Summation::Groups { .. } => 1,
        };
        let rows = self.rows / if warps > 0 { warps } else { 1 };
        if rows > 0 { rows } else { 1 }
    }

    /// Returns the number of warps that have rows, over all blocks for `queries` query rows.
    #[must_use]
    pub const fn busy_warps(&self, queries: usize) -> usize {
        if self.idles { queries.div_ceil(self.warp_rows()) } else { self.all_warps(queries) }
    }

    /// Returns the total number of warps, over all blocks for `queries` query rows.
    #[must_use]
    pub const fn all_warps(&self, queries: usize) -> usize {
        let rows = if self.rows > 0 { self.rows } else { 1 };
        queries.div_ceil(rows) * (rows / self.warp_rows())
    }
}

impl GpuResources {
    /// Returns the number of blocks that can be resident on an SM at once, limited by registers, shared memory and threads.
    /// The result is at least 1.
    #[must_use]
    pub fn resident(&self, device: &GpuProfile) -> usize {
        let per = |room: usize, takes: usize| room.checked_div(takes).unwrap_or(RESIDENT_BLOCKS);
        // Registers are allocated per warp, in units of eight for each thread.
        let registers = self.registers.next_multiple_of(8) * self.threads;
        per(SM_REGISTERS, registers)
            .min(per(device.shared_per_sm.max(SM_SHARED), self.shared))
            .min(per(SM_THREADS, self.threads))
            .clamp(1, RESIDENT_BLOCKS)
    }
}

/// Number of counters of finished splits in a workspace, one for each row block of each head. If a problem has more row
/// blocks, a merge kernel merges the splits.
pub const ARRIVALS: usize = 1024;

/// Number of registers per SM, on every device of compute capability 5.3 or later.
const SM_REGISTERS: usize = 65_536;
/// Lower bound of the number of resident threads per SM, from compute capability 5.3 on.
const SM_THREADS: usize = 1024;
/// Lower bound of the number of resident blocks per SM, from compute capability 5.3 on.
const RESIDENT_BLOCKS: usize = 16;
/// Lower bound of the shared memory per SM, in bytes, from compute capability 5.3 on.
const SM_SHARED: usize = 64 << 10;
/// Size in bytes of an entry of the table of sequences.
pub const SEQUENCE_BYTES: usize = 40;

/// Use of a GPU's Tensor Cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TensorCores {
    /// Products are f32 products.
    #[default]
    Off,
    /// Products may be those of operands that are split into two f16 values each, or of 16-bit operands as they are, with f32
    /// sums. A guard decides for each block of rows of each head whether that is as exact as f32 products. GPUs of compute
    /// capability 8.0 and later have the kernels.
    Allow,
    /// Like `Allow`, even for problems that are so small that f32 products are faster.
    Always,
    /// Like `Always`, but less accurate: f32 operands and weights are rounded to one f16 value each, with a scale for each
    /// tile, so their significands have 11 bits, like those of TF32 products. 16-bit tensors, masks, biases and shifted windows
    /// are computed as with `Always`.
    F16,
}

/// Options of a plan for a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GpuOptions {
    /// Largest workspace for partial states and tables, in bytes; `None` for no limit.
    pub budget: Option<usize>,
    /// `true` if chains of f16 products may be summed in f16.
    pub half_scores: bool,
    /// `true` if a run measures its tensors for a certificate.
    pub certify: bool,
    /// The kernel and the number of splits, if a measurement or the caller has already decided them. The chooser then
    /// only checks the decision. Packed sequences are never divided, and a budget without room for the splits leaves
    /// the keys undivided.
    pub division: Option<Division>,
    /// Use of Tensor Cores.
    pub tensor_cores: TensorCores,
    /// Largest share of weights that a row may skip; `None` if rows skip nothing. With an error budget, all candidates must
    /// be kernels that support skipping.
    pub error_budget: Option<f32>,
}

/// The result of the GPU chooser: all decisions made before pointers are known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuChoice {
    /// The attention kernel.
    pub kernel: GpuKernelSpec,
    /// Index of the kernel in the list of kernels that the chooser received.
    pub candidate: usize,
    /// Number of query heads per block: all heads that share a key head, or one.
    pub heads_at_once: usize,
    /// `true` if the blocks of the last rows of all heads start before all other blocks.
    pub longest_first: bool,
    /// `true` if the blocks of the last rows of all heads start after all other blocks. They have warps without rows, and
    /// fill the SMs that the other blocks leave idle at the end.
    pub short_last: bool,
    /// Number of row blocks per sequence. In a packed problem, a sequence is assumed to have all rows.
    pub row_blocks: usize,
    /// Number of splits of the keys; 1 if they are not divided.
    pub splits: usize,
    /// Number of keys per split, a multiple of the kernel's tile.
    pub chunk: usize,
    /// `true` if a block processes all splits of its rows one after another and merges their states itself, because the
    /// blocks of the batch already fill the device. The bits stay the same. A run that outputs states has one block per
    /// split.
    pub serial: bool,
    /// Distance between consecutive partial weighted sums, in f32 values: the head size of values, rounded up to a
    /// multiple of four.
    pub partial_dim: usize,
    /// Total number of query rows.
    pub rows: usize,
    /// Number of entries of the table of sequences; zero if one entry describes all sequences.
    pub sequences: usize,
    /// Number of records of measurements, one per measuring block; zero if a run does not measure its tensors.
    pub records: usize,
    /// Distance between consecutive rows of the score matrix of [`Method::Math`](super::Method::Math), in f32 values;
    /// zero without a matrix.
    pub scores: usize,
    /// Largest share of weights that a row may skip; `None` if rows skip nothing.
    pub error_budget: Option<f32>,
    /// Number of counters of skipped tiles, one per block; zero without an error budget. The blocks of packed sequences
    /// are not known before a run. A packed problem has these counters for each head: one for each block that all rows
    /// together fill, plus one for each sequence.
    pub counting: usize,
    /// `true` if sums of [`Summation::Tiles`] are regularly added to outer sums. The outer sums are in the output if
    /// the attention kernel writes the output in f32, otherwise in registers.
    pub(super) flushes: bool,
    /// Number of keys of the longest sequence.
    pub(super) keys: usize,
    /// `true` if a window keeps rows from attending the first keys.
    pub(super) cut: bool,
    /// The part that Tensor Cores compute; `None` if they compute nothing. `kernel` then computes only the rows that they
    /// refuse.
    pub split: Option<SplitChoice>,
}

/// Number of products that an instruction of a Tensor Core adds to a sum.
const DEPTH: usize = 16;
/// Bound of the error of such an instruction, in units of 2^-24 of the sum of all magnitudes: a truncation to 2^-24 of the largest
/// for each product and for the sum, and two for the truncation of the result.
const STEP_ROUNDINGS: usize = DEPTH + 3;

/// A GPU plan whose products run on Tensor Cores, as products of split operands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SplitChoice {
    /// The kernel that attends. Its shared memory is that of the launch.
    pub kernel: GpuKernelSpec,
    /// Number of row blocks per head. Each decides for its own rows whether it refuses. Packed sequences share the blocks of a
    /// head, with one more for each sequence, because no block has rows of two sequences.
    pub row_blocks: usize,
    /// Number of tiles of keys per key head. Packed sequences share them likewise.
    pub tiles: usize,
    /// Number of key heads of a sequence.
    pub kv_heads: usize,
    /// Number of query heads of a sequence.
    pub heads: usize,
    /// Size of the batch, 1 if sequences are packed.
    pub batch: usize,
    /// Number of sequences.
    pub sequences: usize,
    /// `true` if sequences are packed.
    pub packed: bool,
}

impl SplitChoice {
    /// Size of a tile's planes in bytes: planes of f16 elements, of keys and of values. f32 elements have two planes each, unless
    /// they are rounded to one f16 value.
    const fn tile_bytes(&self) -> usize {
        let GpuKernelSpec { sixteen_bit, one_product, keys, head_dim, .. } = self.kernel;
        (if sixteen_bit || one_product { 4 } else { 8 }) * keys * head_dim
    }

    /// Returns the number of tiles of all key heads; `None` on overflow.
    fn all_tiles(&self) -> Option<usize> {
        self.batch.checked_mul(self.kv_heads)?.checked_mul(self.tiles)
    }

    /// Returns the structure and the arithmetic of a run whose splits have `chunk` keys. They cover the rows of both kernels;
    /// `refused` describes those that Tensor Cores refuse.
    fn executed(&self, chunk: usize, refused: &Executed) -> Executed {
        let GpuKernelSpec { name, keys: tile, head_dim, one_product, .. } = self.kernel;
        let steps = |terms: usize| terms.div_ceil(DEPTH) * STEP_ROUNDINGS;
        // Small products are a 2^-10th of the large ones, and rounded operands make these larger by as much. They and the sum of
        // both are two roundings more.
        let chain = steps(head_dim) + steps(2 * head_dim).div_ceil(1 << 10) + 2;
        let tiles = chunk.div_ceil(tile.max(1));
        let into_w = steps(3 * tile) + tiles + refused.merge_depth;
        let into_s = tile / 4 + 2 + tiles + refused.merge_depth;
        let (into_s, into_w) = (into_s.max(refused.into_s), into_w.max(refused.into_w));
        Executed {
            kernel: name,
            block: tile.max(1),
            segment_blocks: tiles,
            additions: into_s.max(into_w),
            into_s,
            into_w,
            chain: chain.max(refused.chain),
            order: Order { segment: refused.order.segment, ..Order::ANY },
            split: true,
            one_product,
            ..*refused
        }
    }

    /// Returns the numbers of 32-bit words that are zero when a run begins: those of the channels of the keys, and those of the
    /// refusals.
    #[must_use]
    pub const fn words(&self) -> [usize; 2] {
        let key_heads = self.kv_heads * self.sequences;
        [3 * key_heads * self.kernel.head_dim, key_heads + self.row_words()]
    }

    /// Returns the number of words for refused blocks of rows, which are the last of [`SplitChoice::words`].
    #[must_use]
    pub const fn row_words(&self) -> usize {
        self.batch * self.heads * self.row_blocks
    }
}

impl GpuChoice {
    /// Returns the distance between consecutive records, in f32 values: [`MEASURED`], plus the number of value channels
    /// rounded up to a multiple of four.
    #[must_use]
    pub const fn record_stride(&self) -> usize {
        MEASURED + self.partial_dim
    }

    /// Returns the kernel and the number of splits, for [`GpuOptions::division`].
    #[must_use]
    pub const fn division(&self) -> Division {
        Division { candidate: self.candidate, splits: self.splits }
    }

    /// Returns `true` if the keys are divided: the attention kernel writes partial states, which are then merged.
    #[must_use]
    pub const fn divided(&self) -> bool {
        self.splits > 1
    }

    /// Returns `true` if tiles are plain, which means that they need no checks of single dims, for query heads of size
    /// `d` and value heads of size `dv`. The caller must also check that rows can be accessed four elements at a time.
    #[must_use]
    pub fn has_plain_tiles(&self, [d, dv]: [usize; 2]) -> bool {
        let whole = [d, dv] == [self.kernel.head_dim; 2];
        whole || (d.min(dv) > 0 && d.is_multiple_of(8) && !self.kernel.half_scores())
    }

    /// Returns the numbers of merges and additions on the longest path. `states` is `true` if the run also outputs states,
    /// which pass through memory even if the keys are not divided.
    #[must_use]
    pub fn longest_path(&self, states: bool) -> LongestPath {
        let merges = stack::depth(self.splits);
        let GpuKernelSpec { keys: tile, summation, .. } = self.kernel;
        let in_memory = self.flushes || self.divided() || states;
        let [s, w] = summation.additions(tile, self.chunk.min(self.keys), in_memory);
        LongestPath { merges, into_s: s + merges, into_w: w + merges }
    }

    /// Returns the largest `D / S` at which row blocks skip tiles; `None` without an error budget. No share exceeds the
    /// budget, because the result allows for two kinds of roundings: those of the sums that are compared, and twice
    /// those on the path into `S`, once for the state and once for [`share`](crate::attention::traversal::share).
    #[must_use]
    pub fn odds(&self) -> Option<f32> {
        let GpuKernelSpec { keys: tile, summation, .. } = self.kernel;
        let [votes, _] = summation.additions(tile, self.chunk.min(self.keys), false);
        Some(odds(self.error_budget?, votes + 2 * self.longest_path(true).into_s + 4))
    }

    /// Returns the structure and the arithmetic that a run without states executes, for its certificate and the error bounds.
    #[must_use]
    pub fn executed(&self) -> Executed {
        let GpuKernelSpec { name, keys, chain, exp2_relative, half_chain, .. } = self.kernel;
        let (path, block) = (self.longest_path(false), keys.max(1));
        let by_products = Executed {
            kernel: name,
            block,
            segment_blocks: self.chunk / block,
            merge_depth: path.merges,
            additions: path.additions(),
            into_s: path.into_s,
            into_w: path.into_w,
            chain,
            chain_depth: 0,
            fused: true,
            exp2_relative,
            half_chain,
            order: self.order(),
            split: false,
            one_product: false,
        };
        self.split.map_or(by_products, |split| split.executed(self.chunk.min(self.keys), &by_products))
    }

    /// Returns the order in which sums are accumulated. If a window excludes keys on the left, chains of weighted
    /// values may begin at any key, so their order is unknown.
    const fn order(&self) -> Order {
        let GpuKernelSpec { summation, half_chain, keys: tile, .. } = self.kernel;
        let Summation::Tiles { flush, .. } = summation else {
            return Order { segment: self.chunk, ..Order::ANY };
        };
        let known = !self.cut;
        Order {
            lanes: if half_chain == 0 { 1 } else { 0 },
            values: if !known {
                0
            } else if self.flushes || self.divided() {
                flush
            } else {
                self.chunk
            },
            weights: 0,
            segment: self.chunk,
            // The scores of a row in the score matrix have one reference.
            references: if self.scores > 0 { self.chunk } else { tile },
            normalizes: false,
        }
    }
}

/// A range of the device workspace, in bytes from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteSpan {
    /// Offset of the first byte, a multiple of 256.
    pub start: usize,
    /// Number of bytes.
    pub len: usize,
}

/// The layout of a GPU workspace, which contains everything except inputs and outputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuWorkspaceLayout {
    /// [`ARRIVALS`] counters, u32, directly before the partial states. They are zero between runs. Every workspace that is not
    /// empty begins with them, because runs of different plans may share it.
    pub arrivals: ByteSpan,
    /// References and sums of partial states, f32 `[row][split][2]`.
    pub partial_ms: ByteSpan,
    /// Weighted sums of partial states, f32 `[row][split][partial_dim]`.
    pub partial_w: ByteSpan,
    /// The table of sequences.
    pub sequences: ByteSpan,
    /// Records of measurements, f32 `[block][record]`. [`GpuChoice::record_stride`] is the size of a record.
    pub records: ByteSpan,
    /// Score matrix of [`Method::Math`](super::Method::Math), f32 `[row][scores]`.
    pub scores: ByteSpan,
    /// Sums of skipped weights in partial states, f32 `[row][split]`; empty without an error budget.
    pub partial_d: ByteSpan,
    /// Counters of thread blocks, four words each, followed by the reference, `S` and `D` of every finished row, f32
    /// `[3][row]`; empty without an error budget.
    pub left_out: ByteSpan,
    /// Keys and values as planes of f16 elements, [`SplitChoice`]; empty without one, and so are the next two spans.
    pub planes: ByteSpan,
    /// Exponents of the tiles of `planes`, i32 `[key head][tile][2]`.
    pub shifts: ByteSpan,
    /// Words that are zero when a run begins, [`SplitChoice::words`].
    pub zeroed: ByteSpan,
    /// Total number of bytes.
    pub bytes: usize,
}

impl GpuWorkspaceLayout {
    /// Lays out the workspace of a choice. Returns `None` if the size of the workspace overflows. `states` reserves
    /// room for partial states even if the keys are not divided.
    #[must_use]
    pub fn of(choice: &GpuChoice, states: bool) -> Option<GpuWorkspaceLayout> {
        let partials = if choice.divided() || states { choice.rows.checked_mul(choice.splits)? } else { 0 };
        // Every row has a reference and a sum if there is a score matrix.
        let sums = if choice.scores > 0 { choice.rows } else { partials };
        let mut at = 0usize;
        let mut take = |len: usize| {
            let span = ByteSpan { start: at, len };
            at = at.checked_add(len)?.checked_next_multiple_of(256)?;
            Some(span)
        };
        let arrivals = take(ARRIVALS * size_of::<u32>())?;
        let partial_ms = take(sums.checked_mul(8)?)?;
        let partial_w = take(partials.checked_mul(4)?.checked_mul(choice.partial_dim)?)?;
        let budget = usize::from(choice.error_budget.is_some());
        let partial_d = take(partials.checked_mul(4 * budget)?)?;
        let sequences = take(choice.sequences.checked_mul(SEQUENCE_BYTES)?)?;
        let records = take(choice.records.checked_mul(4)?.checked_mul(choice.record_stride())?)?;
        let scores = take(choice.rows.checked_mul(4)?.checked_mul(choice.scores)?)?;
        let finished = choice.rows.checked_mul(12)?.checked_add(choice.counting.checked_mul(16)?)?;
        let left_out = take(finished.checked_mul(budget)?)?;
        let [mut planes, mut shifts, mut zeroed] = [ByteSpan::default(); 3];
        if let Some(split) = &choice.split {
            let tiles = split.all_tiles()?;
            let [channels, refusals] = split.words();
            planes = take(tiles.checked_mul(split.tile_bytes())?)?;
            shifts = take(tiles.checked_mul(8)?)?;
            zeroed = take(channels.checked_add(refusals)?.checked_mul(4)?)?;
        }
        if at == arrivals.len {
            return Some(GpuWorkspaceLayout::default());
        }
        (at <= isize::MAX as usize).then_some(GpuWorkspaceLayout {
            arrivals,
            planes,
            shifts,
            zeroed,
            partial_ms,
            partial_w,
            partial_d,
            left_out,
            sequences,
            records,
            scores,
            bytes: at,
        })
    }

    /// Returns the size in bytes of the counters and the partial states, which are at the start of the workspace.
    #[must_use]
    pub fn partial_bytes(&self) -> usize {
        self.sequences.start
    }
}
