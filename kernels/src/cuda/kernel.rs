//! Description of a GPU kernel: name, code and role.

use super::linear::{LinearLong, LinearQuadratic, LinearWalk};
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

/// Generation of GPUs that a module is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Oldest compute capability that loads the module.
    pub capability: (u32, u32),
    /// Optimisation level for the driver's compiler; `None` for its own.
    pub level: Option<u32>,
}

/// Module in PTX, compressed together with other modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ptx {
    /// Version of the PTX instruction set, such as `6.5`.
    pub isa: &'static str,
    /// GPUs that load the module.
    pub target: Target,
    /// Length of the text in bytes, including the final zero.
    pub bytes: usize,
    /// The [`group`](super::group) that contains the packed texts of this module and others, each followed by a zero byte.
    pub group: &'static [u8],
    /// The group whose text is the dictionary of `group`; empty if `group` has no dictionary.
    pub dictionary: &'static [u8],
    /// Offset of this module's packed text in the text of the group.
    pub start: usize,
    /// Length of the packed text in bytes, including the final zero. Registers are encoded as in
    /// [`registers`](super::registers).
    pub packed: usize,
}

/// Purpose of a GPU kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Role {
    /// Computes attention for query tiles. Launched on `sequences · heads · splits · row_blocks` blocks. `row_blocks`
    /// is the number of blocks of [`GpuKernelSpec::rows`] rows in the longest sequence. If a block computes all query
    /// heads that share keys, `heads` is the number of key heads, and the rows of a block belong to all query heads of
    /// the group. The parameter is an [`AttentionArgs`](super::attention::AttentionArgs).
    Attention(GpuKernelSpec),
    /// Computes attention for query tiles within an error budget. The parameter is a
    /// [`WithinArgs`](super::attention::WithinArgs).
    AttentionWithin(GpuKernelSpec),
    /// Splits keys and values into planes of f16 elements for [`Role::AttentionSplit`]. Launched on two blocks for each tile of
    /// each key head. The parameter is a [`SplitArgs`](super::attention::SplitArgs).
    SplitPlanes {
        /// `true` if keys and values have a 16-bit type. They then become one plane each, and f32 elements become two.
        sixteen_bit: bool,
        /// `true` if f32 elements become one plane each, for kernels with [`GpuKernelSpec::one_product`].
        one_product: bool,
        /// Largest head size.
        head_dim: usize,
        /// Number of keys per tile.
        keys: usize,
        /// SM resources per thread block.
        resources: GpuResources,
    },
    /// Computes attention on Tensor Cores, except for row blocks that it refuses. Launched like [`Role::Attention`], with the
    /// shared memory of its resources. The parameter is a [`SplitArgs`](super::attention::SplitArgs).
    AttentionSplit(GpuKernelSpec),
    /// Computes the rows that a kernel with [`Role::AttentionSplit`] refused, by f32 products. Launched like
    /// [`Role::Attention`]. The parameter is a [`SplitArgs`](super::attention::SplitArgs).
    AttentionRefused(GpuKernelSpec),
    /// Merges any number of partial states that a kernel with [`Role::AttentionWithin`] wrote. The parameter is a
    /// [`WithinArgs`](super::attention::WithinArgs).
    AttentionMergeWithin {
        /// Number of partial states of a row that are merged at once.
        states: usize,
        /// SM resources per thread block.
        resources: GpuResources,
    },
    /// Merges the partial states of attention in a tree over the splits, and writes all outputs of a finished row.
    /// Launched on [`merge_blocks`](super::attention::merge_blocks) blocks. The parameter is an
    /// [`AttentionArgs`](super::attention::AttentionArgs).
    AttentionMerge {
        /// Number of partial states of a row that are merged at once.
        states: usize,
        /// Largest number of partial states per row that the kernel supports.
        most: usize,
        /// SM resources per thread block.
        resources: GpuResources,
    },
    /// Merges the partial states of a chunk of keys with the states of earlier chunks. After the last chunk, writes all
    /// outputs of a row. Launched on [`merge_blocks`](super::attention::merge_blocks) blocks. The parameter is a
    /// [`StreamArgs`](super::attention::StreamArgs).
    AttentionStream {
        /// Number of partial states of a row that are merged at once.
        states: usize,
        /// SM resources per thread block.
        resources: GpuResources,
    },
    /// Measures the magnitudes of the elements of a call's tensors. Launched on any number of blocks; each block writes
    /// one record. The parameter is a [`MeasureArgs`](super::attention::MeasureArgs).
    AttentionMeasure {
        /// SM resources per thread block.
        resources: GpuResources,
    },
    /// Computes tiles of the score matrix, for method math. Launched on `sequences · heads · row_blocks · columns`
    /// blocks. The parameter is a [`MathArgs`](super::attention::MathArgs).
    MathScores {
        /// SM resources per thread block.
        resources: GpuResources,
    },
    /// Converts rows of scores to weights, for method math. Launched on one block per
    /// [`MATH_ROWS`](super::attention::MATH_ROWS) rows. The parameter is a [`MathArgs`](super::attention::MathArgs).
    MathWeights {
        /// SM resources per thread block.
        resources: GpuResources,
    },
    /// Multiplies weights and values, for method math, and writes the outputs. Launched like [`Role::MathScores`],
    /// except that `columns` counts column blocks of the values. The parameter is a
    /// [`MathArgs`](super::attention::MathArgs). The specification of this kernel describes all three steps of method
    /// math.
    MathValues(GpuKernelSpec),
    /// Linear attention: carries a state through tokens. Launched on [`walk_blocks`](super::linear::walk_blocks)
    /// blocks. The parameter is a [`LinearArgs`](super::linear::LinearArgs).
    LinearWalk {
        /// Sizes and variant of the kernel.
        walk: LinearWalk,
        /// SM resources per thread block.
        resources: GpuResources,
    },
    /// Linear attention: computes the products of a chunk that do not depend on the state. Launched on
    /// [`prepare_blocks`](super::linear::prepare_blocks) blocks. The parameter is a
    /// [`LinearArgs`](super::linear::LinearArgs).
    LinearPrepare {
        /// `true` for a gate per dim; `false` for one gate per head or none.
        per_dim: bool,
        /// `true` for a delta rule.
        delta: bool,
        /// SM resources per thread block.
        resources: GpuResources,
    },
    /// Linear attention: a step of the computation of all chunks at once. The step determines the number of blocks and the
    /// parameter, a [`LinearArgs`](super::linear::LinearArgs) or a [`LongArgs`](super::linear::LongArgs).
    LinearLong {
        /// The step that the kernel computes.
        step: LinearLong,
        /// `true` for the kernel of launches with few blocks, whose threads compute fewer elements each.
        few: bool,
        /// SM resources per thread block.
        resources: GpuResources,
    },
    /// Linear attention: sums the logarithms of the gates over each part. Launched on one block per part and state. The
    /// parameter is a [`SumsArgs`](super::linear::SumsArgs).
    LinearSums {
        /// SM resources per thread block.
        resources: GpuResources,
    },
    /// Linear attention: computes the scan that carries states over the parts of sequences. Launched on
    /// [`carry_blocks`](super::linear::carry_blocks) blocks per node of a step if transitions are dense, or per state
    /// if they are diagonal. The parameter is a [`CarryArgs`](super::linear::CarryArgs).
    LinearCarry {
        /// SM resources per thread block.
        resources: GpuResources,
    },
    /// Computes the launches of a first-order recurrence without [`CARRY`](super::series::CARRY). Launched on one warp per
    /// [item](super::series::RecurrenceArgs::items). The parameter is a [`RecurrenceArgs`](super::series::RecurrenceArgs).
    Recurrence {
        /// SM resources per thread block.
        resources: GpuResources,
    },
    /// Computes the launches of a recurrence with [`CARRY`](super::series::CARRY). Launched on one lane for each channel and
    /// sequence. The parameter is a [`RecurrenceArgs`](super::series::RecurrenceArgs).
    RecurrenceCarry {
        /// SM resources per thread block.
        resources: GpuResources,
    },
    /// Computes the launches of a selective scan without [`CARRY`](super::series::CARRY). Launched on one block for each
    /// combination of tile, listed part and sequence. The parameter is a [`SelectiveArgs`](super::series::SelectiveArgs).
    Selective {
        /// SM resources per thread block.
        resources: GpuResources,
    },
    /// Computes the launches of a selective scan with [`CARRY`](super::series::CARRY). Launched on one lane for each element of
    /// a map. The parameter is a [`SelectiveArgs`](super::series::SelectiveArgs).
    SelectiveCarry {
        /// SM resources per thread block.
        resources: GpuResources,
    },
    /// Computes the launches of a selective scan with one flag, if all tensors are f32, a channel has 16 state elements, and
    /// channels are adjacent. Launched on one warp for each combination of tile, listed part and sequence. The parameter is a
    /// [`SelectiveArgs`](super::series::SelectiveArgs).
    SelectiveS16 {
        /// [`FOLD`](super::series::FOLD) or zero.
        flag: i32,
        /// SM resources per thread block.
        resources: GpuResources,
    },
    /// Computes a direct convolution. Launched on one warp per [item](super::series::ConvolutionArgs::items). The
    /// parameter is a [`ConvolutionArgs`](super::series::ConvolutionArgs).
    Convolution {
        /// SM resources per thread block.
        resources: GpuResources,
    },
    /// Computes linear attention in quadratic time, without intermediate states. Launched on
    /// [`walk_blocks`](super::linear::walk_blocks) blocks. The parameter is a
    /// [`LinearArgs`](super::linear::LinearArgs).
    LinearParallel {
        /// The step that the kernel computes.
        step: LinearQuadratic,
        /// `true` for a gate per dim; `false` for one gate per head or none. [`LinearQuadratic::Last`] handles both.
        per_dim: bool,
        /// SM resources per thread block.
        resources: GpuResources,
    },
    /// Concatenates past and new keys, or past and new values. The parameter is a
    /// [`PresentArgs`](super::attention::PresentArgs).
    AttentionPresent {
        /// SM resources per thread block.
        resources: GpuResources,
    },
}

impl GpuKernel {
    /// Returns the SM resources per block.
    #[must_use]
    pub const fn resources(&self) -> GpuResources {
        match &self.role {
            Role::Attention(spec)
            | Role::AttentionWithin(spec)
            | Role::AttentionSplit(spec)
            | Role::AttentionRefused(spec)
            | Role::MathValues(spec) => spec.resources,
            Role::SplitPlanes { resources, .. }
            | Role::MathScores { resources }
            | Role::MathWeights { resources }
            | Role::AttentionMerge { resources, .. }
            | Role::AttentionMergeWithin { resources, .. }
            | Role::AttentionStream { resources, .. }
            | Role::AttentionMeasure { resources }
            | Role::LinearWalk { resources, .. }
            | Role::LinearPrepare { resources, .. }
            | Role::LinearLong { resources, .. }
            | Role::LinearSums { resources }
            | Role::LinearCarry { resources }
            | Role::Recurrence { resources }
            | Role::RecurrenceCarry { resources }
            | Role::Selective { resources }
            | Role::SelectiveCarry { resources }
            | Role::SelectiveS16 { resources, .. }
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
            _ => None,
        }
    }
}
