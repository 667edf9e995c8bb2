//! Defines the interface of an operator to the engine: the types of its problem, its tensors and its plans.
//!
//! Planning, binding, staging, fallback and reports are generic over this trait. An operator adds the kernels and the
//! division of a call among them.

use crate::cpu::plan::CpuPlan;
use crate::cuda::plan::GpuPlan;
use crate::problem::Problem;
use elsa_core::argument::ArgumentError;
use elsa_core::operands::ByOperand;
use std::fmt::Debug;

/// The operands of an operator.
pub type OperandOf<O> = <<O as Operator>::Problem as Problem>::Operand;
/// The numbers of a call of an operator.
pub type LengthsOf<'a, O> = <<O as Operator>::Problem as Problem>::Lengths<'a>;

/// An operator.
pub trait Operator: Sized + Debug + 'static {
    /// The checked problem.
    type Problem: Problem;
    /// The input tensors of a call on host tensors.
    type Inputs<'a>: ByOperand<OperandOf<Self>, Address = *mut u8>;
    /// The output tensors of a call on host tensors.
    type Outputs<'a>: ByOperand<OperandOf<Self>, Address = *mut u8>;
    /// The input tensors of a call on device tensors.
    type DeviceInputs<'a>: Copy + ByOperand<OperandOf<Self>, Address = u64>;
    /// The output tensors of a call on device tensors.
    type DeviceOutputs: Copy + ByOperand<OperandOf<Self>, Address = u64>;
    /// A plan for the CPU.
    type Cpu: CpuPlan<Problem = Self::Problem>;
    /// A plan for a GPU.
    type Gpu: GpuPlan<Problem = Self::Problem>;
    /// Record of a workspace's last run.
    type Ran: Debug + Send + Sync;

    /// Checks host tensors against the problem.
    ///
    /// # Errors
    /// Returns the first mismatch.
    fn check(
        problem: &Self::Problem,
        inputs: &Self::Inputs<'_>,
        outputs: &Self::Outputs<'_>,
    ) -> Result<(), ArgumentError>;

    /// Returns the lengths and other numbers of a call on host tensors.
    fn lengths<'a>(problem: &'a Self::Problem, inputs: &Self::Inputs<'a>) -> LengthsOf<'a, Self>;

    /// Checks the numbers of a call on device tensors against the problem, and which outputs it has. The addresses of the
    /// tensors are not checked.
    ///
    /// # Errors
    /// Returns the first mismatch.
    fn check_on_device(
        problem: &Self::Problem,
        inputs: &Self::DeviceInputs<'_>,
        outputs: &Self::DeviceOutputs,
    ) -> Result<(), ArgumentError>;

    /// Returns the lengths and other numbers of a call on device tensors.
    fn device_lengths<'a>(problem: &'a Self::Problem, inputs: &Self::DeviceInputs<'a>)
    -> LengthsOf<'a, Self>;

    /// Returns the record of a run on the CPU; `stood_by` if it replaced a GPU.
    fn ran_on_cpu(_plan: &Self::Cpu, _problem: &Self::Problem, _stood_by: bool) -> Option<Self::Ran> {
        None
    }

    /// Returns the record of a run on a GPU.
    fn ran_on_gpu(_plan: &Self::Gpu, _problem: &Self::Problem) -> Option<Self::Ran> {
        None
    }
}
