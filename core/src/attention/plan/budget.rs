//! Divides a run so that it fits a memory budget: chooses the rows that stay in memory while chunks of keys are
//! streamed, and accounts for every byte.
//!
//! A *unit* of work is a box of query tiles, heads and sequences whose states stay in memory. Its keys and values are
//! streamed through two buffers, with a chunk of whole segments in each.
//!
//! **The naive way** fixes the number of rows and the number of keys per chunk, and fails if memory is short.
//!
//! **Why the code differs.**
//!
//! 1. *Rows come first.* Every unit reads its keys once, so the transferred bytes are inversely proportional to the number of
//!    resident rows. The chooser adds tiles of one head first, then heads, then sequences, as far as the budget allows.
//! 2. *Chunks are as long as rows allow.* A longer chunk moves the states of the resident rows through the caches less
//!    often. But the mask slices of a chunk need memory for every row, so a shorter chunk is used if it makes room for
//!    a third more rows.
//! 3. *A unit never divides a group of heads unevenly.* A unit has either complete groups, each with its key head, or
//!    part of one group.
//! 4. *One function computes the total.* The chooser compares [`StreamChoice::account`] with the budget, and a run allocates
//!    exactly these bytes.

use super::choice::{CpuChoice, Keeps, Options, TaskOrder};
use super::choose::choose;
use super::kernel::KernelSpec;
use super::layout::WorkspaceLayout;
use crate::attention::bias::BiasView;
use crate::attention::mask::MaskView;
use crate::attention::problem::Problem;
use crate::plan::ChooseError;
use crate::profile::DeviceProfile;

/// A purpose for which a streamed run uses memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// Memory that the process uses before the run: code, libraries, stacks.
    Fixed,
    /// Query rows, in two buffers.
    Queries,
    /// Keys and values, in two buffers.
    Keys,
    /// Slices of mask, bias and index, in two buffers, and the table of a bias.
    Added,
    /// Output rows.
    Outputs,
    /// Log-sum-exp and states of the output rows.
    States,
    /// Resident query tiles with their states.
    Resident,
    /// Workspace of the workers.
    Workspace,
    /// Page-locked host memory.
    Pinned,
    /// Device memory.
    Device,
}

impl Part {
    /// All parts, in the order in which accounts list them.
    pub const ALL: [Part; 10] = [
        Part::Fixed,
        Part::Queries,
        Part::Keys,
        Part::Added,
        Part::Outputs,
        Part::States,
        Part::Resident,
        Part::Workspace,
        Part::Pinned,
        Part::Device,
    ];

    /// Returns the name of the part in accounts.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Part::Fixed => "fixed",
            Part::Queries => "queries",
            Part::Keys => "keys",
            Part::Added => "added",
            Part::Outputs => "outputs",
            Part::States => "states",
            Part::Resident => "resident",
            Part::Workspace => "workspace",
            Part::Pinned => "pinned",
            Part::Device => "device",
        }
    }
}

/// The number of bytes that a streamed run uses for each [`Part`]. Sums saturate at `usize::MAX`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account([usize; Part::ALL.len()]);

impl Account {
    /// Returns the number of bytes that `part` uses.
    #[must_use]
    pub const fn of(&self, part: Part) -> usize {
        self.0[part as usize]
    }

    /// Sets the number of bytes of `part`.
    pub const fn set(&mut self, part: Part, bytes: usize) {
        self.0[part as usize] = bytes;
    }

    /// Returns the number of bytes of host memory: all parts except [`Part::Device`].
    #[must_use]
    pub fn host(&self) -> usize {
        Part::ALL
            .iter()
            .filter(|part| **part != Part::Device)
            .fold(0, |a, part| a.saturating_add(self.of(*part)))
    }

    /// Returns the number of bytes of host and device memory together, for a GPU that shares the host's memory.
    #[must_use]
    pub fn total(&self) -> usize {
        self.host().saturating_add(self.of(Part::Device))
    }

    /// Iterates over every part and its bytes.
    pub fn iter(&self) -> impl Iterator<Item = (Part, usize)> + '_ {
        Part::ALL.into_iter().map(|part| (part, self.of(part)))
    }
}

/// Memory limits of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Limit of host memory in bytes, including the bytes that the process already uses.
    pub host: usize,
    /// Limit of device memory in bytes; `None` for no limit.
    pub device: Option<usize>,
    /// `true` if the device allocates from the host's memory. The smaller limit then applies to the sum of host and
    /// device memory.
    pub one_pool: bool,
    /// Bytes that the process uses before the run.
    pub fixed: usize,
}

impl Limits {
    /// Returns the number of bytes of host memory that a run on the CPU may use.
    #[must_use]
    pub fn on_host(&self) -> usize {
        match self.device {
            Some(device) if self.one_pool => self.host.min(device),
            _ => self.host,
        }
    }
}

