//! What is asked of the chooser, and what it decides.

use super::kernel::KernelSpec;
use crate::attention::schedule::Tiling;
use crate::scan::stack::MergeStack;
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

/// Keys in a block that are offered.
pub const BLOCK_SIZES: [usize; 3] = [64, 128, 256];

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
pub enum ChooseError {
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

impl fmt::Display for ChooseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            ChooseError::Block { found } => write!(f, "block: {found}; allowed: 64, 128 or 256"),
            ChooseError::NoKernel => {
                write!(f, "kernel: none for as many queries; allowed: one that takes any number")
            }
            ChooseError::Packed => write!(f, "method: math with packed sequences; allowed: elsa"),
            ChooseError::Math => write!(f, "method: math on a GPU; allowed: elsa"),
            ChooseError::HeadSize { found, max } => {
                write!(f, "q: head size {found} on a GPU; allowed: at most {max}")
            }
            ChooseError::Extent { axis, found, max } => {
                write!(f, "q: {found} {axis} on a GPU; allowed: at most {max}")
            }
            ChooseError::Budget { needed, budget } => {
                write!(f, "budget: {budget} bytes; allowed: at least {needed} for this problem")
            }
            ChooseError::Memory { needed } => {
                write!(f, "workspace: {needed} bytes cannot be had; allowed: what the machine's memory holds")
            }
        }
    }
}

impl core::error::Error for ChooseError {}

/// Everything that is decided before pointers are known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuChoice {
    /// The micro-kernel.
    pub kernel: KernelSpec,
    /// Its position among the candidates.
    pub candidate: usize,
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

impl CpuChoice {
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
