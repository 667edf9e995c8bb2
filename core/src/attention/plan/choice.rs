//! The options and the result of the CPU chooser.

use super::kernel::KernelSpec;
use crate::attention::certificate::{Executed, Order};
use crate::attention::schedule::Tiling;
use crate::attention::traversal::{Schedule, TileSize, odds};
use crate::scan::ceil_log2;
use crate::scan::stack::{self, MergeStack};
use crate::workers::worthwhile;

/// The method that computes the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// ELSA, a scan over blocks of keys. Only the scores of one block exist at a time.
    #[default]
    Elsa,
    /// The baseline: computes the full score matrix, then the softmax, then the product with the values. It uses the
    /// inner loops of [`Method::Elsa`].
    Math,
}

/// The supported block sizes, in keys.
pub const BLOCK_SIZES: [usize; 3] = [64, 128, 256];

/// Options of a plan for a CPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// The method that computes the output.
    pub method: Method,
    /// Number of keys per block: 64, 128 or 256.
    pub block: usize,
    /// Largest workspace, in bytes; `None` for no limit.
    pub budget: Option<usize>,
    /// Number of available workers.
    pub workers: usize,
    /// `true` if all workers take part, at most one per tile, even in a small problem.
    pub all_workers: bool,
    /// `true` if a run measures its tensors for a certificate.
    pub certify: bool,
    /// Schedule of a run, already checked. It must be exact with [`Method::Math`].
    pub schedule: Schedule,
    /// Measured decisions that replace `block` and `all_workers` and the size of the group; `None` leaves them to the
    /// options and the chooser.
    pub division: Option<CpuDivision>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            method: Method::Elsa,
            block: 64,
            budget: None,
            workers: 1,
            all_workers: false,
            certify: false,
            schedule: Schedule::EXACT,
            division: None,
        }
    }
}

/// Decisions about a CPU that override those of the chooser. Only the block can change a bit of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuDivision {
    /// Number of keys per block: 64, 128 or 256.
    pub block: usize,
    /// Number of tiles that share a key block.
    pub group: usize,
    /// Number of workers. With fewer threads, a plan has one worker per thread.
    pub workers: usize,
}

/// A kernel and a number of splits that override the choice of the chooser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Division {
    /// Index of the kernel among the candidates.
    pub candidate: usize,
    /// Number of splits of the keys, from one to the number of key tiles.
    pub splits: usize,
}

/// Numbers of merges and additions on the longest path from a key to the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongestPath {
    /// Number of merges of states on the path, in the tree over segments or splits.
    pub merges: usize,
    /// Largest number of additions that the weight of a key passes through on its way into the sum `S`, including the
    /// merges. An addition to zero is exact and does not count.
    pub into_s: usize,
    /// Largest number of additions that a weighted value passes through on its way into the sum `W`, counted like
    /// `into_s`.
    pub into_w: usize,
}

impl LongestPath {
    /// Returns the larger of [`LongestPath::into_s`] and [`LongestPath::into_w`].
    #[must_use]
    pub fn additions(&self) -> usize {
        self.into_s.max(self.into_w)
    }
}

/// Returns the number of additions on the longest path through a sum of `keys` terms. The terms are summed in chains of
/// `chain` terms, and the results of the chains are added to a total one after another.
pub(super) fn chained(keys: usize, chain: usize) -> usize {
    keys.min(chain).saturating_sub(1) + keys.div_ceil(chain.max(1)).saturating_sub(1)
}

/// Returns the number of additions on the longest path through a sum of `keys` terms. The terms are distributed over
/// `sums` sums, which a balanced tree adds up.
pub(super) fn dealt(keys: usize, sums: usize) -> usize {
    keys.div_ceil(sums.max(1)).saturating_sub(1) + ceil_log2(keys.min(sums))
}

