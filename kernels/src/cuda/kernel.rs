//! A GPU kernel as data.

use super::linear::{LinearQuadratic, LinearWalk};
use elsa_core::attention::plan::{GpuKernelSpec, GpuResources};

/// A GPU kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuKernel {
    /// Its name: of the entry point, and of the module, which holds nothing else.
    pub name: &'static str,
    /// The module as PTX.
    pub ptx: Ptx,
    /// The module assembled for one GPU, where the build has it.
    pub cubin: Option<&'static [u8]>,
    /// What the kernel is for.
    pub role: Role,
}

/// A module in PTX, compressed together with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ptx {
    /// Version of the PTX instruction set in which it is written, such as `6.5`.
    pub isa: &'static str,
    /// Length of the text in bytes, with the zero that ends it.
    pub bytes: usize,
    /// A lzip file of the packed texts of several modules, one behind the other, each with the zero that ends it.
    pub lzip: &'static [u8],
    /// Where in its contents the packed text of this module begins.
    pub start: usize,
    /// Length of the packed text in bytes, with the zero that ends it. Its registers are written as
    /// [`registers`](super::registers) tells.
    pub packed: usize,
}

/// What a GPU kernel is for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Role {
    /// Attention of query tiles. Launched on `sequences · heads · splits · row_blocks` blocks, `row_blocks` being the
    /// blocks of [`GpuKernelSpec::rows`] rows of the longest sequence; where a block serves the heads that share keys,
    /// `heads` are those of keys, and rows are of all heads of a group; takes [`AttentionArgs`](super::attention::AttentionArgs).
    Attention(GpuKernelSpec),
    /// The same inside an error budget; takes [`WithinArgs`](super::attention::WithinArgs).
    AttentionWithin(GpuKernelSpec),
    /// Merge of the partial states of [`Role::AttentionWithin`], any number of them; takes
    /// [`WithinArgs`](super::attention::WithinArgs).
    AttentionMergeWithin {
        /// Partial states of a row that it takes in at once.
        states: usize,
        /// What a block takes of an SM.
        resources: GpuResources,
    },
    /// Merge of the partial states of attention, in the tree over splits, and all outputs of a finished row. Launched on
    /// [`merge_blocks`](super::attention::merge_blocks) blocks; takes [`AttentionArgs`](super::attention::AttentionArgs).
    AttentionMerge {
        /// Partial states of a row that it takes in at once.
        states: usize,
        /// Most partial states of a row.
        most: usize,
        /// What a block takes of an SM.
        resources: GpuResources,
    },
    /// Merge of the partial states of a chunk of keys with those of earlier chunks, and all outputs of a row after the
    /// last one. Launched on [`merge_blocks`](super::attention::merge_blocks) blocks; takes
    /// [`StreamArgs`](super::attention::StreamArgs).
    AttentionStream {
        /// Partial states of a row that it takes in at once.
        states: usize,
        /// What a block takes of an SM.
        resources: GpuResources,
    },
    /// How large the elements of the tensors of a call are: a record for each block, of any number of blocks; takes
    /// [`MeasureArgs`](super::attention::MeasureArgs).
    AttentionMeasure {
        /// What a block takes of an SM.
        resources: GpuResources,
    },
    /// Tiles of the matrix of scores, for method math. Launched on `sequences · heads · row_blocks · columns` blocks; takes
    /// [`MathArgs`](super::attention::MathArgs).
    MathScores {
        /// What a block takes of an SM.
        resources: GpuResources,
    },
    /// Rows of scores become weights, for method math. Launched on a block for
    /// [`MATH_ROWS`](super::attention::MATH_ROWS) rows; takes [`MathArgs`](super::attention::MathArgs).
    MathWeights {
        /// What a block takes of an SM.
        resources: GpuResources,
    },
    /// The product of weights and values, for method math, and outputs. Launched as the kernel of scores is, with columns
    /// of the values; takes [`MathArgs`](super::attention::MathArgs). Its specification describes all three steps.
    MathValues(GpuKernelSpec),
    /// Linear attention: a state is carried through tokens. Launched on [`walk_blocks`](super::linear::walk_blocks) blocks;
    /// takes [`LinearArgs`](super::linear::LinearArgs).
    LinearWalk {
        /// What it is for.
        walk: LinearWalk,
        /// What a block takes of an SM.
        resources: GpuResources,
    },
    /// Linear attention: what products of a chunk need and the state does not change. Launched on
    /// [`prepare_blocks`](super::linear::prepare_blocks) blocks; takes [`LinearArgs`](super::linear::LinearArgs).
    LinearPrepare {
        /// Whether there is a gate for each dim; else there is one per head, or none.
        per_dim: bool,
        /// Whether the rule is a delta rule.
        delta: bool,
        /// What a block takes of an SM.
        resources: GpuResources,
    },
    /// Linear attention: the sums of the logarithms of the gates of each part. Launched on a block for each part of each
    /// state; takes [`SumsArgs`](super::linear::SumsArgs).
    LinearSums {
        /// What a block takes of an SM.
        resources: GpuResources,
    },
    /// Linear attention: the scan over parts. Launched on [`carry_blocks`](super::linear::carry_blocks) blocks for each node of a
    /// step, or for each state; takes [`CarryArgs`](super::linear::CarryArgs).
    LinearCarry {
        /// What a block takes of an SM.
        resources: GpuResources,
    },
    /// A recurrence of first order. Launched on a warp for each item; takes
    /// [`RecurrenceArgs`](super::series::RecurrenceArgs).
    Recurrence {
        /// What a block takes of an SM.
        resources: GpuResources,
    },
    /// A selective scan. Launched on a block for each tile of each sequence and listed part; takes
    /// [`SelectiveArgs`](super::series::SelectiveArgs).
    Selective {
        /// What a block takes of an SM.
        resources: GpuResources,
    },
    /// A direct convolution. Launched on a warp for each item; takes [`ConvolutionArgs`](super::series::ConvolutionArgs).
    Convolution {
        /// What a block takes of an SM.
        resources: GpuResources,
    },
    /// Linear attention in quadratic time, without a state in between. Launched on
    /// [`walk_blocks`](super::linear::walk_blocks) blocks; takes [`LinearArgs`](super::linear::LinearArgs).
    LinearParallel {
        /// What it computes.
        step: LinearQuadratic,
        /// Whether there is a gate for each dim; else there is one per head, or none. The kernel of last states is for both.
        per_dim: bool,
        /// What a block takes of an SM.
        resources: GpuResources,
    },
    /// Earlier and new keys or values one after the other; takes [`PresentArgs`](super::attention::PresentArgs).
    AttentionPresent {
        /// What a block takes of an SM.
        resources: GpuResources,
    },
}

impl GpuKernel {
    /// What a block takes of an SM.
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

    /// Its specification, where it is an attention kernel inside an error budget.
    #[must_use]
    pub const fn within(&self) -> Option<&GpuKernelSpec> {
        match &self.role {
            Role::AttentionWithin(spec) => Some(spec),
            _ => None,
        }
    }

    /// Its specification, where it is an attention kernel without a budget.
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
