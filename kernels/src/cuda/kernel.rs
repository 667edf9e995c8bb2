//! Description of a GPU kernel: name, code and role.

use super::linear::{LinearQuadratic, LinearWalk};
use elsa_core::attention::plan::{GpuKernelSpec, GpuResources};

/// GPU kernel with its code and role.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuKernel {
    /// Name of the module and of its only entry point.
    pub name: &'static str,
    /// The module as PTX.
    pub ptx: Ptx,
    /// The module assembled for one GPU; `None` if the build does not include it.
    pub cubin: Option<&'static [u8]>,
    /// Purpose of the kernel, with its tile and resources.
    pub role: Role,
}

/// Module in PTX, compressed together with other modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ptx {
    /// Version of the PTX instruction set, such as `6.5`.
    pub isa: &'static str,
    /// Length of the text in bytes, including the final zero.
    pub bytes: usize,
    /// An lzip file that contains the packed texts of several modules, each followed by a zero byte.
    pub lzip: &'static [u8],
    /// Offset of this module's packed text in the decompressed file.
    pub start: usize,
    /// Length of the packed text in bytes, including the final zero. Registers are encoded as in
    /// [`registers`](super::registers).
    pub packed: usize,
}

/// Purpose of a GPU kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Role {
    /// Attention of query tiles, launched on `sequences · heads · splits · row_blocks` blocks. `row_blocks` is the
    /// number of blocks of [`GpuKernelSpec::rows`] rows in the longest sequence. If a block computes all query heads
    /// that share keys, `heads` is the number of key heads, and the rows of a block belong to all query heads of the
    /// group. Takes [`AttentionArgs`](super::attention::AttentionArgs).
    Attention(GpuKernelSpec),
    /// Attention of query tiles within an error budget; takes [`WithinArgs`](super::attention::WithinArgs).
    AttentionWithin(GpuKernelSpec),
    /// Merge of any number of partial states that [`Role::AttentionWithin`] wrote; takes
    /// [`WithinArgs`](super::attention::WithinArgs).
    AttentionMergeWithin {
        /// Number of partial states of a row that are merged at once.
        states: usize,
        /// SM resources per block.
        resources: GpuResources,
    },
    /// Merge of the partial states of attention, as a tree over the splits; writes all outputs of a finished row.
    /// Launched on [`merge_blocks`](super::attention::merge_blocks) blocks; takes
    /// [`AttentionArgs`](super::attention::AttentionArgs).
    AttentionMerge {
        /// Number of partial states of a row that are merged at once.
        states: usize,
        /// Largest number of partial states per row that the kernel supports.
        most: usize,
        /// SM resources per block.
        resources: GpuResources,
    },
    /// Merge of the partial states of a chunk of keys with the states of earlier chunks; after the last chunk, writes
    /// all outputs of a row. Launched on [`merge_blocks`](super::attention::merge_blocks) blocks; takes
    /// [`StreamArgs`](super::attention::StreamArgs).
    AttentionStream {
        /// Number of partial states of a row that are merged at once.
        states: usize,
        /// SM resources per block.
        resources: GpuResources,
    },
    /// Measurement of the magnitudes of a call's elements. Launched on any number of blocks, which write one record
    /// each; takes [`MeasureArgs`](super::attention::MeasureArgs).
    AttentionMeasure {
        /// SM resources per block.
        resources: GpuResources,
    },
    /// Tiles of the score matrix, for method math. Launched on `sequences · heads · row_blocks · columns` blocks; takes
    /// [`MathArgs`](super::attention::MathArgs).
    MathScores {
        /// SM resources per block.
        resources: GpuResources,
    },
    /// Conversion of rows of scores to weights, for method math. Launched on one block per
    /// [`MATH_ROWS`](super::attention::MATH_ROWS) rows; takes [`MathArgs`](super::attention::MathArgs).
    MathWeights {
        /// SM resources per block.
        resources: GpuResources,
    },
    /// Product of weights and values, for method math; writes the outputs. Launched like [`Role::MathScores`], except
    /// that `columns` counts column blocks of the values; takes [`MathArgs`](super::attention::MathArgs). The
    /// specification of this kernel describes all three steps of method math.
    MathValues(GpuKernelSpec),
    /// Linear attention: carries a state through tokens. Launched on [`walk_blocks`](super::linear::walk_blocks)
    /// blocks; takes [`LinearArgs`](super::linear::LinearArgs).
    LinearWalk {
        /// Sizes and variant of the kernel.
        walk: LinearWalk,
        /// SM resources per block.
        resources: GpuResources,
    },
    /// Linear attention: the parts of a chunk's products that do not depend on the state. Launched on
    /// [`prepare_blocks`](super::linear::prepare_blocks) blocks; takes [`LinearArgs`](super::linear::LinearArgs).
    LinearPrepare {
        /// `true` for a gate per dim; `false` for one gate per head or none.
        per_dim: bool,
        /// `true` for a delta rule.
        delta: bool,
        /// SM resources per block.
        resources: GpuResources,
    },
    /// Linear attention: sums of the log gates over each part. Launched on one block per part and state; takes
    /// [`SumsArgs`](super::linear::SumsArgs).
    LinearSums {
        /// SM resources per block.
        resources: GpuResources,
    },
    /// Linear attention: the scan that carries states over the parts of sequences. Launched on
    /// [`carry_blocks`](super::linear::carry_blocks) blocks per node of a step if transitions are dense, or per state
    /// if they are diagonal. Takes [`CarryArgs`](super::linear::CarryArgs).
    LinearCarry {
        /// SM resources per block.
        resources: GpuResources,
    },
    /// First-order recurrence. Launched on one warp per [item](super::series::RecurrenceArgs::items); takes
    /// [`RecurrenceArgs`](super::series::RecurrenceArgs).
    Recurrence {
        /// SM resources per block.
        resources: GpuResources,
    },
    /// Selective scan. Launched on one block for each combination of tile, listed part and sequence; takes
    /// [`SelectiveArgs`](super::series::SelectiveArgs).
    Selective {
        /// SM resources per block.
        resources: GpuResources,
    },
    /// Direct convolution. Launched on one warp per [item](super::series::ConvolutionArgs::items); takes
    /// [`ConvolutionArgs`](super::series::ConvolutionArgs).
    Convolution {
        /// SM resources per block.
        resources: GpuResources,
    },
    /// Linear attention in quadratic time, without intermediate states. Launched on
    /// [`walk_blocks`](super::linear::walk_blocks) blocks; takes [`LinearArgs`](super::linear::LinearArgs).
    LinearParallel {
        /// The step that the kernel computes.
        step: LinearQuadratic,
        /// `true` for a gate per dim; `false` for one gate per head or none. [`LinearQuadratic::Last`] handles both.
        per_dim: bool,
        /// SM resources per block.
        resources: GpuResources,
    },
    /// Concatenation of past and new keys or values; takes [`PresentArgs`](super::attention::PresentArgs).
    AttentionPresent {
        /// SM resources per block.
        resources: GpuResources,
    },
}

