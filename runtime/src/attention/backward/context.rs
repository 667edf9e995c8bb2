//! Data shared by the workers of a backward call.

use elsa_core::attention::backward::{BackwardChoice, BackwardInputs, BackwardLayout, BackwardProblem};
use elsa_kernels::attention::backward::BackwardKernel;

/// The data shared by all workers of a call.
///
/// Invariants, established by [`Context::new`] and kept while the call borrows its tensors:
/// - *inputs*: every row of every input is readable for its head size, in elements of its type.
/// - *gradients*: every row of every gradient is writable for its head size, and no two rows of a gradient share an
///   element.
/// - *workspace*: `base` is 64-byte aligned, and `layout.total` f32 values from there on are writable and initialised.
/// - *kernel*: the CPU has the instruction set of `kernel`.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub problem: &'a BackwardProblem,
    pub kernel: &'static BackwardKernel,
    pub choice: &'a BackwardChoice,
    pub layout: &'a BackwardLayout,
    pub inputs: BackwardInputs<'a>,
    pub d_query: *mut f32,
    pub d_key: *mut f32,
    pub d_value: *mut f32,
    pub base: *mut f32,
}

// SAFETY: workers read the inputs and write disjoint memory. Each worker writes its own region of the workspace, and each
// task writes its own rows of the gradients and of the parts (invariants *gradients* and *workspace*).
unsafe impl Sync for Context<'_> {}
// SAFETY: a context is equivalent to references: shared ones to the inputs, exclusive ones to gradients and workspace.
unsafe impl Send for Context<'_> {}

impl std::fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("choice", self.choice).finish_non_exhaustive()
    }
}

impl<'a> Context<'a> {
    /// Creates a context. The tensors must have been checked against the problem, the workspace must have room for the
    /// layout from `base` on, and the CPU must have the kernel's instruction set.
    pub fn new(
        problem: &'a BackwardProblem,
        kernel: &'static BackwardKernel,
        choice: &'a BackwardChoice,
        layout: &'a BackwardLayout,
        inputs: BackwardInputs<'a>,
        [d_query, d_key, d_value]: [*mut f32; 3],
        base: *mut f32,
    ) -> Context<'a> {
        Context { problem, kernel, choice, layout, inputs, d_query, d_key, d_value, base }
    }

    /// Returns the region of worker `worker` in the workspace.
    pub fn worker_part(&self, worker: usize) -> *mut f32 {
        self.base.wrapping_add(worker * self.layout.worker_stride)
    }

    /// Returns the address at which part `part` of the keys stores the gradient of a query row, and the distance in
    /// elements from one token to the next.
    pub fn query_gradient(&self, part: usize, batch: usize, head: usize, token: usize) -> (*mut f32, usize) {
        let view = &self.problem.spec().query;
        if part == 0 {
            return (self.d_query.wrapping_add(view.row(batch, head, token)), view.steps()[2]);
        }
        let (rows, dim) = (self.problem.forward().rows(), view.dim());
        let row = (part - 1) * rows + (batch * view.heads() + head) * view.tokens() + token;
        (self.base.wrapping_add(self.layout.parts.start + row * dim), dim)
    }
}