/// The outputs that a streamed run writes for each query row. Present keys and values need no additional memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// `true` if the output is written.
    pub output: bool,
    /// `true` if log-sum-exp is written.
    pub lse: bool,
    /// `true` if the states are written.
    pub states: bool,
}

/// Options of [`choose_stream`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamOptions {
    /// Options of the plan. The chooser ignores their budget and [`Method::Math`](super::Method::Math).
    pub plan: Options,
    /// The outputs to write.
    pub written: Written,
    /// Largest number of segments of keys in a chunk, at least one.
    pub segments: usize,
    /// Largest number of resident query tiles in all heads and sequences, at least one; `usize::MAX` for no limit.
    pub resident: usize,
    /// Memory limits of the run.
    pub limits: Limits,
    /// Sizes of units and chunks from the earlier run that this run continues; `None` to choose the sizes.
    pub sizes: Option<UnitSizes>,
}

/// Sizes of units and chunks, as in [`StreamChoice`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitSizes {
    /// Number of sequences per unit.
    pub sequences: usize,
    /// Number of query heads per unit.
    pub heads: usize,
    /// Number of query tiles per head in a unit.
    pub tiles: usize,
    /// Number of vectors in the widest tile.
    pub vectors: usize,
    /// Number of keys per chunk.
    pub chunk: usize,
}

impl StreamOptions {
    /// Default number of segments per chunk. With blocks of 64 keys, such a chunk has 4,096 keys.
    pub const SEGMENTS: usize = 8;
}

/// The result of [`choose_stream`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamChoice {
    /// The choice for the CPU. Its resident tiles are the tiles of one unit.
    pub cpu: CpuChoice,
    /// Number of sequences per unit. A unit with several sequences has all heads and rows of each sequence.
    pub sequences: usize,
    /// Number of query heads per unit: complete groups that share a key head, or part of one group. A unit with several
    /// heads has all rows of each head.
    pub heads: usize,
    /// Number of query tiles per head in a unit.
    pub tiles: usize,
    /// Number of keys per chunk, a multiple of the segment.
    pub chunk: usize,
    /// The memory of the run, part by part.
    pub account: Account,
}

impl StreamChoice {
    /// Returns the sizes of units and chunks.
    #[must_use]
    pub const fn sizes(&self) -> UnitSizes {
        let StreamChoice { sequences, heads, tiles, chunk, .. } = *self;
        UnitSizes { sequences, heads, tiles, vectors: self.cpu.vectors, chunk }
    }

    /// Returns the largest number of query rows that a unit has in one head of `problem`.
    #[must_use]
    pub fn rows(&self, problem: &Problem) -> usize {
        self.tiles.saturating_mul(self.cpu.width()).min(problem.spec().query.tokens())
    }

    /// Returns the number of key heads per unit.
    #[must_use]
    pub fn kv_heads(&self, problem: &Problem) -> usize {
        let group = problem.group();
        self.heads.div_ceil(group).max(1)
    }

    /// Returns the shape of the buffer for slices of `mask`: sequences, heads, rows and keys. A broadcast axis has one
    /// element. If a unit has several sequences and masks repeat along the batch, the buffer has all masks.
    #[must_use]
    pub fn slice(&self, problem: &Problem, mask: &MaskView) -> [usize; 4] {
        let [b, h, q, k] = mask.shape();
        let batch = match b {
            _ if self.sequences <= 1 => 1,
            b if b == problem.spec().query.batch() => self.sequences,
            b => b,
        };
        let of = |axis, n: usize| if axis == 1 { 1 } else { n };
        [of(b, batch), of(h, self.heads), of(q, self.rows(problem)), of(k, self.chunk)]
    }

    /// Returns the sizes in bytes of the slices of mask, bias and index in one buffer.
    #[must_use]
    pub fn slices(&self, problem: &Problem) -> [usize; 3] {
        let bytes = |mask: &MaskView| product(&self.slice(problem, mask)).saturating_mul(mask.kind().size());
        let spec = problem.spec();
        let (bias, index) = match &spec.bias {
            Some(BiasView::Dense(view)) => (bytes(view), 0),
            Some(BiasView::Table(table)) if table.indexed => {
                (0, product(&[self.rows(problem), self.chunk, 8]))
            }
            _ => (0, 0),
        };
        [spec.mask.as_ref().map_or(0, bytes), bias, index]
    }

    /// Returns the sizes in bytes of the keys and of the values in one buffer.
    #[must_use]
    pub fn chunk_bytes(&self, problem: &Problem) -> [usize; 2] {
        let rows =
            product(&[self.sequences, self.kv_heads(problem), self.chunk, problem.spec().dtype.size()]);
        [problem.head_dim(), problem.value_dim()].map(|dim| rows.saturating_mul(dim))
    }