impl GpuKernel {
    /// Returns the SM resources per block.
    #[must_use]
    pub const fn resources(&self) -> GpuResources {
        match &self.role {
            Role::Attention(spec) | Role::AttentionWithin(spec) | Role::MathValues(spec) => spec.resources,
            Role::MathScores { resources }
            | Role::MathWeights { resources }
            | Role::AttentionMerge { resources, .. }
            | Role::AttentionMergeWithin { resources, .. }
            | Role::AttentionStream { resources, .. }
            | Role::AttentionMeasure { resources }
            | Role::LinearWalk { resources, .. }
            | Role::LinearPrepare { resources, .. }
            | Role::LinearSums { resources }
            | Role::LinearCarry { resources }
            | Role::Recurrence { resources }
            | Role::Selective { resources }
            | Role::Convolution { resources }
            | Role::LinearParallel { resources, .. }
            | Role::AttentionPresent { resources } => *resources,
        }
    }

    /// Returns the specification of a kernel that computes attention within an error budget, or `None` for any other
    /// kernel.
    #[must_use]
    pub const fn within(&self) -> Option<&GpuKernelSpec> {
        match &self.role {
            Role::AttentionWithin(spec) => Some(spec),
            _ => None,
        }
    }

    /// Returns the specification of a kernel that computes attention without an error budget, or `None` for any other
    /// kernel.
    #[must_use]
    pub const fn attention(&self) -> Option<&GpuKernelSpec> {
        match &self.role {
            Role::Attention(spec) => Some(spec),
            Role::MathScores { .. }
            | Role::MathWeights { .. }
            | Role::MathValues(_)
            | Role::AttentionWithin(_)
            | Role::AttentionMerge { .. }
            | Role::AttentionMergeWithin { .. }
            | Role::AttentionStream { .. }
            | Role::AttentionMeasure { .. }
            | Role::LinearWalk { .. }
            | Role::LinearPrepare { .. }
            | Role::LinearSums { .. }
            | Role::LinearCarry { .. }
            | Role::Recurrence { .. }
            | Role::Selective { .. }
            | Role::Convolution { .. }
            | Role::LinearParallel { .. }
            | Role::AttentionPresent { .. } => None,
        }
    }
}
