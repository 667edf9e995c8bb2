//! The one pure chooser: from a problem, a device and options to everything that `run` does not decide.

use super::{KernelSpec, KeyLayout, Layout};
use crate::problem::Problem;
use crate::profile::DeviceProfile;
use crate::schedule::{BLOCKS_PER_SEGMENT, MergeStack, Tiling};
use crate::view::DType;
use core::fmt;

/// How the answer is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// The scan: scores never leave a block.
    #[default]
    Elsa,
    /// The score matrix is materialised, then the softmax, then the product: the baseline to compare with,
    /// made of the same inner loops.
    Math,
}

/// What the caller wishes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// How the answer is computed.
    pub method: Method,
    /// Keys in a block: 64, 128 or 256.
    pub block: usize,
    /// Most bytes of workspace.
    pub budget: Option<usize>,
    /// Workers that there are.
    pub workers: usize,
    /// Whether all of them take part where there are tiles for them, however little there is to do.
    pub all_workers: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { method: Method::Elsa, block: 64, budget: None, workers: 1, all_workers: false }
    }
}

/// Why there is no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanError {
    /// A block size that is not offered.
    Block {
        /** The size. */
        found: usize,
    },
    /// Among the candidates no kernel for as many queries.
    NoKernel,
    /// Method math for packed sequences.
    Packed,
    /// Method math on a GPU.
    Math,
    /// A head size that no kernel of the GPU takes.
    HeadSize {
        /** The greater of the two head sizes. */
        found: usize,
        /** The greatest that is taken. */
        max: usize,
    },
    /// More than the GPU's kernels count.
    Extent {
        /** What is counted. */
        axis: &'static str,
        /** How many there are. */
        found: usize,
        /** The most. */
        max: usize,
    },
    /// Not even the smallest workspace fits the budget.
    Budget {
        /** Bytes that it needs. */
        needed: usize,
        /** Bytes that are allowed. */
        budget: usize,
    },
    /// The workspace cannot be counted in bytes, or the memory for it is not there.
    Memory {
        /** Bytes that it needs, as far as they can be counted. */
        needed: usize,
    },
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            PlanError::Block { found } => write!(f, "block: {found}; allowed: 64, 128 or 256"),
            PlanError::NoKernel => {
                write!(f, "kernel: none for as many queries; allowed: one that takes any number")
            }
            PlanError::Packed => write!(f, "method: math with packed sequences; allowed: elsa"),
            PlanError::Math => write!(f, "method: math on a GPU; allowed: elsa"),
            PlanError::HeadSize { found, max } => {
                write!(f, "q: head size {found} on a GPU; allowed: at most {max}")
            }
            PlanError::Extent { axis, found, max } => {
                write!(f, "q: {found} {axis} on a GPU; allowed: at most {max}")
            }
            PlanError::Budget { needed, budget } => {
                write!(f, "budget: {budget} bytes; allowed: at least {needed} for this problem")
            }
            PlanError::Memory { needed } => {
                write!(f, "workspace: {needed} bytes cannot be had; allowed: what the machine's memory holds")
            }
        }
    }
}

impl core::error::Error for PlanError {}

/// Everything that is decided before pointers are known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// The micro-kernel.
    pub kernel: KernelSpec,
    /// How the answer is computed.
    pub method: Method,
    /// Keys in a block.
    pub block: usize,
    /// Keys in a segment.
    pub segment: usize,
    /// Segments of the longest sequence.
    pub segments: usize,
    /// Vectors in the widest tile.
    pub vectors: usize,
    /// Query tiles that share a key block.
    pub group: usize,
    /// Workers.
    pub workers: usize,
    /// Head size of queries and keys, rounded up to a multiple of four.
    pub head_dim: usize,
    /// Head size of values, rounded up to a multiple of four.
    pub value_dim: usize,
    /// Whether keys are copied into shape block by block.
    pub stage_keys: bool,
    /// Whether values are.
    pub stage_values: bool,
    /// Whether query and output rows go through singles because the tensors hold another type.
    pub convert: bool,
    /// Whether tiles may be partly masked.
    pub masked: bool,
    /// Sequences.
    pub sequences: usize,
    /// Query rows and keys of the longest sequence, and how many heads of sequences there are.
    pub extent: [usize; 3],
}

impl Choice {
    /// Rows of the widest tile.
    #[must_use]
    pub const fn width(&self) -> usize {
        self.vectors * self.kernel.lanes
    }

    /// Tiles over `rows` query rows.
    #[must_use]
    pub const fn tiling(&self, rows: usize) -> Tiling {
        Tiling::new(rows, self.kernel.lanes, self.vectors)
    }

