//! The data shared by the workers of a call, and the tasks into which it is divided.

use super::plan::CpuPlan;
use crate::cpu::tensor::CpuTensor;
use crate::tensors::HostTensors;
use elsa_core::attention::plan::{CpuChoice, Method, TaskOrder, WorkspaceLayout};
use elsa_core::attention::{BiasView, MaskView, Operand, Operands, Problem, Sequence};
use elsa_core::dtype::DType;
use elsa_core::view::View;
use elsa_kernels::attention::Kernel;
use std::ops::Range;

/// The part of a traversal that one call executes: over all keys, or over one chunk of keys.
#[derive(Clone, Debug)]
pub(super) struct Pass {
    /// The keys of the chunk. The chunk's bounds are also bounds of blocks.
    pub keys: Range<usize>,
    /// `true` if this is the first chunk: the queries of each tile are loaded.
    pub begins: bool,
    /// `true` if this is the last chunk: the outputs of each tile are written.
    pub ends: bool,
}

impl Pass {
    /// The pass of a call that processes all keys at once.
    pub const WHOLE: Pass = Pass { keys: 0..usize::MAX, begins: true, ends: true };
}

/// Returns the element type of an operand that has a view.
pub(super) fn dtype_of(problem: &Problem, operand: Operand) -> DType {
    if operand == Operand::LogSumExp || operand.is_state() { DType::F32 } else { problem.spec().dtype }
}

/// The data shared by all workers of a call.
///
/// Invariants, established by [`Context::new`] and preserved while the call borrows its tensors:
/// - *inputs*: every row of every input of the call is readable for its head size, in elements of `dtype`. So is every
///   row of a present tensor that contains the past, once the new rows have been written. For keys, values, masks and
///   biases, this clause covers the keys of `pass`; for all other tensors, it covers the rows of the call's tasks.
/// - *outputs*: every row of every output of the call is writable if a task computes it, and no two rows of a tensor
///   share an element. Each array with entries per row is null or writable. A writable array has room for one f32 value
///   or `d_v` f32 values for each row that a task computes.
/// - *workspace*: `base` is 64-byte aligned and writable for `layout.total` f32 values.
/// - *kernel*: the CPU has the instruction set of `kernel`.
#[derive(Clone)]
pub(super) struct Context<'a> {
    pub kernel: &'static Kernel,
    pub problem: &'a Problem,
    pub choice: &'a CpuChoice,
    pub layout: &'a WorkspaceLayout,
    pub dtype: DType,
    /// View of each tensor.
    views: &'a Operands<View>,
    /// Address of each tensor; null if the call does not have it.
    at: Operands<*mut u8>,
    pub base: *mut f32,
    pub cap: f32,
    pub query_factor: f32,
    /// View of the mask's elements.
    pub mask: Option<MaskView>,
    /// View of the bias's elements.
    pub bias: Option<BiasView>,
    /// Distance from one query to the next in the index of the bias, in elements.
    pub index_stride: usize,
    pub pass: Pass,
}

// SAFETY: workers read the inputs and write disjoint memory. Each worker writes its region of the workspace, and each
// task writes its rows of the outputs (invariants *outputs* and *workspace*).
unsafe impl Sync for Context<'_> {}

impl<'a> Context<'a> {
    /// Creates a context. The tensors must have been checked against the problem, and the workspace must have room for the
    /// plan's layout from `base` on.
    pub fn new(
        plan: &'a CpuPlan,
        problem: &'a Problem,
        tensors: &HostTensors<'a, Operand>,
        base: *mut f32,
    ) -> Context<'a> {
        Context::of(plan, problem, (&plan.views, *tensors.all()), base)
    }

    /// Creates a context for a call that processes all keys at once. The tensors have the given views and addresses.
    pub fn of(
        plan: &'a CpuPlan,
        problem: &'a Problem,
        (views, at): (&'a Operands<View>, Operands<*mut u8>),
        base: *mut f32,
    ) -> Context<'a> {
        let (query_factor, cap) = problem.score_factors();
        Context {
            kernel: plan.kernel,
            problem,
            choice: &plan.choice,
            layout: &plan.layout,
            dtype: problem.spec().dtype,
            views,
            at,
            base,
            cap,
            query_factor,
            mask: problem.spec().mask,
            bias: problem.spec().bias,
            index_stride: problem.keys(),
            pass: Pass::WHOLE,
        }
    }

    /// Returns a tensor of the call.
    pub fn tensor(&self, operand: Operand) -> CpuTensor {
        CpuTensor::new(self.views[operand], dtype_of(self.problem, operand), self.at[operand])
    }

    /// Returns whether the call has a tensor.
    pub fn has(&self, operand: Operand) -> bool {
        !self.at[operand].is_null()
    }

    /// Returns the tensor from which keys or values are read: `operand`, or the present tensor to which they were
    /// copied.
    pub fn source(&self, operand: Operand) -> CpuTensor {
        self.tensor(self.problem.source(operand))
    }

    /// Returns the address of a row's values in an operand with one f32 or `d_v` f32 values per query row; null if the
    /// call has no such operand.
    pub fn entries(&self, operand: Operand, batch: usize, head: usize, token: usize) -> *mut f32 {
        match self.has(operand) {
            true => self.tensor(operand).row(batch, head, token).cast(),
            false => std::ptr::null_mut(),
        }
    }

    /// Returns the region of worker `worker` in the workspace.
    pub fn worker_part(&self, worker: usize) -> *mut f32 {
        self.base.wrapping_add(worker * self.layout.worker_stride)
    }
}

