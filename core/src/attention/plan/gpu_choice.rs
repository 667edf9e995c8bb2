//! What is known of GPU kernels, the result of the GPU choosers, and the layout of the workspace.

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
    /// Number of threads of a block.
    pub threads: usize,
    /// Static shared memory of a block in bytes.
    pub shared: usize,
    /// Number of registers of a thread, on a Jetson Nano or a Jetson TX2.
    pub registers: usize,
}

/// How a GPU kernel adds up the keys of a split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Summation {
    /// One tile after the other. `W` runs down the keys; every `flush` keys it is added to memory, if that holds f32.
    /// A lane adds up the weights of `columns` keys of a tile and adds the result to those of the tiles before; the
    /// lanes of a row meet in a tree at the end.
    Tiles {
        /// Number of keys of a tile whose weights a lane adds up.
        columns: usize,
        /// Number of keys from one addition to memory to the next.
        flush: usize,
    },
    /// Keys are dealt out to groups of lanes, each with a state of its own. A group adds its sums to outer sums in
    /// registers every `flush` of its keys, and the states merge in a balanced tree.
    Groups {
        /// Number of groups.
        groups: usize,
        /// Number of a group's keys from one addition to the outer sums to the next.
        flush: usize,
    },
}

impl Summation {
    /// Additions on the longest path of a weight into `S`, and of a weighted value into `W`, over `keys` keys, in tiles
    /// of `tile` keys. `in_memory` says whether memory holds `W` in f32.
    pub(super) fn additions(self, tile: usize, keys: usize, in_memory: bool) -> [usize; 2] {
        match self {
            Summation::Tiles { columns, flush } => {
                let w = chained(keys, if in_memory { flush } else { usize::MAX });
                let lanes = tile / columns.max(1);
                [dealt(keys.min(tile), lanes) + keys.div_ceil(tile.max(1)).saturating_sub(1), w]
            }
            // A lane adds up fewer weights than its group multiplies values.
            Summation::Groups { groups, flush } => {
                [chained(keys.div_ceil(groups.max(1)), flush) + ceil_log2(keys.min(groups)); 2]
            }
        }
    }
}

/// A GPU attention kernel, as the chooser and the certificate see it. Names follow the grammar of
/// [`KernelSpec`](super::KernelSpec).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuKernelSpec {
    /// Name of the kernel.
    pub name: &'static str,
    /// Largest head size of keys and of values.
    pub head_dim: usize,
    /// Whether its tensors are of a 16-bit type (f16 or bf16) instead of f32.
    pub sixteen_bit: bool,
    /// Largest number of query rows per sequence for which it is used.
    pub most_queries: usize,
    /// Like `most_queries`, for a plain problem: without mask, bias, shifted windows, soft cap and past, and neither
    /// causal nor limited to the right by a window.
    pub most_plain: usize,
    /// Like `most_plain`, for a problem that is causal or limited to the right by a window.
    pub most_causal: usize,
    /// Like `most_queries`, for a problem that differs from a plain one in a boolean mask, in one mask or bias of f32
    /// elements that lie side by side for keys side by side, or in both, and has the kernel's head size.
    pub most_added: usize,
    /// Whether it is for problems only whose blocks of rows do not outnumber the device's SMs. A plain problem with
    /// more than half as many may use it with undivided keys.
    pub few_blocks: bool,
    /// Whether it also races, with undivided keys, for a plain problem beyond `most_plain` whose blocks leave every other
    /// SM idle.
    pub joins_race: bool,
    /// Whether a block can take all splits of its rows, one after the other, where nothing changes scores.
    pub serial: bool,
    /// Whether tiles take longer that not every row attends wholly.
    pub slow_edges: bool,
    /// Whether warps without a row multiply nothing.
    pub idles: bool,
    /// Number of query rows of a block.
    pub rows: usize,
    /// What a tile of a block takes where blocks share an SM, and what it takes a block by itself.
    pub paces: Paces,
    /// Number of keys of a tile; a split is a multiple of it.
    pub keys: usize,
    /// The resources that a block occupies.
    pub resources: GpuResources,
    /// How it adds up the keys of a split.
    pub summation: Summation,
    /// Longest chain of multiply-adds in a score, for head sizes up to the kernel's.
    pub chain: usize,
    /// Largest relative error of a weight against `2^x`, as guaranteed by the instruction set.
    pub exp2_relative: f64,
    /// Longest chain of f16 products that is summed in f16 before f32 takes over; zero where f32 values are multiplied.
    pub half_chain: usize,
}

impl GpuKernelSpec {
    /// Whether chains of f16 products are summed in f16.
    #[must_use]
    pub const fn half_scores(&self) -> bool {
        self.half_chain > 0
    }
}

/// Lanes of a warp.
const WARP: usize = 32;

impl GpuKernelSpec {
    /// Query rows of a warp. Lanes of few-row kernels share all rows of a block.
    const fn warp_rows(&self) -> usize {
        let warps = match self.summation {
            Summation::Tiles { .. } => self.resources.threads / WARP,
            Summation::Groups { .. } => 1,
        };
        let rows = self.rows / if warps > 0 { warps } else { 1 };
        if rows > 0 { rows } else { 1 }
    }