    /// Returns the size in bytes of a table of relative positions, which is always completely resident; zero without a
    /// table.
    #[must_use]
    pub fn table_bytes(&self, problem: &Problem) -> usize {
        match &problem.spec().bias {
            Some(bias @ BiasView::Table(_)) => bias.extent().saturating_mul(bias.dtype().size()),
            _ => 0,
        }
    }

    /// Computes the memory of a run, part by part; `None` if the size of the workspace overflows.
    fn account(&self, problem: &Problem, options: &StreamOptions) -> Option<Account> {
        let layout = WorkspaceLayout::of(&self.cpu)?;
        let size = problem.spec().dtype.size();
        let rows = product(&[self.sequences, self.heads, self.rows(problem)]);
        let (d, dv) = (problem.head_dim(), problem.value_dim());
        let resident = product(&[self.cpu.resident, layout.tile_stride, 4]);
        let lines = |bytes: &[usize]| bytes.iter().fold(0usize, |a, n| a.saturating_add(line(*n)));
        let written = options.written;
        let mut account = Account::default();
        account.set(Part::Fixed, options.limits.fixed);
        account.set(Part::Queries, line(product(&[rows, d, size])).saturating_mul(2));
        account.set(Part::Keys, lines(&self.chunk_bytes(problem)).saturating_mul(2));
        let slices = lines(&self.slices(problem)).saturating_mul(2);
        account.set(Part::Added, slices.saturating_add(line(self.table_bytes(problem))));
        account.set(Part::Outputs, if written.output { line(product(&[rows, dv, size])) } else { 0 });
        let words = usize::from(written.lse) + if written.states { 2 + dv } else { 0 };
        account.set(Part::States, product(&[rows, words, 4]));
        account.set(Part::Resident, resident);
        account.set(Part::Workspace, layout.bytes().saturating_sub(resident));
        Some(account)
    }

    /// Returns this choice with the given numbers of sequences, heads and tiles per unit.
    fn with(&self, [sequences, heads, tiles]: [usize; 3]) -> StreamChoice {
        let resident = product(&[sequences, heads, tiles]);
        let mut next = StreamChoice { sequences, heads, tiles, ..*self };
        next.cpu.resident = resident.max(1);
        next.cpu.sequences = sequences;
        // Each worker needs at least eight tasks; with fewer, the last task leaves the other workers idle.
        let balanced = match self.cpu.workers {
            1 => usize::MAX,
            workers => (resident / workers.saturating_mul(8)).max(1),
        };
        next.cpu.group = self.cpu.group.min(balanced);
        next.cpu.heads = 1;
        next
    }
}

/// Returns the product of `sizes`, saturated at `usize::MAX`.
fn product(sizes: &[usize]) -> usize {
    sizes.iter().fold(1, |a, n| a.saturating_mul(*n))
}

/// Rounds a number of bytes up to a multiple of 64-byte lines.
fn line(bytes: usize) -> usize {
    bytes.checked_next_multiple_of(64).unwrap_or(usize::MAX)
}

/// Returns the largest number from `least` to `most` that satisfies `holds`. `least` itself must satisfy `holds`. If a
/// number does not satisfy it, no larger number may satisfy it.
fn largest(least: usize, most: usize, holds: impl Fn(usize) -> bool) -> usize {
    let (mut few, mut many) = (least, most.max(least) + 1);
    while many - few > 1 {
        let n = usize::midpoint(few, many);
        match holds(n) {
            true => few = n,
            false => many = n,
        }
    }
    few
}

