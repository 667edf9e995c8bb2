//! What an operator is to the engine: the types of its problem, its tensors and its plans.
//!
//! Planning, binding, staging, fallback and reports are written once, over this trait. An operator adds the kernels and how a
//! call is divided among them.

use crate::cpu::plan::CpuPlan;
use crate::cuda::device::Addresses;
use crate::cuda::plan::GpuPlan;
use crate::problem::Problem;
use crate::tensors::HostTensors;
use elsa_core::argument::ArgumentError;
use std::fmt::Debug;

/// An operator.
pub trait Operator: Sized + Debug + 'static {
    /// The checked problem.
    type Problem: Problem;
    /// The input tensors of a call on host tensors.
    type Inputs<'a>;
    /// The output tensors of a call on host tensors.
    type Outputs<'a>;
    /// The input tensors of a call on device tensors.
    type DeviceInputs<'a>;
    /// The output tensors of a call on device tensors.
    type DeviceOutputs;
    /// A plan for the CPU.
    type Cpu: CpuPlan<Problem = Self::Problem>;
    /// A plan for a GPU.
    type Gpu: GpuPlan<Problem = Self::Problem>;
    /// What a workspace remembers of its last run.
    type Ran: Debug + Send + Sync;

    /// Checks host tensors against the problem, and returns where they lie.
    ///
    /// # Errors
    /// Returns the first mismatch.
    fn host_tensors<'a>(
        problem: &'a Self::Problem,
        inputs: &Self::Inputs<'a>,
        outputs: Self::Outputs<'a>,
    ) -> Result<HostTensors<'a>, ArgumentError>;

    /// The numbers of a call on host tensors.
    fn lengths<'a>(
        problem: &'a Self::Problem,
        inputs: &Self::Inputs<'a>,
        outputs: &Self::Outputs<'a>,
    ) -> <Self::Problem as Problem>::Lengths<'a>;

    /// Checks the numbers of a call on device tensors against the problem, and which outputs it has. Returns the addresses of
    /// the tensors, which are unchecked.
    ///
    /// # Errors
    /// Returns the first mismatch.
    fn device_tensors(
        problem: &Self::Problem,
        inputs: &Self::DeviceInputs<'_>,
        outputs: &Self::DeviceOutputs,
    ) -> Result<Addresses, ArgumentError>;

    /// The numbers of a call on device tensors.
    fn device_lengths<'a>(
        problem: &'a Self::Problem,
        inputs: &Self::DeviceInputs<'a>,
        outputs: &Self::DeviceOutputs,
    ) -> <Self::Problem as Problem>::Lengths<'a>;

    /// What a workspace remembers of a run on the CPU, which stood by for a GPU or not.
    fn ran_on_cpu(plan: &Self::Cpu, problem: &Self::Problem, stood_by: bool) -> Option<Self::Ran>;

    /// What a workspace remembers of a run on a GPU.
    fn ran_on_gpu(plan: &Self::Gpu, problem: &Self::Problem) -> Option<Self::Ran>;
}
