//! Defines how the CPU computes a call of a per-channel operator, for plans that are generic over the operator.

use super::spectrum::Transforms;
use crate::cpu::pool::Crew;
use crate::error::RunError;
use crate::problem::Problem;
use crate::tensors::HostTensors;
use elsa_core::series::plan::{SeriesChoice, SeriesLayout};
use elsa_kernels::series::SeriesKernel;
use std::fmt::Debug;

/// Problem of a per-channel operator, with the functions that compute the problem on the CPU.
pub trait OnCpu: for<'a> Problem<Lengths<'a> = ()> {
    /// The checked tensors of a call.
    type Call<'a>: Debug + Send;

    /// Creates a call from tensors that have been checked against the problem. `transforms` are the plan's transforms,
    /// if the plan is a convolution by FFT.
    fn call<'a>(
        &'a self,
        tensors: &HostTensors<'a, Self::Operand>,
        transforms: Option<&'a Transforms>,
    ) -> Self::Call<'a>;

    /// Computes a call in the workspace at [`Place::base`].
    ///
    /// # Errors
    /// Returns an error if a worker panicked, or if the call was cancelled.
    ///
    /// # Safety
    /// - The kernel's instruction set is present.
    /// - `place.base` is 64-byte aligned; the f32 values of the layout are readable, writable and initialised there,
    ///   and nothing else uses them.
    unsafe fn run(call: &Self::Call<'_>, place: &Place<'_>) -> Result<(), RunError>;
}

/// Everything that a call needs in addition to its tensors: kernels, decisions, workspace and workers.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The kernels.
    pub kernel: &'static SeriesKernel,
    /// The division of the work.
    pub choice: &'a SeriesChoice,
    /// Offsets of the workspace's regions.
    pub layout: &'a SeriesLayout,
    /// Address of the workspace.
    pub base: *mut f32,
    /// The workers of the call.
    pub crew: Crew<'a>,
}

// SAFETY: workers use disjoint memory of the workspace: each worker has a separate region, and each item has separate
// maps.
unsafe impl Sync for Place<'_> {}

impl Place<'_> {
    /// Iterates over the first token of each block, until the call is cancelled.
    pub fn blocks(&self, tokens: usize) -> impl Iterator<Item = usize> {
        (0..tokens).step_by(self.choice.block).take_while(|_| !self.crew.is_cancelled())
    }

    /// Returns the address of a worker's region in the workspace.
    pub fn worker(&self, worker: usize) -> *mut f32 {
        self.base.wrapping_add(worker * self.layout.worker_stride)
    }
}
