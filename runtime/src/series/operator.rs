//! What a plan of series is generic over.

use crate::cpu::pool::Pool;
use crate::error::RunError;
use elsa_core::argument::ArgumentError;
use elsa_core::series::plan::{SeriesChoice, SeriesLayout};
use elsa_kernels::series::SeriesKernel;
use std::fmt::Debug;

/// An operator that treats every channel of its series by itself, with every decision of a plan.
pub trait SeriesOperator: Debug {
    /// The checked problem.
    type Problem;
    /// The input tensors of a call.
    type Inputs<'a>
    where
        Self: 'a;
    /// The output tensors of a call.
    type Outputs<'a>
    where
        Self: 'a;
    /// The checked tensors of a call.
    type Call<'a>: Debug
    where
        Self: 'a;

    /// The problem.
    fn problem(&self) -> &Self::Problem;

    /// Checks the tensors of a call against the problem.
    ///
    /// # Errors
    /// Returns the first mismatch.
    fn call<'a>(
        &'a self,
        inputs: Self::Inputs<'a>,
        outputs: Self::Outputs<'a>,
    ) -> Result<Self::Call<'a>, ArgumentError>;

    /// Computes a call in the workspace at `base`.
    ///
    /// # Errors
    /// Returns an error if a worker panicked.
    ///
    /// # Safety
    /// - The kernel's instruction set is present.
    /// - `base` is 64-byte aligned, and as many f32 values as the layout has are readable, writable and initialised there;
    ///   nobody else uses them.
    unsafe fn run(call: &Self::Call<'_>, place: &Place<'_>, pool: &Pool) -> Result<(), RunError>;
}

/// Where and how a call computes.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The kernels.
    pub kernel: &'static SeriesKernel,
    /// The division of the work.
    pub choice: &'a SeriesChoice,
    /// Places in the workspace.
    pub layout: &'a SeriesLayout,
    /// The workspace.
    pub base: *mut f32,
}

// SAFETY: workers use disjoint memory of the workspace: each its own region, each item its own maps.
unsafe impl Sync for Place<'_> {}

impl Place<'_> {
    /// The region of a worker.
    pub fn worker(&self, worker: usize) -> *mut f32 {
        self.base.wrapping_add(worker * self.layout.worker_stride)
    }
}