/// The order of tasks. It does not change any bit of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskOrder {
    /// Query tiles vary fastest, then heads, then sequences: consecutive tiles of a head find its keys in cache.
    #[default]
    Tiles,
    /// Heads vary fastest, then tiles, then sequences: the heads of a tile are consecutive.
    Heads,
    /// Sequences vary fastest, then tiles, then heads: within a head, the sequences of a tile are consecutive.
    Sequences,
    /// Sequences vary fastest, then heads, then tiles: the sequences and heads of a tile are consecutive.
    SequencesAndHeads,
}

/// The masks and biases that a worker keeps from one task to the next because consecutive tasks share them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keeps {
    /// `true` if the mask is kept.
    pub mask: bool,
    /// `true` if the bias is kept.
    pub bias: bool,
}

impl Keeps {
    /// Returns `true` if the mask or the bias is kept.
    #[must_use]
    pub const fn any(self) -> bool {
        self.mask || self.bias
    }
}

/// The result of the CPU chooser: all decisions made before pointers are known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuChoice {
    /// The micro-kernel.
    pub kernel: KernelSpec,
    /// Index of the micro-kernel in the list of kernels that the chooser received.
    pub candidate: usize,
    /// The method that computes the output.
    pub method: Method,
    /// Number of keys per block.
    pub block: usize,
    /// Number of keys per segment.
    pub segment: usize,
    /// Number of segments of the longest sequence.
    pub segments: usize,
    /// Number of vectors in the widest tile.
    pub vectors: usize,
    /// Number of query tiles that share a key block.
    pub group: usize,
    /// Largest number of query heads that a task serves. They read the same key head.
    pub heads: usize,
    /// Number of workers.
    pub workers: usize,
    /// Number of multiply-adds that make it worthwhile to wake a worker; zero if all workers take part in problems of
    /// any size.
    pub work_per_worker: f64,
    /// Head size of queries and keys, rounded up to a multiple of four.
    pub head_dim: usize,
    /// Head size of values, rounded up to a multiple of four.
    pub value_dim: usize,
    /// `true` if each block of keys is copied into the layout that the kernel reads.
    pub stage_keys: bool,
    /// `true` if each block of values is copied into the layout that the kernel reads.
    pub stage_values: bool,
    /// `true` if query and output rows are converted because the tensors are not f32.
    pub convert: bool,
    /// `true` if tiles may be partly masked.
    pub masked: bool,
    /// The order of tasks.
    pub order: TaskOrder,
    /// Mask and bias that a worker keeps while its tasks share them. The kept values cover the worker's tiles and all
    /// keys.
    pub keeps: Keeps,
    /// `true` if all queries of a head share one mask row, which a worker keeps while its tasks use it.
    pub row_mask: bool,
    /// `true` if both a mask and a bias are added to the scores.
    pub adds_two: bool,
    /// Number of entries of the table of relative positions; zero if the bias is not a table.
    pub entries: usize,
    /// Number of table values per head in the layout for windows; zero if an index selects the entries.
    pub lines: usize,
    /// Number of tokens per window if some windows are shifted, otherwise zero.
    pub divided: usize,
    /// `true` if a run measures its tensors for a certificate.
    pub certify: bool,
    /// Schedule of a run.
    pub schedule: Schedule,
    /// `true` if tiles may skip key blocks before computing any of their products
    /// ([`foresees`](crate::attention::traversal::foresees)). A run then measures keys and values block by block.
    pub foresees: bool,
    /// Number of query rows whose skipped weights a run records; zero if the schedule is exact.
    pub recorded: usize,
    /// Number of f32 values of scratch for the exact scalar run
    /// ([`scalar::scratch_len`](crate::attention::scalar::scratch_len)). That run recomputes rows that the guard of a
    /// schedule rejects. Zero if the schedule has no guard.
    pub scratch: usize,
    /// Number of query tiles whose progress stays in memory while chunks of keys are streamed; zero if keys are not
    /// streamed.
    pub resident: usize,
    /// Number of sequences.
    pub sequences: usize,
    /// Number of query rows of the longest sequence, number of keys of the longest sequence, and number of heads times
    /// number of sequences.
    pub extent: [usize; 3],
}

