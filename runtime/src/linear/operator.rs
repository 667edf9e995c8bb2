//! Linear attention as an operator of the engine.

use super::cpu::plan::CpuPlan;
use super::cuda::device::{LinearDeviceInputs, LinearDeviceOutputs, addresses};
use super::cuda::plan::GpuPlan;
use crate::cuda::device::Addresses;
use crate::operator::Operator;
use crate::problem;
use crate::tensors::{HostTensors, PerTensor, Tensor, per_tensor};
use crate::{bound, plan, workspace};
use elsa_core::argument::ArgumentError;
use elsa_core::linear::{Inputs, Operand, Outputs, Problem};
use std::convert::Infallible;

/// Linear attention, the operator of [`Engine::linear_plan`](crate::Engine::linear_plan).
#[derive(Clone, Copy, Debug)]
pub struct Linear;

/// A plan of linear attention: a problem with every decision that does not depend on pointers. Created by
/// [`Engine::linear_plan`](crate::Engine::linear_plan), bound to the tensors of any number of calls.
pub type LinearPlan = plan::Plan<Linear>;
/// The memory in which the runs of a plan of linear attention work. A workspace serves one run at a time.
pub type LinearWorkspace = workspace::Workspace<Linear>;
/// A plan of linear attention with the host tensors of a call. It may run any number of times.
pub type LinearBound<'a> = bound::Bound<'a, Linear>;
/// A plan of linear attention with tensors in device memory, created by [`LinearPlan::bind_device`].
pub type LinearDeviceBound<'a> = crate::cuda::bound::DeviceBound<'a, Linear>;

impl problem::Problem for Problem {
    type Lengths<'a> = Option<&'a [i64]>;

    fn sequences(&self) -> usize {
        self.sequences()
    }

    fn tensors(&self) -> PerTensor<Tensor> {
        per_tensor(|at| {
            let Some(operand) = Operand::ALL.get(at).copied() else { return Tensor::default() };
            let in_place = self.spec().in_place;
            Tensor {
                argument: operand.argument(),
                memory: self.memory(operand),
                read: !operand.is_written() || (operand == Operand::PresentState && in_place),
                written: operand.is_written(),
                optional: operand == Operand::Output,
                kept: None,
                apart: false,
                forbidden: (operand == Operand::PastState && in_place).then_some("in_place"),
            }
        })
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
    type Ran = Infallible;

    fn host_tensors<'a>(
        problem: &'a Problem,
        inputs: &Inputs<'a>,
        outputs: Outputs<'a>,
    ) -> Result<HostTensors<'a>, ArgumentError> {
        inputs.check(problem)?;
        outputs.check(problem)?;
        let mut tensors = HostTensors::default();
        for operand in Operand::ALL {
            if let Some(elements) = inputs.elements(operand) {
                tensors.set(operand as usize, elements.as_ptr().cast_mut());
            }
        }
        let Outputs { output, present_state } = outputs;
        if let Some(mut output) = output {
            tensors.set(Operand::Output as usize, output.as_mut_ptr());
        }
        if let Some(present) = present_state {
            tensors.set(Operand::PresentState as usize, present.as_mut_ptr().cast());
        }
        Ok(tensors)
    }

    fn lengths<'a>(_: &'a Problem, inputs: &Inputs<'a>, _: &Outputs<'a>) -> Option<&'a [i64]> {
        inputs.cu_seqlens
    }

    fn device_tensors(
        problem: &Problem,
        inputs: &LinearDeviceInputs<'_>,
        outputs: &LinearDeviceOutputs,
    ) -> Result<Addresses, ArgumentError> {
        problem.check_bounds(inputs.cu_seqlens)?;
        if outputs.output.is_none() && outputs.present_state.is_none() {
            return Err(ArgumentError::NoOutput { argument: Operand::Output.argument() });
        }
        Ok(addresses(inputs, outputs))
    }

    fn device_lengths<'a>(
        _: &'a Problem,
        inputs: &LinearDeviceInputs<'a>,
        _: &LinearDeviceOutputs,
    ) -> Option<&'a [i64]> {
        inputs.cu_seqlens
    }

    fn ran_on_cpu(_: &CpuPlan, _: &Problem, _: bool) -> Option<Infallible> {
        None
    }

    fn ran_on_gpu(_: &GpuPlan, _: &Problem) -> Option<Infallible> {
        None
    }
}
