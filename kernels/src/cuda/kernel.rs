//! A GPU kernel as data.

use super::linear::{LinearQuadratic, LinearWalk};
use elsa_core::attention::plan::{GpuKernelSpec, GpuResources};

/// A GPU kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuKernel {
    /// Name of the entry point, and of the module, which has no other.
    pub name: &'static str,
    /// The module as PTX.
    pub ptx: Ptx,
    /// The module assembled for one GPU, if the build has it.
    pub cubin: Option<&'static [u8]>,
    /// Purpose, with its tile and resources.
    pub role: Role,
}

/// A module in PTX, compressed together with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ptx {
    /// Version of its PTX instruction set, such as `6.5`.
    pub isa: &'static str,
    /// Length of the text in bytes, including the final zero.
    pub bytes: usize,
    /// A lzip file with the packed texts of several modules, concatenated, each followed by a zero.
    pub lzip: &'static [u8],
    /// Offset of this module's packed text in the decompressed contents.
    pub start: usize,
    /// Length of the packed text in bytes, including the final zero. Registers are encoded as in
    /// [`registers`](super::registers).
    pub packed: usize,
}

/// Purpose of a GPU kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Role {
    /// Attention of query tiles, launched on `sequences · heads · splits · row_blocks` blocks. `row_blocks` is the
    /// number of blocks of [`GpuKernelSpec::rows`] rows in the longest sequence. If a block serves all query heads that
    /// share keys, `heads` counts key heads and a block's rows belong to all heads of the group. Takes
    /// [`AttentionArgs`](super::attention::AttentionArgs).
    Attention(GpuKernelSpec),
    /// Attention of query tiles inside an error budget; takes [`WithinArgs`](super::attention::WithinArgs).
    AttentionWithin(GpuKernelSpec),
    /// Merge of any number of partial states of [`Role::AttentionWithin`]; takes
    /// [`WithinArgs`](super::attention::WithinArgs).
    AttentionMergeWithin {
        /// Partial states of a row that are merged at once.
        states: usize,
        /// SM resources of a block.
        resources: GpuResources,
    },
    /// Merge of the partial states of attention, in the tree over splits; writes all outputs of a finished row.
    /// Launched on [`merge_blocks`](super::attention::merge_blocks) blocks; takes
    /// [`AttentionArgs`](super::attention::AttentionArgs).
    AttentionMerge {
        /// Partial states of a row that are merged at once.
        states: usize,
        /// Largest number of partial states of a row.
        most: usize,
        /// SM resources of a block.
        resources: GpuResources,
    },
    /// Merge of the partial states of a chunk of keys with those of earlier chunks; writes all outputs of a row after
    /// the last chunk. Launched on [`merge_blocks`](super::attention::merge_blocks) blocks; takes
    /// [`StreamArgs`](super::attention::StreamArgs).
    AttentionStream {
        /// Partial states of a row that are merged at once.
        states: usize,
        /// SM resources of a block.
        resources: GpuResources,
    },
    /// Magnitudes of the elements of a call's tensors, one record per block, for any number of blocks; takes
    /// [`MeasureArgs`](super::attention::MeasureArgs).
    AttentionMeasure {
        /// SM resources of a block.
        resources: GpuResources,
    },
    /// Tiles of the score matrix, for method math. Launched on `sequences · heads · row_blocks · columns` blocks; takes
    /// [`MathArgs`](super::attention::MathArgs).
    MathScores {
        /// SM resources of a block.
        resources: GpuResources,
    },
    /// Rows of scores turned into weights, for method math. Launched on one block per
    /// [`MATH_ROWS`](super::attention::MATH_ROWS) rows; takes [`MathArgs`](super::attention::MathArgs).
    MathWeights {
        /// SM resources of a block.
        resources: GpuResources,
    },
    /// Product of weights and values, and outputs, for method math. Launched like the score kernel, with the columns of
    /// the values; takes [`MathArgs`](super::attention::MathArgs). Its specification describes all three steps.
    MathValues(GpuKernelSpec),
    /// Linear attention: carries a state through tokens. Launched on [`walk_blocks`](super::linear::walk_blocks)
    /// blocks; takes [`LinearArgs`](super::linear::LinearArgs).
    LinearWalk {
        /// Shape of the walk.
        walk: LinearWalk,
        /// SM resources of a block.
        resources: GpuResources,
    },
    /// Linear attention: the parts of a chunk's products that do not depend on the state. Launched on
    /// [`prepare_blocks`](super::linear::prepare_blocks) blocks; takes [`LinearArgs`](super::linear::LinearArgs).
    LinearPrepare {
        /// `true` for a gate per dim; `false` for one gate per head or none.
        per_dim: bool,
        /// `true` for a delta rule.
        delta: bool,
        /// SM resources of a block.
        resources: GpuResources,
    },
    /// Linear attention: sums of the log gates of each part. Launched on one block per part and state; takes
    /// [`SumsArgs`](super::linear::SumsArgs).
    LinearSums {
        /// SM resources of a block.
        resources: GpuResources,
    },
    /// Linear attention: the scan over parts. Launched on [`carry_blocks`](super::linear::carry_blocks) blocks per node
    /// of a step, or per state; takes [`CarryArgs`](super::linear::CarryArgs).
    LinearCarry {
        /// SM resources of a block.
        resources: GpuResources,
    },
    /// First-order recurrence. Launched on one warp per item; takes [`RecurrenceArgs`](super::series::RecurrenceArgs).
    Recurrence {
        /// SM resources of a block.
        resources: GpuResources,
    },
    /// Selective scan. Launched on one block per tile, sequence and listed part; takes
    /// [`SelectiveArgs`](super::series::SelectiveArgs).
    Selective {
        /// SM resources of a block.
        resources: GpuResources,
    },
    /// Direct convolution. Launched on one warp per item; takes [`ConvolutionArgs`](super::series::ConvolutionArgs).
    Convolution {
        /// SM resources of a block.
        resources: GpuResources,
    },
    /// Linear attention in quadratic time, without intermediate states. Launched on
    /// [`walk_blocks`](super::linear::walk_blocks) blocks; takes [`LinearArgs`](super::linear::LinearArgs).
    LinearParallel {
        /// Step that it computes.
        step: LinearQuadratic,
        /// `true` for a gate per dim; `false` for one gate per head or none. The kernel of last states handles both.
        per_dim: bool,
        /// SM resources of a block.
        resources: GpuResources,
    },
    /// Concatenation of earlier and new keys or values; takes [`PresentArgs`](super::attention::PresentArgs).
    AttentionPresent {
        /// SM resources of a block.
        resources: GpuResources,
    },
}

impl GpuKernel {
    /// Returns the SM resources of a block.
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

    /// Returns the specification of an attention kernel inside an error budget, `None` for any other kernel.
    #[must_use]
    pub const fn within(&self) -> Option<&GpuKernelSpec> {
        match &self.role {
            Role::AttentionWithin(spec) => Some(spec),
            _ => None,
        }
    }

    /// Returns the specification of an attention kernel without a budget, `None` for any other kernel.
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
