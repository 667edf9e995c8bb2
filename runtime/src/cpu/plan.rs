//! The CPU's side of an operator.

use super::memory::Memory;
use super::pool::Crew;
use crate::error::{BindError, RunError};
use crate::problem::Problem;
use crate::tensors::HostTensors;
use std::fmt::Debug;

/// The decisions for runs on the CPU that are made once per shape.
pub trait CpuPlan: Clone + Debug + Send + Sync {
    /// The problem.
    type Problem: Problem;
    /// A checked call.
    type Call<'a>: CpuCall
    where
        Self: 'a;

    /// Returns the size of a workspace in bytes.
    fn bytes(&self) -> usize;

    /// Returns the name of the kernel.
    fn kernel(&self) -> &'static str;

    /// Checks the memory against the plan and prepares the call. Tensors and lengths have been checked against the
    /// problem. The engine ensures that the instruction set of the plan's kernel is present.
    ///
    /// # Errors
    /// Returns an error if the memory is too small.
    fn call<'a>(
        &'a self,
        problem: &'a Self::Problem,
        lengths: <Self::Problem as Problem>::Lengths<'a>,
        tensors: &HostTensors<'a, <Self::Problem as Problem>::Operand>,
        memory: &'a mut Memory,
    ) -> Result<Self::Call<'a>, BindError>;
}

/// A checked call on the CPU: a plan, the tensors of a call and a workspace, divided among workers.
pub trait CpuCall: Debug + Send {
    /// Computes the outputs and waits for them. Allocates nothing.
    ///
    /// # Errors
    /// Returns an error if a worker panicked, or if the call was cancelled.
    fn run(&mut self, crew: &Crew<'_>) -> Result<(), RunError>;

    /// Returns the number of workers that share the work if the pool has enough.
    fn workers(&self) -> usize;
}