    /// Warps that work, of the blocks for `queries` query rows.
    #[must_use]
    pub const fn busy_warps(&self, queries: usize) -> usize {
        if self.idles { queries.div_ceil(self.warp_rows()) } else { self.all_warps(queries) }
    }

    /// All warps of the blocks for `queries` query rows.
    #[must_use]
    pub const fn all_warps(&self, queries: usize) -> usize {
        let rows = if self.rows > 0 { self.rows } else { 1 };
        queries.div_ceil(rows) * (rows / self.warp_rows())
    }
}

impl GpuResources {
    /// Number of blocks resident on an SM at once, by registers, shared memory and threads. At least 1.
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

/// Registers of an SM, on every device from compute capability 5.3 on.
const SM_REGISTERS: usize = 65_536;
/// Lower bound of the threads that an SM of such a device holds.
const SM_THREADS: usize = 1024;
/// Lower bound of the blocks that an SM of such a device holds.
const RESIDENT_BLOCKS: usize = 16;
/// Lower bound of the shared memory of an SM of such a device, in bytes.
const SM_SHARED: usize = 64 << 10;
/// Size in bytes of an entry of the table of sequences.
pub const SEQUENCE_BYTES: usize = 40;

/// Options of a plan for a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GpuOptions {
    /// Largest workspace, in bytes: partial states and tables. `None` is unlimited.
    pub budget: Option<usize>,
    /// Whether chains of f16 products may be summed in f16.
    pub half_scores: bool,
    /// Whether a run measures its tensors for a certificate.
    pub certify: bool,
    /// The kernel and the splits, where they are decided already: by a measurement, or by the caller. The chooser then
    /// only checks them. Packed sequences are not divided in any case, and a budget that has no room for the splits
    /// leaves the keys undivided.
    pub division: Option<Division>,
    /// The largest share of its weights that a row may leave out, `None` for none. The candidates must be kernels for that.
    pub error_budget: Option<f32>,
}

/// The result of the GPU chooser: everything that is decided before pointers are known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuChoice {
    /// The attention kernel.
    pub kernel: GpuKernelSpec,
    /// Its index among the candidates.
    pub candidate: usize,
    /// Number of query heads that a block serves: those of a key head, or one.
    pub heads_at_once: usize,
    /// Whether the blocks of the last rows start first, those of all heads together.
    pub longest_first: bool,
    /// Whether the blocks of the last rows start last, those of all heads together: they have warps without a row, and fill
    /// what the others leave idle at the end.
    pub short_last: bool,
    /// Number of blocks of query rows of a sequence; of a packed problem, of a sequence that holds every row.
    pub row_blocks: usize,
    /// Number of splits of the keys; 1 if they are not divided.
    pub splits: usize,
    /// Number of keys of a split, a multiple of the kernel's tile.
    pub chunk: usize,
    /// Whether a block takes all splits of its rows, one after the other, and merges their states itself: the blocks of the
    /// batch fill the device without more. It changes no bit. A run that outputs states has a block for each split.
    pub serial: bool,
    /// Distance from one partial weighted sum to the next, in f32 values: the head size of values, rounded up to a
    /// multiple of four.
    pub partial_dim: usize,
    /// Total number of query rows.
    pub rows: usize,
    /// Number of entries of the table of sequences; zero if one entry serves every sequence.
    pub sequences: usize,
    /// Number of records of what a run measures of its tensors, one a block; zero if it does not.
    pub records: usize,
    /// Distance from one row of the matrix of scores to the next, in f32 values, with [`Method::Math`](super::Method::Math); zero if there is no
    /// matrix.
    pub scores: usize,
    /// The largest share of its weights that a row may leave out; `None` for none.
    pub error_budget: Option<f32>,
    /// Number of places in which blocks of threads count what they leave out, where there is an error budget: one for each
    /// block; of packed sequences, whose blocks are not known before a run, one of a head for each sequence, and one for each
    /// block that their rows fill together.
    pub counting: usize,
    /// Whether sums of [`Summation::Tiles`] are added to others: in the output, if that is f32 and the kernel writes it
    /// itself, or in registers.
    pub(super) flushes: bool,
    /// Number of keys of the longest sequence.
    pub(super) keys: usize,
    /// Whether a window keeps rows from attending the first keys.
    pub(super) cut: bool,
}

impl GpuChoice {
    /// Numbers from one record to the next: [`MEASURED`], and a multiple of four for the channels of values.
    #[must_use]
    pub const fn record_stride(&self) -> usize {
        MEASURED + self.partial_dim
    }

    /// The kernel and the splits, for [`GpuOptions::division`].
    #[must_use]
    pub const fn division(&self) -> Division {
        Division { candidate: self.candidate, splits: self.splits }
    }

    /// Whether the keys are divided: the attention kernel writes partial states, and another kernel merges them.
    #[must_use]
    pub const fn divided(&self) -> bool {
        self.splits > 1
    }

