//! Recurrence, selective scan and convolution, which are operators of the engine.

use super::cpu::plan::CpuPlan;
use super::cuda::plan::GpuPlan;
use super::tensors::{DeviceElements, SeriesDeviceOutputs, check_outputs};
use crate::operator::Operator;
use crate::{bound, plan, workspace};
use elsa_core::argument::ArgumentError;
use elsa_core::series::{Outputs, convolution, recurrence, selective};
use std::convert::Infallible;

/// The recurrence of first order, the operator of [`Engine::recurrence_plan`](crate::Engine::recurrence_plan).
#[derive(Clone, Copy, Debug)]
pub struct Recurrence;

/// The selective scan, the operator of [`Engine::selective_plan`](crate::Engine::selective_plan).
#[derive(Clone, Copy, Debug)]
pub struct Selective;

/// The causal convolution, the operator of [`Engine::convolution_plan`](crate::Engine::convolution_plan).
#[derive(Clone, Copy, Debug)]
pub struct Convolution;

/// A plan of a recurrence: a problem and all decisions that do not depend on pointers. It can be bound to the tensors
/// of any number of calls.
pub type RecurrencePlan = plan::Plan<Recurrence>;
/// A plan of a selective scan: a problem and all decisions that do not depend on pointers. It can be bound to the
/// tensors of any number of calls.
pub type SelectivePlan = plan::Plan<Selective>;
/// A plan of a causal convolution: a problem and all decisions that do not depend on pointers. It can be bound to the
/// tensors of any number of calls.
pub type ConvolutionPlan = plan::Plan<Convolution>;
/// The memory that runs of a recurrence plan need in addition to their tensors. Only one run at a time can use it.
pub type RecurrenceWorkspace = workspace::Workspace<Recurrence>;
/// The memory that runs of a selective scan plan need in addition to their tensors. Only one run at a time can use it.
pub type SelectiveWorkspace = workspace::Workspace<Selective>;
/// The memory that runs of a convolution plan need in addition to their tensors. Only one run at a time can use it.
pub type ConvolutionWorkspace = workspace::Workspace<Convolution>;
/// A plan of a recurrence with the host tensors of a call. This bound plan may run any number of times.
pub type RecurrenceBound<'a> = bound::Bound<'a, Recurrence>;
/// A plan of a selective scan with the host tensors of a call. This bound plan may run any number of times.
pub type SelectiveBound<'a> = bound::Bound<'a, Selective>;
/// A plan of a convolution with the host tensors of a call. This bound plan may run any number of times.
pub type ConvolutionBound<'a> = bound::Bound<'a, Convolution>;

/// The input tensors of a recurrence in device memory. Shapes and strides are those of the problem.
pub type RecurrenceDeviceInputs = recurrence::InputTensors<DeviceElements, u64>;
/// The input tensors of a selective scan in device memory. Shapes and strides are those of the problem; the elements of
/// the parameters are f32 without gaps.
pub type SelectiveDeviceInputs = selective::InputTensors<DeviceElements, u64>;
/// The input tensors of a convolution in device memory. Shapes and strides are those of the problem; the elements of
/// the parameters are f32 without gaps.
pub type ConvolutionDeviceInputs = convolution::InputTensors<DeviceElements, u64>;

/// Implements [`Operator`] for the operator that a module of `elsa_core::series` defines.
macro_rules! operator {
    ($operator:ident, $module:ident, $device:ty) => {
        impl Operator for $operator {
            type Problem = $module::Problem;
            type Inputs<'a> = $module::Inputs<'a>;
            type Outputs<'a> = Outputs<'a>;
            type DeviceInputs<'a> = $device;
            type DeviceOutputs = SeriesDeviceOutputs;
            type Cpu = CpuPlan<$module::Problem>;
            type Gpu = GpuPlan<$module::Problem>;
            type RunRecord = Infallible;

            fn check(
                problem: &$module::Problem,
                inputs: &$module::Inputs<'_>,
                outputs: &Outputs<'_>,
            ) -> Result<(), ArgumentError> {
                problem.check_data(inputs, outputs)
            }

            fn lengths(_: &$module::Problem, _: &$module::Inputs<'_>) {}

            fn check_on_device(
                problem: &$module::Problem,
                _: &$device,
                outputs: &SeriesDeviceOutputs,
            ) -> Result<(), ArgumentError> {
                check_outputs(outputs, problem.spec().in_place)
            }

            fn device_lengths(_: &$module::Problem, _: &$device) {}
        }
    };
}

operator!(Recurrence, recurrence, RecurrenceDeviceInputs);
operator!(Selective, selective, SelectiveDeviceInputs);
operator!(Convolution, convolution, ConvolutionDeviceInputs);