impl CpuChoice {
    /// Returns the decisions that a measurement may override.
    #[must_use]
    pub const fn division(&self) -> CpuDivision {
        CpuDivision { block: self.block, group: self.group, workers: self.workers }
    }

    /// Returns the number of rows of the widest tile.
    #[must_use]
    pub const fn width(&self) -> usize {
        self.vectors * self.kernel.lanes
    }

    /// Returns the largest number of query tiles of a task.
    #[must_use]
    pub const fn task_tiles(&self) -> usize {
        match self.method {
            Method::Elsa => self.group.saturating_mul(self.heads),
            Method::Math => 1,
        }
    }

    /// Returns the number of tasks into which the tiles of one key head are divided by query heads, if `group` query
    /// heads read it.
    #[must_use]
    pub const fn head_sets(&self, group: usize) -> usize {
        group.div_ceil(if self.heads > 0 { self.heads } else { 1 })
    }

    /// Returns the tile whose query rows decide together whether to skip a block of keys.
    #[must_use]
    pub const fn decides(&self) -> TileSize {
        TileSize { rows: self.width(), keys: self.block }
    }

    /// Returns `true` if the scalar run of [`traversal`](crate::attention::traversal) computes the tiles, instead of the
    /// kernel.
    #[must_use]
    pub fn traverses(&self) -> bool {
        !self.schedule.is_exact() && self.schedule.budget().is_none() && !self.gates()
    }

    /// Returns `true` if the kernel uses zero as the reference of tiles whose scores are known to stay near zero. This
    /// requires the gate, and either the exact schedule or an error budget.
    #[must_use]
    pub fn gates(&self) -> bool {
        self.schedule.gate && (self.schedule.ungated().is_exact() || self.schedule.budget().is_some())
    }

    /// Returns the number of parts into which a run divides the keys of a head to measure their norms before the tasks
    /// begin. If blocks may be skipped unseen ([`CpuChoice::foresees`]), there is one part per block. For the norm
    /// gate, there is one part in total. Otherwise the result is zero.
    #[must_use]
    pub fn measured_parts(&self) -> usize {
        match (self.foresees, self.gates()) {
            (true, _) => self.blocks(),
            (false, true) => 1,
            (false, false) => 0,
        }
    }

    /// Returns the largest `D / S` at which tiles skip blocks; `None` without an error budget.
    ///
    /// Each row decides by comparing sums that it accumulates over all blocks. The result allows for the roundings of these
    /// sums, and for twice the roundings on the path into `S`: once for the state, and once for
    /// [`share`](crate::attention::traversal::share). So no share exceeds the budget.
    #[must_use]
    pub fn odds(&self) -> Option<f32> {
        let totals = dealt(self.block, self.kernel.weight_sums) + self.blocks();
        Some(odds(self.schedule.budget()?, totals + 2 * self.longest_path().into_s + 4))
    }

    /// Returns `true` if the bias of a block may be stored in the memory that will contain the scores. This is
    /// impossible in two cases. If a score is the sum of several chains, this memory contains the partial sums. If a
    /// tile has one row, its scores are written for a vector of keys at a time.
    #[must_use]
    pub const fn bias_in_place(&self) -> bool {
        self.head_dim <= self.kernel.chain && self.width() > 1
    }

    /// Returns the number of workers for a call with `pairs` pairs of a query and a valid key, over all heads. The
    /// result is at most the number of workers in the plan. The number of workers does not change any bit of the
    /// output.
    #[must_use]
    pub fn workers_for(&self, pairs: f64) -> usize {
        worthwhile(pairs * (self.head_dim + self.value_dim) as f64, self.work_per_worker, self.workers)
    }

