//! The CPU's side of an operator.

use super::pool::Crew;
use crate::error::{BindError, PlanError, RunError};
use crate::problem::Problem;
use crate::tensors::HostTensors;
use std::fmt::Debug;

/// What is decided once per shape for runs on the CPU.
pub trait CpuPlan: Clone + Debug + Send + Sync {
    /// The problem.
    type Problem: Problem;
    /// The memory in which runs work. A workspace serves one run at a time.
    type Workspace: Debug + Send + Sync;
    /// A checked call.
    type Call<'a>: CpuCall
    where
        Self: 'a;

    /// Size of a workspace in bytes.
    fn bytes(&self) -> usize;

    /// Name of the kernel.
    fn kernel(&self) -> &'static str;

    /// Allocates a workspace that serves each of the plans. Returns `None` if there is no plan.
    ///
    /// # Errors
    /// Returns an error if the memory is not available.
    fn workspace<'a>(
        plans: impl Iterator<Item = (&'a Self, &'a Self::Problem)> + Clone,
    ) -> Result<Option<Self::Workspace>, PlanError>
    where
        Self: 'a;

    /// Creates a workspace in the caller's memory, which has room for it.
    ///
    /// # Errors
    /// Returns an error if tables beside it cannot be allocated.
    ///
    /// # Safety
    /// - *lent*, of [`Memory::lent`](super::memory::Memory::lent).
    unsafe fn workspace_in(
        &self,
        problem: &Self::Problem,
        memory: *mut u8,
        bytes: usize,
    ) -> Result<Self::Workspace, PlanError>;

    /// Checks the workspace against the plan and prepares the call. Tensors and lengths have been checked against the
    /// problem. The instruction set of the plan's kernel is present, which the engine ensures.
    ///
    /// # Errors
    /// Returns an error if the workspace is too small.
    fn call<'a>(
        &'a self,
        problem: &'a Self::Problem,
        lengths: <Self::Problem as Problem>::Lengths<'a>,
        tensors: &HostTensors<'a>,
        workspace: &'a mut Self::Workspace,
    ) -> Result<Self::Call<'a>, BindError>;
}

/// A checked call on the CPU: a plan, the tensors of a call and a workspace, divided among workers.
pub trait CpuCall: Debug + Send {
    /// Computes the outputs and waits for them. Allocates nothing.
    ///
    /// # Errors
    /// Returns an error if a worker panicked, or if the call was cancelled.
    fn run(&mut self, crew: &Crew<'_>) -> Result<(), RunError>;

    /// Number of workers that share the work, if the pool has that many.
    fn workers(&self) -> usize;
}
