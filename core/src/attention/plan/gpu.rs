//! The GPU chooser: the kernel, the blocks of rows, the division of the keys, and the workspace.
//!
//! A block of threads computes a block of query rows over a split of the keys. If the keys are divided, each split
//! leaves a partial state per row in memory, and a second kernel merges the states of a row in the balanced tree over
//! split numbers.
//!
//! **The naive way** has one kernel, never divides the keys, or divides them until batch, heads and blocks of rows
//! together fill the device.
//!
//! **Why the code differs.**
//!
//! 1. *The kernel is the one that computes least.* A block computes all of its rows and the kernel's whole head size,
//!    whatever the problem needs of them. Rows times head size, including that padding, ranks the kernels. Tall
//!    blocks, which reuse keys best, are for problems with many rows only whose scores nothing changes, or f32
//!    elements and boolean masks alone. Low blocks are for problems so small that the device has two SMs for each
//!    block. Of the kernels for any number of plain rows, those of the same head size, the one that ends soonest by
//!    [`Race`] is taken. With few rows reading takes the time, and a block has the rows of all heads that share keys.
//! 2. *The division never depends on the batch.* It decides bits, and a sequence must get the same bits alone and in
//!    a batch. It is a function of queries, keys, heads, windows of a picture, head sizes, device and budget. Packed
//!    sequences, whose lengths arrive with the data, are not divided.
//! 3. *The number of splits ends soonest.* For plain problems, and small blocks that leave SMs idle, [`Race`] compares
//!    them. Else splits bring the blocks of one sequence closest to [`BLOCKS_PER_SM`] per SM; more would only add
//!    merges. Where reading takes the time, as many blocks as the device holds at once read together.
//! 4. *Causal problems start with their longest blocks.* Those of the last rows have the most keys. Blocks start in
//!    the order of their keys, over all heads, and are divided until the longest takes no longer than the average SM
//!    is busy, up to [`CAUSAL_SPLITS`].
//! 5. *Where scores change, the last blocks do not wait alone.* Blocks with a mask or a bias are many and short enough for
//!    it to matter how full the device is at the end: their keys are divided a few times if that leaves it fuller.
//! 6. *Splits have a least size, and partial states a largest.* Below [`min_chunk`] keys the merge costs more than
//!    the division saves. Partial states take at most [`PARTIAL_BYTES`], or as many bytes as the output.
//! 7. *A budget is a hard limit.* If the partial states of the whole batch exceed it, the keys are not divided. This
//!    is the only place that looks at the batch.

