//! GPU kernels: what each is, the PTX that holds it, and what a launch is told.
//!
//! The device code lies in `kernels/cuda`, and the PTX that is generated from it in `kernels/ptx/sm_62`.

pub mod call;

/// Rows and types that a GPU kernel is made for, what it takes of an SM, and its error constants.
///
/// A kernel is launched with [`GpuKernel::threads`] threads a block on
/// `sequences · heads · splits · row_blocks` blocks, `row_blocks` being the blocks of [`GpuKernel::rows`] rows of
/// the longest sequence; all of it is in [`call::Call`], its only parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuKernel {
    /// Its name: of the entry point, and of the module that holds nothing else.
    pub name: &'static str,
    /// PTX text, zero-terminated.
    pub ptx: &'static str,
    /// The same, assembled for one device, where the build has it.
    pub cubin: Option<&'static [u8]>,
    /// What the kernel is for.
    pub role: Role,
    /// Threads of a block.
    pub threads: u32,
    /// Query rows of a block.
    pub rows: usize,
    /// Keys of a tile; parts of the keys are multiples of it.
    pub keys: usize,
    /// Static shared memory of a block in bytes.
    pub shared: usize,
    /// Registers of a thread on sm_62.
    pub registers: usize,
    /// Keys in the longest chain of additions before sums are added to those in memory.
    pub flush: usize,
    /// Longest chain of multiply-adds in a score, for head sizes up to the kernel's.
    pub chain: usize,
    /// Largest relative error of a weight against `2^x`, as the instruction set promises it.
    pub exp2_relative: f64,
    /// Longest chain of products of halves that is summed in halves before singles take over; zero where singles
    /// multiply.
    pub half_chain: usize,
}

/// Threads of a block of the merge (`kernels/cuda/attention/merge.cuh`).
const MERGE_THREADS: usize = 128;

/// Blocks of a merge that takes in `states` at once, for `rows` rows of `splits` partial states with `part_dim` columns
/// each.
///
/// Of few splits a team of lanes has a row, four columns a lane, so that a block has several; of more, a block has
/// one.
#[must_use]
pub const fn merge_blocks(states: usize, rows: usize, splits: usize, part_dim: usize) -> usize {
    if splits > states {
        return rows;
    }
    let lanes = match part_dim {
        0..=32 => 8,
        33..=64 => 16,
        _ => 32,
    };
    rows.div_ceil(MERGE_THREADS / lanes)
}

/// What a GPU kernel is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Attention of query tiles for head sizes up to `head_dim`, both of keys and of values.
    Attention {
        /// Largest head size.
        head_dim: usize,
        /// Whether it takes 16-bit types instead of singles.
        half: bool,
        /// Whether products of halves are summed in halves, [`GpuKernel::half_chain`] at a time: halves alone.
        half_scores: bool,
        /// Most query rows of a sequence that it is meant for.
        most_queries: usize,
        /// The same of a plain problem, whose window is open to the right, and which has neither a mask of elements
        /// nor a soft cap nor a past.
        most_plain: usize,
    },
    /// Merge of partial states in the tree over splits, and everything that a finished row gives.
    Merge {
        /// Partial states of a row that it takes in at once.
        states: usize,
        /// Partial states that a row may have.
        most: usize,
    },
    /// Earlier and new rows one after the other.
    Present,
}

#[cfg(feature = "cuda")]
mod table;
#[cfg(feature = "cuda")]
pub use table::GPU_KERNELS;

/// Every GPU kernel of this build: none, without the feature `cuda`.
#[cfg(not(feature = "cuda"))]
pub static GPU_KERNELS: &[GpuKernel] = &[];