    /// States that a tile keeps: pending segments and the current one.
    #[must_use]
    pub const fn levels(&self) -> usize {
        match self.method {
            Method::Elsa => MergeStack::capacity(self.segments),
            Method::Math => 1,
        }
    }
}

/// Most query tiles that share a key block.
pub const MOST_TILES: usize = 24;

/// Multiply-adds for each lane that make a worker worth waking.
const WORK_PER_LANE: f64 = 32_768.0;

/// Chooses kernel, tiles, division and workspace for `problem` on `device`. Of `kernels`, which must all be
/// present there and are in order of preference, the first that is meant for as many queries is taken.
///
/// Nothing here changes a bit of the answer except the kernel, `method` and `block`: tile width, group and
/// workers only say who computes a row, and when. The kernel depends on the number of queries of a sequence,
/// never on the batch; packed sequences, whose lengths come with the data, take the one for any number.
///
/// A budget is a hard cap. Where the preferred form does not fit, fewer tiles share a block, then fewer
/// workers run, then tiles get narrower.
///
/// # Errors
/// A block size that is not offered; a budget that even the smallest form exceeds; no kernel.
pub fn choose<'a>(
    problem: &Problem,
    device: &DeviceProfile,
    kernels: impl IntoIterator<Item = &'a KernelSpec>,
    options: &Options,
) -> Result<Choice, PlanError> {
    if ![64, 128, 256].contains(&options.block) {
        return Err(PlanError::Block { found: options.block });
    }
    let s = problem.spec();
    if s.packed.is_some() && options.method == Method::Math {
        return Err(PlanError::Packed);
    }
    let (queries, keys) = (s.query.tokens(), problem.keys());
    let at_once = if s.packed.is_some() { usize::MAX } else { queries };
    let kernel = kernels.into_iter().find(|k| at_once <= k.most_queries).ok_or(PlanError::NoKernel)?;
    let (d, dv) = (problem.head_dim(), problem.value_dim());
    let segment = options.block * BLOCKS_PER_SEGMENT;
    let shaped = s.dtype != DType::F32 || s.past_key.is_some();
    let heads = problem.sequences().saturating_mul(problem.heads());
    let tiles = Tiling::new(queries, kernel.lanes, kernel.vectors).count().max(1);
    // A worker must have more to do than waking it costs: some microseconds of arithmetic.
    let work = heads as f64 * queries as f64 * keys as f64 * (d + dv) as f64;
    let worth =
        if options.all_workers { f64::INFINITY } else { work / (WORK_PER_LANE * kernel.lanes as f64) };
    let workers = (worth.clamp(1.0, options.workers.max(1) as f64) as usize)
        .clamp(1, tiles.saturating_mul(heads).max(1));
    let mut choice = Choice {
        kernel: *kernel,
        method: options.method,
        block: options.block,
        segment,
        segments: keys.div_ceil(segment).max(1),
        vectors: kernel.vectors,
        group: 1,
        workers,
        head_dim: d.next_multiple_of(4),
        value_dim: dv.next_multiple_of(4),
        stage_keys: shaped || !d.is_multiple_of(4) || matches!(kernel.keys, KeyLayout::Panels(_)),
        stage_values: shaped || !dv.is_multiple_of(4),
        convert: s.dtype != DType::F32,
        masked: s.mask.is_some()
            || s.causal.is_some()
            || s.window.left.is_some()
            || s.window.right.is_some()
            || s.key_lengths,
        sequences: problem.sequences(),
        extent: [queries, keys, heads],
    };
    // As many tiles share a block as keep eight units for every worker, and their states half of L2.
    let even = match workers {
        1 => usize::MAX,
        _ => (tiles.saturating_mul(heads) / (8 * workers)).max(1),
    };
    let state = (choice.head_dim + choice.levels() * (choice.value_dim + 2)) * choice.width() * 4;
    let cached = (device.l2 / 2 / state).max(1);
    // Where blocks are copied into shape, more tiles share the copy.
    let preferred =
        if choice.stage_keys || choice.stage_values { kernel.group.max(MOST_TILES) } else { kernel.group };
    choice.group = preferred.min(even).min(tiles).min(cached);
    let size = |choice: &Choice| Layout::of(choice).map(|layout| layout.bytes());
    let Some(budget) = options.budget else {
        return match size(&choice) {
            Some(_) => Ok(choice),
            None => Err(PlanError::Memory { needed: usize::MAX }),
        };
    };
    loop {
        match size(&choice) {
            Some(needed) if needed <= budget => return Ok(choice),
            _ if choice.group > 1 => choice.group = choice.group.div_ceil(2),
            _ if choice.workers > 1 => choice.workers -= 1,
            _ if choice.vectors > 1 => choice.vectors -= 1,
            needed => return Err(PlanError::Budget { needed: needed.unwrap_or(usize::MAX), budget }),
        }
    }
}