    /// Returns whether the plan has plain tiles for heads of these sizes of queries and values, where rows can be accessed four
    /// elements at a time: those as long as the kernel's, and shorter ones whose dims no tile checks.
    #[must_use]
    pub fn has_plain_tiles(&self, [d, dv]: [usize; 2]) -> bool {
        let whole = [d, dv] == [self.kernel.head_dim; 2];
        whole || (d.min(dv) > 0 && d.is_multiple_of(8) && !self.kernel.half_scores())
    }

    /// The merges and additions on the longest path. `states` says whether the run also outputs states, which pass
    /// through memory even if the keys are not divided.
    #[must_use]
    pub fn longest_path(&self, states: bool) -> LongestPath {
        let merges = stack::depth(self.splits);
        let GpuKernelSpec { keys: tile, summation, .. } = self.kernel;
        let in_memory = self.flushes || self.divided() || states;
        let [s, w] = summation.additions(tile, self.chunk.min(self.keys), in_memory);
        LongestPath { merges, into_s: s + merges, into_w: w + merges }
    }

    /// The largest `D / S` by which blocks of rows leave tiles out, where the run has an error budget. Both ways to the exact
    /// sums are counted, that of the votes and that of the state, which
    /// [`share`](crate::attention::traversal::share) counts once more, so that no share exceeds the budget.
    #[must_use]
    pub fn odds(&self) -> Option<f32> {
        let GpuKernelSpec { keys: tile, summation, .. } = self.kernel;
        let [votes, _] = summation.additions(tile, self.chunk.min(self.keys), false);
        Some(odds(self.error_budget?, votes + 2 * self.longest_path(true).into_s + 4))
    }

    /// The structure and the arithmetic that a run without states executes, for its certificate and the error bounds.
    #[must_use]
    pub fn executed(&self) -> Executed {
        let GpuKernelSpec { name, keys, chain, exp2_relative, half_chain, .. } = self.kernel;
        let (path, block) = (self.longest_path(false), keys.max(1));
        Executed {
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
        }
    }

    /// In which order sums are added up. Where a window cuts keys off to the left, chains begin anywhere.
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
            // The scores of a row that lie in memory have one reference.
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

/// The layout of a GPU workspace, which holds everything besides inputs and outputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuWorkspaceLayout {
    /// References and sums of partial states, f32 `[row][split][2]`.
    pub partial_ms: ByteSpan,
    /// Weighted sums of partial states, f32 `[row][split][partial_dim]`.
    pub partial_w: ByteSpan,
    /// The table of sequences.
    pub sequences: ByteSpan,
    /// Records of what was measured, f32 `[block][record]`.
    pub records: ByteSpan,
    /// The matrix of scores of [`Method::Math`](super::Method::Math), f32 `[row][scores]`.
    pub scores: ByteSpan,
    /// Sums of what partial states left out, f32 `[row][split]`, where there is an error budget.
    pub partial_d: ByteSpan,
    /// What blocks of threads count, four words each, and behind it references, `S` and `D` of finished rows, f32
    /// `[3][row]`; where there is an error budget.
    pub left_out: ByteSpan,
    /// Total number of bytes.
    pub bytes: usize,
}

impl GpuWorkspaceLayout {
    /// Lays out the workspace of a choice. Returns `None` if its size overflows. `states` reserves partial states
    /// even if the keys are not divided.
    #[must_use]
    pub fn of(choice: &GpuChoice, states: bool) -> Option<GpuWorkspaceLayout> {
        let partials = if choice.divided() || states { choice.rows.checked_mul(choice.splits)? } else { 0 };
        // With a matrix of scores, every row has a reference and a sum.
        let sums = if choice.scores > 0 { choice.rows } else { partials };
        let mut at = 0usize;
        let mut take = |len: usize| {
            let span = ByteSpan { start: at, len };
            at = at.checked_add(len)?.checked_next_multiple_of(256)?;
            Some(span)
        };
        let partial_ms = take(sums.checked_mul(8)?)?;
        let partial_w = take(partials.checked_mul(4)?.checked_mul(choice.partial_dim)?)?;
        let budget = usize::from(choice.error_budget.is_some());
        let partial_d = take(partials.checked_mul(4 * budget)?)?;
        let sequences = take(choice.sequences.checked_mul(SEQUENCE_BYTES)?)?;
        let records = take(choice.records.checked_mul(4)?.checked_mul(choice.record_stride())?)?;
        let scores = take(choice.rows.checked_mul(4)?.checked_mul(choice.scores)?)?;
        let finished = choice.rows.checked_mul(12)?.checked_add(choice.counting.checked_mul(16)?)?;
        let left_out = take(finished.checked_mul(budget)?)?;
        (at <= isize::MAX as usize).then_some(GpuWorkspaceLayout {
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

    /// Size of the partial states in bytes, which lie at the start.
    #[must_use]
    pub fn partial_bytes(&self) -> usize {
        self.sequences.start
    }
}
