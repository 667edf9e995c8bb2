//! Defines the interface between an operator and the engine: the types of the operator's problem, tensors and plans.
//!
//! Planning, binding, staging, fallback and reports are generic over the trait [`Operator`]. An operator supplies its
//! kernels, and decides how they divide the work of a call.

use crate::cpu::plan::CpuPlan;
use crate::cuda::plan::GpuPlan;
use crate::problem::Problem;
use elsa_core::argument::ArgumentError;
use elsa_core::operands::ByOperand;
use std::fmt::Debug;

/// The type whose values name the operands of operator `O`.
pub type OperandOf<O> = <<O as Operator>::Problem as Problem>::Operand;
/// Data in host memory that a call of operator `O` has in addition to its tensors: the lengths and boundaries of
/// sequences.
pub type LengthsOf<'a, O> = <<O as Operator>::Problem as Problem>::Lengths<'a>;

/// An operator, such as attention. The trait defines the operator's types, its checks and its records of runs.
pub trait Operator: Sized + Debug + 'static {
    /// The checked problem.
    type Problem: Problem;
    /// The input tensors of a call, in host memory.
    type Inputs<'a>: ByOperand<OperandOf<Self>, Address = *mut u8>;
    /// The output tensors of a call, in host memory.
    type Outputs<'a>: ByOperand<OperandOf<Self>, Address = *mut u8>;
    /// The input tensors of a call, in device memory.
    type DeviceInputs<'a>: Copy + ByOperand<OperandOf<Self>, Address = u64>;
    /// The output tensors of a call, in device memory.
    type DeviceOutputs: Copy + ByOperand<OperandOf<Self>, Address = u64>;
    /// A plan for the CPU.
    type Cpu: CpuPlan<Problem = Self::Problem>;
    /// A plan for a GPU.
    type Gpu: GpuPlan<Problem = Self::Problem>;
    /// Record of the last run, stored in a workspace.
    type RunRecord: Debug + Send + Sync;

    /// Checks host tensors against the problem.
    ///
    /// # Errors
    /// Returns an error that describes the first mismatch.
    fn check(
        problem: &Self::Problem,
        inputs: &Self::Inputs<'_>,
        outputs: &Self::Outputs<'_>,
    ) -> Result<(), ArgumentError>;

    /// Returns the lengths and boundaries of the sequences in a call whose tensors are in host memory.
    fn lengths<'a>(problem: &'a Self::Problem, inputs: &Self::Inputs<'a>) -> LengthsOf<'a, Self>;

    /// For a call on device tensors, checks that the lengths match the problem and that the call has the outputs that
    /// the problem requires. Does not check the addresses of the tensors.
    ///
    /// # Errors
    /// Returns an error that describes the first mismatch.
    fn check_on_device(
        problem: &Self::Problem,
        inputs: &Self::DeviceInputs<'_>,
        outputs: &Self::DeviceOutputs,
    ) -> Result<(), ArgumentError>;

    /// Returns the lengths and boundaries of the sequences in a call whose tensors are in device memory.
    fn device_lengths<'a>(problem: &'a Self::Problem, inputs: &Self::DeviceInputs<'a>)
    -> LengthsOf<'a, Self>;

    /// Returns the record of a run on the CPU. `stood_by` is `true` if the CPU computed in place of a GPU.
    fn record_of_cpu(
        _plan: &Self::Cpu,
        _problem: &Self::Problem,
        _stood_by: bool,
    ) -> Option<Self::RunRecord> {
        None
    }

    /// Returns the record of a run on a GPU.
    fn record_of_gpu(_plan: &Self::Gpu, _problem: &Self::Problem) -> Option<Self::RunRecord> {
        None
    }
}
