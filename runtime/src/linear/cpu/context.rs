//! What the workers of a call share.

use super::plan::CpuPlan;
use crate::linear::tensors::HostTensors;
use elsa_core::dtype::DType;
use elsa_core::linear::plan::{Choice, Layout};
use elsa_core::linear::{Operand, Operands, Problem};
use elsa_core::view::View;
use elsa_kernels::linear::Kernel;

/// A tensor: its view, its type, and the address of its first byte.
#[derive(Clone, Copy)]
pub(super) struct Tensor {
    pub view: View,
    pub dtype: DType,
    pub data: *mut u8,
}

impl Tensor {
    /// Whether the call has the tensor.
    pub fn is_present(&self) -> bool {
        !self.data.is_null()
    }

    /// Address of the first byte of a row.
    pub fn row(&self, batch: usize, head: usize, token: usize) -> *mut u8 {
        self.data.wrapping_add(self.view.row(batch, head, token) * self.dtype.size())
    }

    /// Distance from one token to the next, in elements.
    pub fn stride(&self) -> usize {
        self.view.strides()[2]
    }
}

/// The data shared by all workers of a call.
///
/// Invariants, established by [`Context::new`] and kept while the call borrows its tensors:
/// - *inputs*: every row of every input that is present is readable for its head size, in elements of its type.
/// - *outputs*: every row of every output that is present is writable for its head size, and the rows of one tensor share
///   no element. Those of a present state that holds the past are readable, too.
/// - *workspace*: `base` is 64-byte aligned and writable for `layout.total` f32 values, which are initialised.
/// - *kernel*: the instruction set of `kernel` is present.
#[derive(Clone)]
pub(super) struct Context<'a> {
    pub kernel: &'static Kernel,
    pub problem: &'a Problem,
    pub choice: &'a Choice,
    pub layout: &'a Layout,
    tensors: Operands<Tensor>,
    pub base: *mut f32,
}

// SAFETY: workers read the inputs and write disjoint memory: each worker its own region of the workspace, each task its
// own rows and columns of the outputs and its own places of what all share (invariants *outputs* and *workspace*).
unsafe impl Sync for Context<'_> {}

impl<'a> Context<'a> {
    /// Creates a context. The tensors must have been checked against the problem, the workspace must have room for the
    /// layout from `base` on, and the engine must have the kernel's instruction set.
    pub fn new(
        plan: &'a CpuPlan,
        problem: &'a Problem,
        tensors: &HostTensors<'a>,
        base: *mut f32,
    ) -> Context<'a> {
        let tensors = Operands::from_fn(|operand| Tensor {
            view: problem.memory(operand).and_then(|memory| memory.view).unwrap_or_default(),
            dtype: problem.dtype_of(operand),
            data: tensors[operand],
        });
        let CpuPlan { kernel, choice, layout } = plan;
        Context { kernel, problem, choice, layout, tensors, base }
    }

    /// The tensor of an operand.
    pub fn tensor(&self, operand: Operand) -> &Tensor {
        &self.tensors[operand]
    }

    /// The worker's region of the workspace.
    pub fn worker_part(&self, worker: usize) -> *mut f32 {
        self.base.wrapping_add(worker * self.layout.worker_stride)
    }
}
