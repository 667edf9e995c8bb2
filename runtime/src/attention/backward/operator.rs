//! The gradients of attention as an operator of the engine.

use super::cpu::CpuPlan;
use crate::cuda::plan::{NoGpu, NoTensors};
use crate::operator::Operator;
use crate::problem::Problem;
use crate::tensors::TensorSpec;
use crate::{bound, plan, workspace};
use elsa_core::argument::ArgumentError;
use elsa_core::attention::Lengths;
use elsa_core::attention::backward::{BackwardInputs, BackwardProblem, Gradients, Operand};
use elsa_core::dtype::DType;
use std::convert::Infallible;

/// The operator that [`Engine::backward_plan`](crate::Engine::backward_plan) plans: the gradients of attention.
#[derive(Clone, Copy, Debug)]
pub struct Backward;

/// A backward plan: a problem and every decision that does not depend on the addresses of tensors.
/// [`Engine::backward_plan`](crate::Engine::backward_plan) creates it.
pub type BackwardPlan = plan::Plan<Backward>;
/// Working memory for runs of a backward plan. A workspace serves one run at a time.
pub type BackwardWorkspace = workspace::Workspace<Backward>;
/// A backward plan bound to the host tensors of a call. The call may run any number of times.
pub type BackwardBound<'a> = bound::Bound<'a, Backward>;

impl Problem for BackwardProblem {
    type Operand = Operand;
    type Lengths<'a> = Lengths<'a>;

    fn sequences(&self) -> usize {
        self.forward().sequences()
    }

    fn tensor(&self, operand: Operand, dtype: DType) -> TensorSpec {
        TensorSpec {
            argument: operand.argument(),
            memory: self.memory(operand, dtype),
            read: !operand.is_written(),
            written: operand.is_written(),
            optional: operand.is_statistic(),
            ..TensorSpec::default()
        }
    }
}

impl Operator for Backward {
    type Problem = BackwardProblem;
    type Inputs<'a> = BackwardInputs<'a>;
    type Outputs<'a> = Gradients<'a>;
    type DeviceInputs<'a> = NoTensors;
    type DeviceOutputs = NoTensors;
    type Cpu = CpuPlan;
    type Gpu = NoGpu<BackwardProblem>;
    type RunRecord = Infallible;

    fn check(
        problem: &BackwardProblem,
        inputs: &BackwardInputs<'_>,
        gradients: &Gradients<'_>,
    ) -> Result<(), ArgumentError> {
        inputs.check(problem)?;
        gradients.check(problem)
    }

    fn lengths<'a>(_: &'a BackwardProblem, inputs: &BackwardInputs<'a>) -> Lengths<'a> {
        inputs.forward.lengths
    }

    fn check_on_device(_: &BackwardProblem, inputs: &NoTensors, _: &NoTensors) -> Result<(), ArgumentError> {
        match *inputs {}
    }

    fn device_lengths<'a>(_: &'a BackwardProblem, inputs: &NoTensors) -> Lengths<'a> {
        match *inputs {}
    }
}
