//! What the workers of a call share, and the tasks among which it is divided.

use super::plan::CpuPlan;
use crate::attention::tensors::HostTensors;
use elsa_core::attention::plan::{CpuChoice, Method, WorkspaceLayout};
use elsa_core::attention::{Inputs, Operand, Operands, Problem, Sequence};
use elsa_core::dtype::DType;
use elsa_core::view::View;
use elsa_kernels::attention::Kernel;
use std::ops::Range;

/// A tensor: its view, and the address of its first byte, which is null if the call does not have the tensor.
#[derive(Clone, Copy)]
pub(super) struct Tensor {
    pub view: View,
    pub data: *mut u8,
}

impl Tensor {
    pub fn is_present(&self) -> bool {
        !self.data.is_null()
    }

    /// Address of the first byte of a row.
    pub fn row(&self, batch: usize, head: usize, token: usize, dtype: DType) -> *mut u8 {
        self.data.wrapping_add(self.view.row(batch, head, token) * dtype.size())
    }

    /// Distance from one token to the next, in elements.
    pub fn stride(&self) -> usize {
        self.view.strides()[2]
    }
}

/// The data shared by all workers of a call.
///
/// Invariants, established by [`Context::new`] and kept while the call borrows its tensors:
/// - *inputs*: every row of every input that is present is readable for its head size, in elements of `dtype`. So is
///   every row of a present that holds the past, once the new rows have been written.
/// - *outputs*: every row of every output that is present is writable, and the rows of one tensor share no
///   element. The arrays with one entry per row are null, or writable for one f32 (or `d_v`) per query row of the
///   problem.
/// - *workspace*: `base` is 64-byte aligned and writable for `layout.total` f32 values.
/// - *kernel*: the instruction set of `kernel` is present.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub kernel: &'static Kernel,
    pub problem: &'a Problem,
    pub choice: &'a CpuChoice,
    pub layout: &'a WorkspaceLayout,
    pub inputs: Inputs<'a>,
    pub dtype: DType,
    tensors: Operands<Tensor>,
    pub base: *mut f32,
    pub cap: f32,
    pub query_factor: f32,
}

// SAFETY: workers read the inputs and write disjoint memory: each worker its own region of the workspace, each
// task its own rows of the outputs (invariants *outputs* and *workspace*).
unsafe impl Sync for Context<'_> {}

impl<'a> Context<'a> {
    /// Creates a context. The tensors must have been checked against the problem, and the workspace must have room
    /// for the plan's layout from `base` on.
    pub fn new(
        plan: &'a CpuPlan,
        problem: &'a Problem,
        inputs: Inputs<'a>,
        tensors: &HostTensors<'a>,
        base: *mut f32,
    ) -> Context<'a> {
        let (query_factor, cap) = problem.score_factors();
        let tensor = |operand| {
            let memory = problem.memory(operand);
            let view = memory.and_then(|memory| memory.view).unwrap_or_default();
            Tensor { view, data: tensors[operand] }
        };
        Context {
            kernel: plan.kernel,
            problem,
            choice: &plan.choice,
            layout: &plan.layout,
            inputs,
            dtype: problem.spec().dtype,
            tensors: Operands::from_fn(tensor),
            base,
            cap,
            query_factor,
        }
    }

    /// A tensor of the call.
    pub fn tensor(&self, operand: Operand) -> Tensor {
        self.tensors[operand]
    }

    /// The tensor from which keys or values are read: `operand`, or the present into which they have been written.
    pub fn source(&self, operand: Operand) -> Tensor {
        self.tensors[self.problem.source(operand)]
    }

    /// The array of an operand with one f32, or `d_v`, per query row; null if the call does not have it.
    pub fn rows(&self, operand: Operand) -> *mut f32 {
        self.tensors[operand].data.cast()
    }

    /// The worker's region of the workspace.
    pub fn worker_part(&self, worker: usize) -> *mut f32 {
        self.base.wrapping_add(worker * self.layout.worker_stride)
    }
}

/// The context of a call, with its sequences and tasks.
#[derive(Clone, Copy)]
pub(super) struct Shared<'a> {
    pub context: &'a Context<'a>,
    pub sequences: &'a [Sequence],
    /// First task of each sequence, then the number of tasks.
    pub tasks: &'a [usize],
}

/// A task: some query tiles of a head, which read the same keys.
pub(super) struct Task<'a> {
    pub sequence: &'a Sequence,
    pub head: usize,
    pub tiles: Range<usize>,
    /// Number of the task. Method math keeps a score matrix for each task.
    pub number: usize,
}

impl<'a> Shared<'a> {
    /// Number of tasks.
    pub fn count(&self) -> usize {
        self.tasks.last().copied().unwrap_or(0)
    }

    /// Task `number`.
    pub fn task(&self, number: usize) -> Task<'a> {
        let index = self.tasks.partition_point(|first| *first <= number) - 1;
        let sequence = &self.sequences[index];
        let choice = self.context.choice;
        let tiles = choice.tiling(sequence.queries).count();
        let groups = tiles.div_ceil(tiles_per_task(choice));
        let inside = number - self.tasks[index];
        let first = inside % groups * tiles_per_task(choice);
        let last = (first + tiles_per_task(choice)).min(tiles);
        Task { sequence, head: inside / groups, tiles: first..last, number }
    }
}

/// Number of query tiles of a task.
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
    /// Token of the first row in the query view.
    pub fn token(&self) -> usize {
        self.sequence.query0 + self.rows.start
    }
}