use super::choice::{ChooseError, Division, LongestPath, chained, dealt};
use super::race::{Pace, Race, evenest};
use crate::attention::bias::BiasView;
use crate::attention::certificate::{Executed, Order};
use crate::attention::mask::{MaskKind, MaskView};
use crate::attention::measured::MEASURED;
use crate::attention::problem::{Problem, Spec};
use crate::dtype::DType;
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
    fn additions(self, tile: usize, keys: usize, in_memory: bool) -> [usize; 2] {
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
    /// Whether tiles take longer that not every row attends wholly.
    pub slow_edges: bool,
    /// Number of query rows of a block.
    pub rows: usize,
    /// What a tile of a block takes where blocks share an SM, and what it takes a block by itself.
    pub pace: Pace,
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
/// Blocks per SM that the division aims at.
const BLOCKS_PER_SM: usize = 2;
/// Largest number of splits of a causal problem.
const CAUSAL_SPLITS: usize = 4;
/// Largest number of splits of a problem with a mask, bias, shifted windows or a soft cap whose blocks fill the device, and
/// their least number of keys.
const EVEN_SPLITS: usize = 3;
const EVEN_CHUNK: usize = 256;
/// The partial states of a sequence may take this many bytes, or as many as its output does.
const PARTIAL_BYTES: usize = 32 << 20;
/// Largest number of tokens, rows or heads: the device counts them in 32 bits, and the sum of two lengths must not
/// overflow.
const MAX_COUNT: usize = 1 << 30;
/// Blocks per SM that measure the tensors of a call.
const MEASURING_BLOCKS: usize = 2;
/// Size in bytes of an entry of the table of sequences.
pub const SEQUENCE_BYTES: usize = 40;

/// Rows times head size of the smallest blocks.
const SMALL_BLOCK: usize = 2048;

/// Smallest number of keys of a split. A problem with few keys is short, and there an idle SM costs more than the
/// merge of smaller splits.
const fn min_chunk(keys: usize) -> usize {
    if keys <= 1024 { 64 } else { 256 }
}

/// Smallest number of keys of a split where a block has few rows.
const fn min_rows_chunk(keys: usize) -> usize {
    if keys <= 1024 { 64 } else { 128 }
}

/// Whether f32 elements side by side for keys side by side, a boolean mask, or both are all that is added to scores.
pub(super) fn adds_f32(s: &Spec) -> bool {
    let near = |view: &MaskView| view.kind() == MaskKind::Additive(DType::F32) && view.strides()[3] == 1;
    let bits = s.mask.is_some_and(|mask| mask.kind() == MaskKind::Bool);
    match (&s.mask, &s.bias) {
        (None, None) | (_, Some(BiasView::Table(_))) => false,
        (Some(mask), None) => bits || near(mask),
        (None, Some(BiasView::Dense(bias))) => near(bias),
        (Some(_), Some(BiasView::Dense(bias))) => bits && near(bias),
    }
}

/// Options of a plan for a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    /// Number of blocks of query rows of a sequence; of a packed problem, of a sequence that holds every row.
    pub row_blocks: usize,
    /// Number of splits of the keys; 1 if they are not divided.
    pub splits: usize,
    /// Number of keys of a split, a multiple of the kernel's tile.
    pub chunk: usize,
    /// Distance from one partial weighted sum to the next, in f32 values: the head size of values, rounded up to a
    /// multiple of four.
    pub partial_dim: usize,
    /// Total number of query rows.
    pub rows: usize,
    /// Number of entries of the table of sequences; zero if one entry serves every sequence.
    pub sequences: usize,
    /// Number of records of what a run measures of its tensors, one a block; zero if it does not.
    pub records: usize,
    /// Whether the output is f32, so that a kernel that writes it itself can add to it ([`Summation::Tiles`]).
    flushes: bool,
    /// Number of keys of the longest sequence.
    keys: usize,
    /// Whether a window keeps rows from attending the first keys.
    cut: bool,
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
            references: tile,
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
    /// Total number of bytes.
    pub bytes: usize,
}

impl GpuWorkspaceLayout {
    /// Lays out the workspace of a choice. Returns `None` if its size overflows. `states` reserves partial states
    /// even if the keys are not divided.
    #[must_use]
    pub fn of(choice: &GpuChoice, states: bool) -> Option<GpuWorkspaceLayout> {
        let partials = if choice.divided() || states { choice.rows.checked_mul(choice.splits)? } else { 0 };
        let mut at = 0usize;
        let mut take = |len: usize| {
            let span = ByteSpan { start: at, len };
            at = at.checked_add(len)?.checked_next_multiple_of(256)?;
            Some(span)
        };
        let partial_ms = take(partials.checked_mul(8)?)?;
        let partial_w = take(partials.checked_mul(4)?.checked_mul(choice.partial_dim)?)?;
        let sequences = take(choice.sequences.checked_mul(SEQUENCE_BYTES)?)?;
        let records = take(choice.records.checked_mul(4)?.checked_mul(choice.record_stride())?)?;
        (at <= isize::MAX as usize).then_some(GpuWorkspaceLayout {
            partial_ms,
            partial_w,
            sequences,
            records,
            bytes: at,
        })
    }

    /// Size of the partial states in bytes, which lie at the start.
    #[must_use]
    pub fn partial_bytes(&self) -> usize {
        self.sequences.start
    }
}