/// Chooses the rows of `problem` that stay in memory while chunks of its keys are streamed, so that the run stays within its
/// limits. Kernel, block and segment are those of a run that does not stream, so the results are bit-identical.
///
/// # Errors
/// Returns the errors of [`choose`]. If even the smallest choice exceeds the budget, returns an error with the number
/// of bytes that this choice needs.
pub fn choose_stream<'a>(
    problem: &Problem,
    device: &DeviceProfile,
    kernels: impl IntoIterator<Item = &'a KernelSpec>,
    options: &StreamOptions,
) -> Result<StreamChoice, ChooseError> {
    let plan = Options { budget: None, ..options.plan };
    let mut cpu = choose(problem, device, kernels, &plan)?;
    // Data prepared for all keys cannot be kept, because only a chunk of the keys is in memory.
    (cpu.keeps, cpu.row_mask, cpu.order) = (Keeps::default(), false, TaskOrder::Tiles);
    let (queries, keys) = (problem.spec().query.tokens(), problem.keys());
    let budget = options.limits.on_host();
    let size =
        |choice: &StreamChoice| choice.account(problem, options).map_or(usize::MAX, |account| account.host());
    if let Some(sizes) = options.sizes {
        return repeated(problem, &cpu, &sizes, size, budget).map(|mut choice| {
            choice.account = choice.account(problem, options).unwrap_or_default();
            choice
        });
    }
    let fits = |choice: &StreamChoice| choice.cpu.resident <= options.resident && size(choice) <= budget;
    let longest = keys.div_ceil(cpu.segment).max(1);
    let mut segments = options.segments.clamp(1, longest);
    let first = StreamChoice { cpu, sequences: 1, heads: 1, tiles: 1, chunk: 0, account: Account::default() };
    let mut best: Option<(usize, StreamChoice)> = None;
    loop {
        let start = StreamChoice { chunk: segments * cpu.segment, ..first }.with([1, 1, 1]);
        if size(&start) <= budget {
            let found = grow(problem, &start, queries, fits);
            let resident = found.cpu.resident;
            // Earlier iterations had longer chunks; a shorter chunk must allow a third more rows.
            if best.is_none_or(|(most, _)| resident.saturating_mul(3) >= most.saturating_mul(4)) {
                best = Some((resident, found));
            }
        }
        if segments == 1 {
            break;
        }
        segments = segments.div_ceil(2);
    }
    if let Some((_, mut choice)) = best {
        choice.account = choice.account(problem, options).unwrap_or_default();
        return Ok(choice);
    }
    smallest(&StreamChoice { chunk: cpu.segment, ..first }, size, budget).map(|mut choice| {
        choice.account = choice.account(problem, options).unwrap_or_default();
        choice
    })
}

/// Returns the choice with the sizes of units and chunks of an earlier run, clamped to the sizes of the problem.
fn repeated(
    problem: &Problem,
    cpu: &CpuChoice,
    sizes: &UnitSizes,
    size: impl Fn(&StreamChoice) -> usize,
    budget: usize,
) -> Result<StreamChoice, ChooseError> {
    let (heads, group) = (problem.heads(), problem.group());
    let several = if problem.spec().packed.is_some() { 1 } else { problem.spec().query.batch() };
    let whole = if sizes.heads < group { sizes.heads } else { sizes.heads / group * group };
    let cpu = CpuChoice { vectors: sizes.vectors.clamp(1, cpu.vectors), ..*cpu };
    let tiles = cpu.tiling(problem.spec().query.tokens()).count().max(1);
    let chunk = sizes.chunk.clamp(1, problem.keys().max(1)).next_multiple_of(cpu.segment);
    let start = StreamChoice { cpu, sequences: 1, heads: 1, tiles: 1, chunk, account: Account::default() };
    let choice = start.with([
        sizes.sequences.clamp(1, several.max(1)),
        whole.clamp(1, heads.max(1)),
        sizes.tiles.clamp(1, tiles),
    ]);
    match size(&choice) {
        needed if needed <= budget => Ok(choice),
        needed => Err(ChooseError::HostBudget { needed, budget }),
    }
}

/// Adds tiles, then heads, then sequences to a unit, as long as `fits` accepts the choice.
fn grow(
    problem: &Problem,
    start: &StreamChoice,
    queries: usize,
    fits: impl Fn(&StreamChoice) -> bool,
) -> StreamChoice {
    let all = start.cpu.tiling(queries).count().max(1);
    let tiles = largest(1, all, |tiles| fits(&start.with([1, 1, tiles])));
    if tiles < all {
        return start.with([1, 1, tiles]);
    }
    let (heads, group) = (problem.heads().max(1), problem.group());
    let in_group = largest(1, group, |heads| fits(&start.with([1, heads, tiles])));
    if in_group < group {
        return start.with([1, in_group, tiles]);
    }
    let groups = largest(1, heads / group, |groups| fits(&start.with([1, groups * group, tiles])));
    // Sequences of a packed problem have different lengths, so a unit has only one of them.
    if groups * group < heads || problem.spec().packed.is_some() {
        return start.with([1, groups * group, tiles]);
    }
    let batch = problem.spec().query.batch();
    let sequences = largest(1, batch, |sequences| fits(&start.with([sequences, heads, tiles])));
    start.with([sequences, heads, tiles])
}

/// Returns the first choice within the budget that has one tile and one segment. Tries fewer workers first, then
/// narrower tiles.
fn smallest(
    start: &StreamChoice,
    size: impl Fn(&StreamChoice) -> usize,
    budget: usize,
) -> Result<StreamChoice, ChooseError> {
    let mut choice = start.with([1, 1, 1]);
    choice.cpu.group = 1;
    loop {
        match size(&choice) {
            needed if needed <= budget => return Ok(choice),
            _ if choice.cpu.workers > 1 => choice.cpu.workers -= 1,
            _ if choice.cpu.vectors > 1 => choice.cpu.vectors -= 1,
            needed => return Err(ChooseError::HostBudget { needed, budget }),
        }
    }
}