/// The context of a call, with its sequences and tasks.
#[derive(Clone, Copy)]
pub(super) struct Shared<'a> {
    pub context: &'a Context<'a>,
    pub sequences: &'a [Sequence],
    /// Index of the first task of each sequence, followed by the total number of tasks.
    pub tasks: &'a [usize],
}

/// A task: query tiles of one or several heads that traverse the keys of one key head together.
pub(super) struct TileGroup<'a> {
    pub sequence: &'a Sequence,
    /// Index of the sequence.
    pub index: usize,
    /// The query heads. If there are several, they have the same mask and no bias.
    pub heads: Range<usize>,
    /// The tiles of each head.
    pub tiles: Range<usize>,
    /// Index of the task. With `Method::Math`, each task has its own score matrix.
    pub number: usize,
    /// Index of the task's first tile among the resident tiles; `None` if its tiles are in the worker's region.
    pub resident: Option<usize>,
}

impl<'a> Shared<'a> {
    /// Returns the number of tasks.
    pub fn count(&self) -> usize {
        self.tasks.last().copied().unwrap_or(0)
    }

    /// Returns task `number`.
    pub fn task(&self, number: usize) -> TileGroup<'a> {
        let choice = self.context.choice;
        let (group, heads) = (self.context.problem.group(), self.context.problem.kv_heads());
        let sets = choice.head_sets(group);
        let heads = heads * sets;
        let tiles_of = |sequence: &Sequence| choice.tiling(sequence.queries).count();
        let groups_of = |sequence: &Sequence| tiles_of(sequence).div_ceil(tiles_per_task(choice));
        let (index, set, tiles_group) = match choice.order {
            TaskOrder::Tiles | TaskOrder::Heads => {
                let index = self.tasks.partition_point(|first| *first <= number) - 1;
                let (inside, groups) = (number - self.tasks[index], groups_of(&self.sequences[index]));
                match choice.order {
                    TaskOrder::Heads => (index, inside % heads, inside / heads),
                    _ => (index, inside / groups, inside % groups),
                }
            }
            // Sequences that share a mask are not packed: all have the same number of queries.
            TaskOrder::Sequences | TaskOrder::SequencesAndHeads => {
                let (index, outside) = (number % self.sequences.len(), number / self.sequences.len());
                let groups = groups_of(&self.sequences[index]);
                match choice.order {
                    TaskOrder::Sequences => (index, outside / groups, outside % groups),
                    _ => (index, outside % heads, outside / heads),
                }
            }
        };
        let sequence = &self.sequences[index];
        let tiles = tiles_of(sequence);
        let first = tiles_group * tiles_per_task(choice);
        let last = (first + tiles_per_task(choice)).min(tiles);
        let (key_head, set) = (set / sets, set % sets);
        let end = ((set + 1) * choice.heads).min(group);
        let heads = key_head * group + set * choice.heads..key_head * group + end;
        TileGroup { sequence, index, heads, tiles: first..last, number, resident: None }
    }
}

/// Returns the number of query tiles of a task, for each of its heads.
pub(super) fn tiles_per_task(choice: &CpuChoice) -> usize {
    match choice.method {
        Method::Elsa => choice.group,
        Method::Math => 1,
    }
}

/// Query rows of a head that are computed together, one per column of a tile with `width` columns.
#[derive(Clone)]
pub(super) struct TileRows<'a> {
    pub sequence: &'a Sequence,
    pub head: usize,
    /// The rows, counted within the sequence.
    pub rows: Range<usize>,
    pub width: usize,
}

impl TileRows<'_> {
    /// Returns the index of the first row's token in the query view.
    pub fn token(&self) -> usize {
        self.sequence.query0 + self.rows.start
    }
}
