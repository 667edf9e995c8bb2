//! Data shared by the workers of a call.

use super::plan::CpuPlan;
use crate::cpu::pool::Crew;
use crate::cpu::tensor::CpuTensor;
use crate::tensors::HostTensors;
use elsa_core::linear::plan::{Choice, WorkspaceLayout};
use elsa_core::linear::{Operand, Operands, Problem, Sequence};
use elsa_kernels::linear::Kernel;
use std::ops::Range;

/// Rows of f32 values: the address of the first row, and the distances between successive tokens and successive heads.
/// Distances are in f32 values and may be negative.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub data: *mut f32,
    pub token: isize,
    pub head: isize,
}

impl Rows {
    /// The value that represents rows that do not exist.
    pub const NONE: Rows = Rows { data: std::ptr::null_mut(), token: 0, head: 0 };

    /// Returns the same rows without the first `t` tokens and the first `x` columns.
    pub fn from(self, t: usize, x: usize) -> Rows {
        if self.data.is_null() {
            return self;
        }
        Rows { data: self.data.wrapping_offset(t as isize * self.token).wrapping_add(x), ..self }
    }
}

/// Columns of the state before the first token: the address of the first value of these columns, and the distance
/// between rows.
#[derive(Clone, Copy)]
pub(super) struct Past {
    /// Address of the first value; null if the values are zeros.
    pub data: *const f32,
    pub stride: usize,
}

impl Past {
    /// Returns these columns without the first `x` columns.
    pub fn from(self, x: usize) -> Past {
        if self.data.is_null() {
            return self;
        }
        Past { data: self.data.wrapping_add(x), ..self }
    }
}

/// A stretch of tokens: a sequence, one of its states, and a range of tokens. Tokens are counted in the order in which
/// they update the state.
#[derive(Clone)]
pub(super) struct Stretch<'a> {
    pub sequence: &'a Sequence,
    /// Index of the state. The value head with the same index updates this state.
    pub state: usize,
    /// Range of tokens. Tokens are counted in the order in which they update the state.
    pub tokens: Range<usize>,
    /// `true` if the last token of the sequence updates the state first.
    pub reverse: bool,
    /// Range of the state's strips that are computed.
    pub strips: Range<usize>,
    /// The workers of the call. They stop if the call is cancelled.
    pub crew: Crew<'a>,
}

/// The data shared by all workers of a call.
///
/// Invariants, established by [`Context::new`] and kept while the call borrows its tensors:
/// - *inputs*: every row of each input of the call is readable. The length of a row is the input's head size, in
///   elements of the input's type.
/// - *outputs*: every row of each output of the call is writable. The length of a row is the output's head size. The
///   rows of one tensor share no element. If the memory of a present state also contains the past state, the rows of
///   this memory are readable, too.
/// - *workspace*: `base` is 64-byte aligned and writable for `layout.total` f32 values, which are initialised.
/// - *kernel*: the instruction set of `kernel` is present.
#[derive(Clone)]
pub(super) struct Context<'a> {
    pub kernel: &'static Kernel,
    pub problem: &'a Problem,
    pub choice: &'a Choice,
    pub layout: &'a WorkspaceLayout,
    tensors: Operands<CpuTensor>,
    pub base: *mut f32,
}

// SAFETY: workers only read the inputs, and they write disjoint memory. Each worker has a separate region of the
// workspace. Each task has separate rows and columns of the outputs, and a separate part of the shared regions
// (invariants *outputs* and *workspace*).
unsafe impl Sync for Context<'_> {}

impl<'a> Context<'a> {
    /// Creates a context. The tensors must have been checked against the problem. From `base` on, the workspace must
    /// have room for the layout. The CPU must have the instruction set of the plan's kernel.
    pub fn new(
        plan: &'a CpuPlan,
        problem: &'a Problem,
        tensors: &HostTensors<'a, Operand>,
        base: *mut f32,
    ) -> Context<'a> {
        let tensors = Operands::from_fn(|operand| {
            let view = problem.memory(operand).and_then(|memory| memory.view).unwrap_or_default();
            CpuTensor::new(view, problem.dtype_of(operand), tensors.at(operand))
        });
        let CpuPlan { kernel, choice, layout } = plan;
        Context { kernel, problem, choice, layout, tensors, base }
    }

    /// Returns the tensor that the call has for `operand`.
    pub fn tensor(&self, operand: Operand) -> &CpuTensor {
        &self.tensors[operand]
    }

    /// Returns whether the call writes outputs.
    pub fn has_output(&self) -> bool {
        self.tensors[Operand::Output].present
    }

    /// Returns whether the call writes present states.
    pub fn has_present(&self) -> bool {
        self.tensors[Operand::PresentState].present
    }

    /// Returns the address of the workspace region that belongs to `worker`.
    pub fn worker_part(&self, worker: usize) -> *mut f32 {
        self.base.wrapping_add(worker * self.layout.worker_stride)
    }

    /// Returns the rows of the workspace region for unrounded outputs. The rows are those of the heads that read
    /// `state`. The first row belongs to the first token of the sequence.
    pub fn sums(&self, sequence: &Sequence, state: usize) -> Rows {
        let width = self.choice.strips.padded(self.choice.columns);
        let output = &self.problem.spec().output;
        let (first, _) = self.problem.readers(state);
        let row = (sequence.batch * output.heads() + first) * output.tokens() + sequence.start;
        Rows {
            data: self.base.wrapping_add(self.layout.sums.start + row * width),
            token: width as isize,
            head: (output.tokens() * width) as isize,
        }
    }
}