/// Chooses the kernel, the blocks of rows and the division of the keys for `problem` on `device`. Of the
/// sufficient `kernels`, the chooser takes the one that computes the fewest rows times dims, including padding;
/// among equals, the one with the lowest limit of queries; for a plain problem, of those of its head size, the one that
/// ends soonest. Packed sequences, whose lengths arrive with the data,
/// use a kernel that takes any number of queries, and undivided keys.
///
/// # Errors
/// Returns an error if no kernel supports the type or the head size, if a count exceeds 32 bits on the device, if
/// the size of the workspace overflows, or if even the undivided form exceeds the budget.
pub fn choose_gpu<'a>(
    problem: &Problem,
    device: &GpuProfile,
    kernels: impl IntoIterator<Item = &'a GpuKernelSpec, IntoIter: Clone>,
    options: &GpuOptions,
) -> Result<GpuChoice, ChooseError> {
    let s = problem.spec();
    let (queries, keys, heads) = (s.query.tokens(), problem.keys(), problem.heads());
    let (d, dv) = (problem.head_dim(), problem.value_dim());
    let sixteen_bit = s.dtype != DType::F32;
    let packed = s.packed.is_some();
    let max_queries = if packed { usize::MAX } else { queries };
    let causal = problem.grows_with_the_row();
    let past = s.past_key.is_some() || s.past_value.is_some();
    let shifted = s.windows.is_some_and(|windows| windows.is_shifted());
    let changed = s.mask.is_some() || s.bias.is_some() || shifted || s.softcap.is_some();
    let unchanged = !changed && !past;
    let plain = !causal && unchanged;
    let added = !causal && !past && !shifted && s.softcap.is_none() && adds_f32(s);
    // The windows of a picture always come together.
    let together = s.windows.map_or(1, |windows| windows.count());
    let group = (heads / problem.kv_heads().max(1)).max(1);
    let heads_at_once = |k: &GpuKernelSpec| match k.summation {
        Summation::Groups { .. } => group,
        Summation::Tiles { .. } => 1,
    };
    let row_blocks_of = |k: &GpuKernelSpec| queries.saturating_mul(heads_at_once(k)).div_ceil(k.rows.max(1));
    let blocks_of = |k: &GpuKernelSpec| {
        let columns = (heads / heads_at_once(k)).saturating_mul(together);
        row_blocks_of(k).saturating_mul(columns).max(1)
    };
    let partial_dim = dv.next_multiple_of(4);
    let output = heads.saturating_mul(queries).saturating_mul(dv).saturating_mul(s.dtype.size());
    let partial = heads.saturating_mul(queries).saturating_mul(4 * (partial_dim + 2));
    let affordable = output.max(PARTIAL_BYTES) / partial.max(1);
    // Plain problems race; packed sequences do not, since their lengths arrive with the data.
    let races = plain && !packed;
    let race_of = |k: &GpuKernelSpec| {
        let (blocks, sms) = (blocks_of(k), device.sms.max(1));
        let undivided = races && k.few_blocks && blocks.saturating_mul(2) > sms;
        let most = if undivided { 1 } else { affordable };
        Race { blocks, sms, keys, most, tile: k.keys.max(1), pace: k.pace, slow_edges: k.slow_edges }
    };
    let serves = |candidate: usize, k: &GpuKernelSpec| {
        let scores = !k.half_scores() || (options.half_scores && s.dtype == DType::F16);
        let limit = match (unchanged, added && d == k.head_dim && dv == k.head_dim) {
            (true, _) if causal && !packed => k.most_causal,
            (true, _) if causal => k.most_queries,
            (true, _) => k.most_plain,
            (_, true) => k.most_added,
            _ => k.most_queries,
        };
        let crowded = !races && k.few_blocks && blocks_of(k) > device.sms;
        // A kernel without a limit for these problems does not compute them; the limits themselves are preferences.
        let (limit, crowded) = match options.division {
            Some(division) if division.candidate == candidate && limit.max(k.most_queries) > 0 => {
                (usize::MAX, false)
            }
            Some(_) => return None,
            None => (limit, crowded),
        };
        let serves = k.sixteen_bit == sixteen_bit && max_queries <= limit && scores && !crowded;
        serves.then_some(limit)
    };
    let mut widest = 0;
    let mut best: Option<(_, usize, GpuKernelSpec)> = None;
    let candidates = kernels.into_iter().enumerate();
    for (candidate, k) in candidates.clone() {
        let Some(limit) = serves(candidate, k) else { continue };
        widest = widest.max(k.head_dim);
        // Computed rows times dims, including padding. A packed sequence may have any number of rows.
        let at_once = heads_at_once(k);
        let rows = queries.max(1).saturating_mul(at_once).next_multiple_of(k.rows.max(1));
        let rows = if packed { 1 } else { rows.div_ceil(at_once) };
        let work = rows.saturating_mul(k.head_dim);
        // Among equals, prefer sums in f16: the options request them. Packed sequences take the tallest blocks, whatever
        // their lengths.
        let height = if packed { (usize::MAX - k.rows, !k.slow_edges) } else { (k.rows, false) };
        let rank = (work, limit, k.head_dim, height, !k.half_scores());
        if k.head_dim >= d.max(dv) && best.is_none_or(|(lowest, ..)| rank < lowest) {
            best = Some((rank, candidate, *k));
        }
    }
    if let Some((rank, _, first)) = best
        && races
        && let Summation::Tiles { .. } = first.summation
    {
        let alike = |k: &GpuKernelSpec| {
            let tiles = matches!(k.summation, Summation::Tiles { .. });
            tiles && k.head_dim == first.head_dim && k.half_scores() == first.half_scores()
        };
        let entrants = candidates.filter(|(candidate, k)| alike(k) && serves(*candidate, k).is_some());
        let winner = entrants.min_by_key(|(_, k)| race_of(k).soonest().1);
        best = winner.map(|(candidate, k)| (rank, candidate, *k));
    }
    let Some((_, candidate, kernel)) = best else {
        return Err(match widest {
            0 => ChooseError::NoKernel,
            max => ChooseError::HeadSize { found: d.max(dv), max },
        });
    };
    let row_blocks = row_blocks_of(&kernel);
    let entries = match s.bias {
        Some(BiasView::Table(table)) => table.entries,
        _ => 0,
    };
    let counts = [
        ("queries", queries),
        ("keys", keys),
        ("heads", heads),
        ("sequences", problem.sequences()),
        ("rows", problem.rows()),
        ("head size", d.max(dv)),
        ("entries of the table", entries),
    ];
    for (axis, found) in counts {
        if found > MAX_COUNT {
            return Err(ChooseError::Extent { axis, found, max: MAX_COUNT });
        }
    }
    let sequences = if packed || s.key_lengths { problem.sequences() } else { 0 };
    let whole = keys.max(1).next_multiple_of(kernel.keys.max(1));
    let mut choice = GpuChoice {
        kernel,
        candidate,
        heads_at_once: heads_at_once(&kernel),
        longest_first: causal && !packed && matches!(kernel.summation, Summation::Tiles { .. }),
        row_blocks,
        splits: 1,
        chunk: whole,
        partial_dim,
        rows: problem.rows(),
        sequences,
        records: if options.certify { MEASURING_BLOCKS * device.sms.max(1) } else { 0 },
        flushes: !sixteen_bit,
        keys,
        cut: s.window.left.is_some(),
    };
    if !packed {
        let (sms, resident) = (device.sms.max(1), kernel.resources.resident(device));
        let (fill, room) = (sms * resident.min(BLOCKS_PER_SM), sms * resident);
        let blocks = blocks_of(&kernel);
        let few = matches!(kernel.summation, Summation::Groups { .. });
        // Small blocks that leave SMs idle.
        let small = !few && kernel.rows.saturating_mul(kernel.head_dim) <= SMALL_BLOCK && blocks <= sms;
        let splits = if let Some(Division { splits, .. }) = options.division {
            splits.min(keys.div_ceil(kernel.keys.max(1))).min(affordable).max(1)
        } else if small || (races && !few) {
            race_of(&kernel).soonest().0
        } else {
            // The number of splits that comes closest to filling the device.
            let nearest = (fill + blocks / 2) / blocks;
            let (wanted, least) = if few {
                (room / blocks, min_rows_chunk(keys))
            } else if causal {
                // As many as keep the longest block below the average: those of the last rows have twice its keys.
                let even = (2 * room + blocks / 2) / blocks;
                (even.clamp(1, CAUSAL_SPLITS).max(nearest), min_chunk(keys))
            } else if changed && nearest < EVEN_SPLITS {
                (evenest(blocks, room, (keys / EVEN_CHUNK).clamp(1, EVEN_SPLITS)), min_chunk(keys))
            } else {
                (nearest, min_chunk(keys))
            };
            wanted.min(keys / least).min(affordable).max(1)
        };
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
    let blocks = [heads / choice.heads_at_once, choice.splits, row_blocks]
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
