//! Interfaces that an operator implements for the CPU: its plan and its calls.

use super::memory::Memory;
use super::pool::Crew;
use crate::error::{BindError, RunError};
use crate::problem::Problem;
use crate::tensors::HostTensors;
use std::fmt::Debug;

/// An operator's plan for the CPU: the decisions that are made once per shape.
pub trait CpuPlan: Clone + Debug + Send + Sync {
    /// The problem of the operator.
    type Problem: Problem;
    /// A checked call, ready to run.
    type Call<'a>: CpuCall
    where
        Self: 'a;

    /// Returns the workspace size that runs need, in bytes.
    fn bytes(&self) -> usize;

    /// Returns the name of the kernel.
    fn kernel(&self) -> &'static str;

    /// Checks that the memory is large enough and prepares the call. The caller has checked the tensors and the lengths
    /// against the problem, and the engine has checked that the processor has the instruction set of the plan's kernel.
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

/// A checked call on the CPU. It consists of a plan, its tensors and a workspace; workers divide its work.
pub trait CpuCall: Debug + Send {
    /// Computes the outputs and waits for them. Allocates nothing.
    ///
    /// # Errors
    /// Returns an error if a worker panicked, or if the call was cancelled.
    fn run(&mut self, crew: &Crew<'_>) -> Result<(), RunError>;

    /// Returns the number of workers that share the work of a call, provided the pool has at least this number of
    /// workers.
    fn workers(&self) -> usize;
}
