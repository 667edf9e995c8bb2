//! Linear attention as an operator of the engine.

use super::cpu::plan::CpuPlan;
use super::cuda::plan::GpuPlan;
use crate::operator::Operator;
use crate::problem;
use crate::tensors::TensorSpec;
use crate::{bound, plan, workspace};
use elsa_core::argument::ArgumentError;
use elsa_core::dtype::DType;
use elsa_core::linear::{InputTensors, Inputs, Operand, OutputTensors, Outputs, Problem};
use std::convert::Infallible;

/// Linear attention, the operator of [`Engine::linear_plan`](crate::Engine::linear_plan).
#[derive(Clone, Copy, Debug)]
pub struct Linear;

/// A plan of linear attention: a problem and all decisions that do not depend on pointers.
/// [`Engine::linear_plan`](crate::Engine::linear_plan) creates it, and it can be bound to the tensors of any number of
/// calls.
pub type LinearPlan = plan::Plan<Linear>;
/// The memory that runs of a linear attention plan need in addition to their tensors. Only one run at a time can use
/// it.
pub type LinearWorkspace = workspace::Workspace<Linear>;
/// A plan of linear attention with the host tensors of a call. This bound plan may run any number of times.
pub type LinearBound<'a> = bound::Bound<'a, Linear>;
/// A plan of linear attention with tensors in device memory, created by [`LinearPlan::bind_device`].
pub type LinearDeviceBound<'a> = crate::cuda::bound::DeviceBound<'a, Linear>;

/// The input tensors of a linear attention call: the device address of the first element of each tensor, and the
/// boundaries of packed sequences, which are in host memory. Shapes and strides are those of the problem.
pub type LinearDeviceInputs<'a> = InputTensors<'a, u64, u64>;
/// The output tensors of a linear attention call: the device address of the first element of each tensor. Shapes and
/// strides are those of the problem. A call writes the output, the present states, or both.
pub type LinearDeviceOutputs = OutputTensors<u64, u64>;

impl problem::Problem for Problem {
    type Operand = Operand;
    type Lengths<'a> = Option<&'a [i64]>;

    fn sequences(&self) -> usize {
        self.sequences()
    }

    fn tensor(&self, operand: Operand, _: DType) -> TensorSpec {
        let in_place = self.spec().in_place;
        TensorSpec {
            argument: operand.argument(),
            memory: self.memory(operand),
            read: !operand.is_written() || (operand == Operand::PresentState && in_place),
            written: operand.is_written(),
            optional: operand == Operand::Output,
            kept_tokens: None,
            apart: false,
            forbidden: (operand == Operand::PastState && in_place).then_some("in_place"),
        }
    }
}

impl Operator for Linear {
    type Problem = Problem;
    type Inputs<'a> = Inputs<'a>;
    type Outputs<'a> = Outputs<'a>;
    type DeviceInputs<'a> = LinearDeviceInputs<'a>;
    type DeviceOutputs = LinearDeviceOutputs;
    type Cpu = CpuPlan;
    type Gpu = GpuPlan;
    type RunRecord = Infallible;

    fn check(problem: &Problem, inputs: &Inputs<'_>, outputs: &Outputs<'_>) -> Result<(), ArgumentError> {
        inputs.check(problem)?;
        outputs.check(problem)
    }

    fn lengths<'a>(_: &'a Problem, inputs: &Inputs<'a>) -> Option<&'a [i64]> {
        inputs.cu_seqlens
    }

    fn check_on_device(
        problem: &Problem,
        inputs: &LinearDeviceInputs<'_>,
        outputs: &LinearDeviceOutputs,
    ) -> Result<(), ArgumentError> {
        problem.check_bounds(inputs.cu_seqlens)?;
        if outputs.output.is_none() && outputs.present_state.is_none() {
            return Err(ArgumentError::NoOutput { argument: Operand::Output.argument() });
        }
        Ok(())
    }

    fn device_lengths<'a>(_: &'a Problem, inputs: &LinearDeviceInputs<'a>) -> Option<&'a [i64]> {
        inputs.cu_seqlens
    }
}
