//! What the workers of a call share, and the tasks among which they divide it.

use super::plan::CpuPlan;
use crate::attention::tensors::HostTensors;
use elsa_core::attention::plan::{CpuChoice, Method, WorkspaceLayout};
use elsa_core::attention::{Inputs, Operand, Operands, Problem, Sequence};
use elsa_core::dtype::DType;
use elsa_core::view::View;
use elsa_kernels::attention::Kernel;
use std::ops::Range;

/// A tensor: its view, and its first byte, which is null where the frame does not have the tensor.
#[derive(Clone, Copy)]
pub(super) struct Tensor {
    pub view: View,
    pub data: *mut u8,
}

impl Tensor {
    pub fn is_present(&self) -> bool {
        !self.data.is_null()
    }

    /// First byte of a row.
    pub fn row(&self, batch: usize, head: usize, token: usize, dtype: DType) -> *mut u8 {
        self.data.wrapping_add(self.view.row(batch, head, token) * dtype.size())
    }

    /// Elements from one token to the next.
    pub fn stride(&self) -> usize {
        self.view.strides()[2]
    }
}

/// What all workers of a call share.
///
/// Invariants, established by [`Context::new`] and kept for as long as the call borrows its tensors:
/// - *inputs*: every row of every tensor that is read and present is readable for its dims in `dtype`.
/// - *outputs*: every row of every tensor that is written and present is writable, and rows of one tensor share no
///   element; arrays of rows are null or writable for one f32 (or `d_v`) per row of the problem.
/// - *workspace*: `base` is writable for `layout.total` f32 values, on a line of 64 bytes.
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

// SAFETY: workers read the inputs, and write disjoint parts: each worker its own part of the workspace, each
// task its own rows of the outputs (invariants *outputs* and *workspace*).
unsafe impl Sync for Context<'_> {}

impl<'a> Context<'a> {
    /// Of tensors that were checked against the problem, and of a workspace that has room for the plan's layout from
    /// `base` on.
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

    /// A tensor of the frame.
    pub fn tensor(&self, operand: Operand) -> Tensor {
        self.tensors[operand]
    }

    /// An array of one f32, or of `d_v`, per row of the problem; null where the frame does not have it.
    pub fn rows(&self, operand: Operand) -> *mut f32 {
        self.tensors[operand].data.cast()
    }

    /// The worker's part of the workspace.
    pub fn worker_part(&self, worker: usize) -> *mut f32 {
        self.base.wrapping_add(worker * self.layout.worker_stride)
    }
}

/// A call's context with its sequences.
#[derive(Clone, Copy)]
pub(super) struct Shared<'a> {
    pub context: &'a Context<'a>,
    pub sequences: &'a [Sequence],
    /// First task of each sequence, and the number of tasks at the end.
    pub tasks: &'a [usize],
}

/// A share of the work: some query tiles of a head, which read the same keys.
pub(super) struct Task<'a> {
    pub sequence: &'a Sequence,
    pub head: usize,
    pub tiles: Range<usize>,
    /// Number of the task. Method math keeps a score matrix for each.
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
        let groups = tiles.div_ceil(tiles_of_a_task(choice));
        let inside = number - self.tasks[index];
        let first = inside % groups * tiles_of_a_task(choice);
        let last = (first + tiles_of_a_task(choice)).min(tiles);
        Task { sequence, head: inside / groups, tiles: first..last, number }
    }
}

/// Query tiles of a task.
pub(super) fn tiles_of_a_task(choice: &CpuChoice) -> usize {
    match choice.method {
        Method::Elsa => choice.group,
        Method::Math => 1,
    }
}

/// Query rows of a head that are computed together, one in a column of `width` columns.
#[derive(Clone)]
pub(super) struct TileRows<'a> {
    pub sequence: &'a Sequence,
    pub head: usize,
    /// Rows of the sequence.
    pub rows: Range<usize>,
    pub width: usize,
}

impl TileRows<'_> {
    /// First query token in the query view.
    pub fn token(&self) -> usize {
        self.sequence.query0 + self.rows.start
    }
}