    /// Returns the numbers of merges and additions on the longest path.
    ///
    /// The weighted values of a block form one chain. The result of this chain is added to the sum over the earlier
    /// blocks of the same segment or, with [`Method::Math`], to the sum over all earlier blocks. The weights of a block
    /// are distributed over the kernel's sums; [`Method::Math`] distributes all weights of a row at once. Segments and
    /// merges treat `S` and `W` alike.
    #[must_use]
    pub fn longest_path(&self) -> LongestPath {
        let [_, keys, _] = self.extent;
        let sums = self.kernel.weight_sums;
        match self.method {
            Method::Elsa => {
                let merges = stack::depth(self.segments);
                let keys = keys.min(self.segment);
                let blocks = keys.div_ceil(self.block.max(1)).saturating_sub(1);
                let into_s = dealt(keys.min(self.block), sums) + blocks + merges;
                LongestPath { merges, into_s, into_w: chained(keys, self.block) + merges }
            }
            Method::Math => {
                LongestPath { merges: 0, into_s: dealt(keys, sums), into_w: chained(keys, self.block) }
            }
        }
    }

    /// Returns the structure and the arithmetic that a run executes, for its certificate and the error bounds.
    #[must_use]
    pub fn executed(&self) -> Executed {
        let KernelSpec { name, chain, weight_sums: lanes, fused, exp2_relative, .. } = self.kernel;
        let path = self.longest_path();
        // A one-row kernel distributes the dims over its lanes, as it distributes the weights. The dims after the last
        // whole vector are added one by one.
        let (whole, rest) = (self.head_dim / lanes.max(1), self.head_dim % lanes.max(1));
        let cuts = whole.div_ceil(chain.max(1)).saturating_sub(1);
        let tree = if whole > 0 { ceil_log2(lanes) } else { 0 };
        Executed {
            kernel: name,
            block: self.block,
            segment_blocks: self.segment / self.block.max(1),
            merge_depth: path.merges,
            additions: path.additions(),
            into_s: path.into_s,
            into_w: path.into_w,
            chain: whole.clamp(1, chain.max(1)),
            chain_depth: cuts + tree + rest,
            fused,
            exp2_relative,
            half_chain: 0,
            split: false,
            one_product: false,
            order: self.order(),
        }
    }

    /// Returns the order in which sums are accumulated.
    const fn order(&self) -> Order {
        let (block, lanes, [_, keys, _]) = (self.block, self.kernel.weight_sums, self.extent);
        match self.method {
            Method::Elsa => Order {
                lanes,
                values: block,
                weights: if lanes == 1 { block } else { 0 },
                segment: self.segment,
                references: block,
                normalizes: false,
            },
            Method::Math => Order {
                lanes,
                values: block,
                weights: if lanes == 1 { keys } else { 0 },
                segment: keys,
                references: keys,
                normalizes: true,
            },
        }
    }

    /// Returns `true` if a worker keeps anything from task to task: mask and bias of tiles, a row of the mask, entries
    /// of a table, or sides of tokens.
    #[must_use]
    pub const fn keeps_something(&self) -> bool {
        self.keeps.any() || self.row_mask || self.entries > 0 || self.divided > 0
    }

    /// Returns the number of blocks of the longest sequence.
    #[must_use]
    pub const fn blocks(&self) -> usize {
        let [_, keys, _] = self.extent;
        keys.div_ceil(self.block)
    }

    /// Returns the tiling of `rows` query rows.
    #[must_use]
    pub const fn tiling(&self, rows: usize) -> Tiling {
        Tiling::new(rows, self.kernel.lanes, self.vectors)
    }

    /// Returns the number of states that a tile keeps: one for each pending segment, and one for the current segment.
    #[must_use]
    pub const fn levels(&self) -> usize {
        match self.method {
            Method::Elsa => MergeStack::capacity(self.segments),
            Method::Math => 1,
        }
    }
}

/// Largest number of query tiles that share a key block, over all query heads of a task.
pub const MAX_TILES: usize = 24;
