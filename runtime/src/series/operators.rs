//! Recurrence, selective scan and convolution as operators of the engine.

use super::cpu::plan::CpuPlan;
use super::cuda::plan::GpuPlan;
use super::tensors::{
    DeviceElements, LARGEST, Types, address, address_mut, check_outputs, of_convolution, of_recurrence,
    of_selective,
};
use crate::cuda::device::Addresses;
use crate::operator::Operator;
use crate::tensors::{HostTensors, per_tensor};
use crate::{bound, plan, workspace};
use elsa_core::argument::ArgumentError;
use elsa_core::dtype::ElementsMut;
use elsa_core::series::{convolution, recurrence, selective};
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

/// A plan of a recurrence: a problem with every decision that does not depend on pointers.
pub type RecurrencePlan = plan::Plan<Recurrence>;
/// A plan of a selective scan: a problem with every decision that does not depend on pointers.
pub type SelectivePlan = plan::Plan<Selective>;
/// A plan of a causal convolution: a problem with every decision that does not depend on pointers.
pub type ConvolutionPlan = plan::Plan<Convolution>;
/// The memory in which the runs of a plan of a recurrence work. A workspace serves one run at a time.
pub type RecurrenceWorkspace = workspace::Workspace<Recurrence>;
/// The memory in which the runs of a plan of a selective scan work. A workspace serves one run at a time.
pub type SelectiveWorkspace = workspace::Workspace<Selective>;
/// The memory in which the runs of a plan of a convolution work. A workspace serves one run at a time.
pub type ConvolutionWorkspace = workspace::Workspace<Convolution>;
/// A plan of a recurrence with the host tensors of a call. It may run any number of times.
pub type RecurrenceBound<'a> = bound::Bound<'a, Recurrence>;
/// A plan of a selective scan with the host tensors of a call. It may run any number of times.
pub type SelectiveBound<'a> = bound::Bound<'a, Selective>;
/// A plan of a convolution with the host tensors of a call. It may run any number of times.
pub type ConvolutionBound<'a> = bound::Bound<'a, Convolution>;

/// The input tensors of a recurrence in device memory. Shapes and strides are those of the problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecurrenceDeviceInputs {
    /// Factors, or their logarithms.
    pub a: DeviceElements,
    /// Addends.
    pub b: DeviceElements,
    /// Address of the states before the first token, f32; `None` for zeros, or if they lie in the present.
    pub past_state: Option<u64>,
}

/// The input tensors of a selective scan in device memory. Shapes and strides are those of the problem; parameters are dense
/// f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelectiveDeviceInputs {
    /// Inputs.
    pub u: DeviceElements,
    /// Time steps.
    pub delta: DeviceElements,
    /// Address of the rates.
    pub a: u64,
    /// Input coefficients.
    pub b: DeviceElements,
    /// Output coefficients.
    pub c: DeviceElements,
    /// Address of the factors of the input in the output; zeros if absent.
    pub d: Option<u64>,
    /// Gates of the output.
    pub z: Option<DeviceElements>,
    /// Address of what is added to the time steps.
    pub delta_bias: Option<u64>,
    /// Address of the states before the first token, f32; `None` for zeros, or if they lie in the present.
    pub past_state: Option<u64>,
}

/// The input tensors of a convolution in device memory. Shapes and strides are those of the problem; parameters are dense f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvolutionDeviceInputs {
    /// Inputs.
    pub u: DeviceElements,
    /// Address of the filters.
    pub filter: u64,
    /// Address of what is added to the sums.
    pub bias: Option<u64>,
    /// Address of the inputs before the first token, f32; `None` for zeros, or if they lie in the present.
    pub past_state: Option<u64>,
}

/// The output tensors of a call of series in device memory: the output, the states after the last token, or both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeriesDeviceOutputs {
    /// The output.
    pub out: Option<DeviceElements>,
    /// Address of the states after the last token, f32. Where the problem is in place, they hold the past states when a run
    /// begins.
    pub present_state: Option<u64>,
}

/// The types of a call of which these tensors, by number, are not f32 perhaps.
fn types<const N: usize>(given: [(usize, Option<elsa_core::dtype::DType>); N]) -> Types {
    let mut types = LARGEST;
    for (at, dtype) in given {
        types[at] = dtype.unwrap_or(types[at]);
    }
    types
}

impl Operator for Recurrence {
    type Problem = recurrence::Problem;
    type Inputs<'a> = recurrence::Inputs<'a>;
    type Outputs<'a> = recurrence::Outputs<'a>;
    type DeviceInputs<'a> = RecurrenceDeviceInputs;
    type DeviceOutputs = SeriesDeviceOutputs;
    type Cpu = CpuPlan<recurrence::Problem>;
    type Gpu = GpuPlan<recurrence::Problem>;
    type Ran = Infallible;

    fn host_tensors<'a>(
        problem: &'a recurrence::Problem,
        inputs: &recurrence::Inputs<'a>,
        mut outputs: recurrence::Outputs<'a>,
    ) -> Result<HostTensors<'a>, ArgumentError> {
        use of_recurrence as number;
        problem.check_data(inputs, &outputs)?;
        let mut tensors = HostTensors::default();
        tensors.set(number::A, inputs.a.as_ptr().cast_mut());
        tensors.set(number::B, inputs.b.as_ptr().cast_mut());
        tensors.set(number::PAST, address(inputs.past_state));
        if let Some(out) = &mut outputs.out {
            tensors.set(number::OUT, out.as_mut_ptr());
        }
        tensors.set(number::PRESENT, address_mut(outputs.present_state));
        Ok(tensors)
    }

    fn lengths<'a>(
        _: &'a recurrence::Problem,
        inputs: &recurrence::Inputs<'a>,
        outputs: &recurrence::Outputs<'a>,
    ) -> Types {
        use of_recurrence as number;
        let out = outputs.out.as_ref().map(ElementsMut::dtype);
        types([(number::A, Some(inputs.a.dtype())), (number::B, Some(inputs.b.dtype())), (number::OUT, out)])
    }

    fn device_tensors(
        problem: &recurrence::Problem,
        inputs: &RecurrenceDeviceInputs,
        outputs: &SeriesDeviceOutputs,
    ) -> Result<Addresses, ArgumentError> {
        use of_recurrence as number;
        check_outputs(outputs.out.is_some(), outputs.present_state.is_some(), problem.spec().in_place)?;
        Ok(per_tensor(|at| match at {
            number::A => Some(inputs.a.address),
            number::B => Some(inputs.b.address),
            number::PAST => inputs.past_state,
            number::OUT => outputs.out.map(|out| out.address),
            number::PRESENT => outputs.present_state,
            _ => None,
        }))
    }

    fn device_lengths(
        _: &recurrence::Problem,
        inputs: &RecurrenceDeviceInputs,
        outputs: &SeriesDeviceOutputs,
    ) -> Types {
        use of_recurrence as number;
        types([
            (number::A, Some(inputs.a.dtype)),
            (number::B, Some(inputs.b.dtype)),
            (number::OUT, outputs.out.map(|out| out.dtype)),
        ])
    }

    fn ran_on_cpu(_: &Self::Cpu, _: &recurrence::Problem, _: bool) -> Option<Infallible> {
        None
    }

    fn ran_on_gpu(_: &Self::Gpu, _: &recurrence::Problem) -> Option<Infallible> {
        None
    }
}

impl Operator for Selective {
    type Problem = selective::Problem;
    type Inputs<'a> = selective::Inputs<'a>;
    type Outputs<'a> = selective::Outputs<'a>;
    type DeviceInputs<'a> = SelectiveDeviceInputs;
    type DeviceOutputs = SeriesDeviceOutputs;
    type Cpu = CpuPlan<selective::Problem>;
    type Gpu = GpuPlan<selective::Problem>;
    type Ran = Infallible;

    fn host_tensors<'a>(
        problem: &'a selective::Problem,
        inputs: &selective::Inputs<'a>,
        mut outputs: selective::Outputs<'a>,
    ) -> Result<HostTensors<'a>, ArgumentError> {
        use of_selective as number;
        problem.check_data(inputs, &outputs)?;
        let mut tensors = HostTensors::default();
        for (at, x) in [
            (number::U, Some(inputs.u)),
            (number::DELTA, Some(inputs.delta)),
            (number::B, Some(inputs.b)),
            (number::C, Some(inputs.c)),
            (number::Z, inputs.z),
        ] {
            if let Some(x) = x {
                tensors.set(at, x.as_ptr().cast_mut());
            }
        }
        for (at, x) in [
            (number::A, Some(inputs.a)),
            (number::D, inputs.d),
            (number::BIAS, inputs.delta_bias),
            (number::PAST, inputs.past_state),
        ] {
            tensors.set(at, address(x));
        }
        if let Some(out) = &mut outputs.out {
            tensors.set(number::OUT, out.as_mut_ptr());
        }
        tensors.set(number::PRESENT, address_mut(outputs.present_state));
        Ok(tensors)
    }

    fn lengths<'a>(
        _: &'a selective::Problem,
        inputs: &selective::Inputs<'a>,
        outputs: &selective::Outputs<'a>,
    ) -> Types {
        use of_selective as number;
        types([
            (number::U, Some(inputs.u.dtype())),
            (number::DELTA, Some(inputs.delta.dtype())),
            (number::B, Some(inputs.b.dtype())),
            (number::C, Some(inputs.c.dtype())),
            (number::Z, inputs.z.map(|z| z.dtype())),
            (number::OUT, outputs.out.as_ref().map(ElementsMut::dtype)),
        ])
    }

    fn device_tensors(
        problem: &selective::Problem,
        inputs: &SelectiveDeviceInputs,
        outputs: &SeriesDeviceOutputs,
    ) -> Result<Addresses, ArgumentError> {
        use of_selective as number;
        check_outputs(outputs.out.is_some(), outputs.present_state.is_some(), problem.spec().in_place)?;
        Ok(per_tensor(|at| match at {
            number::U => Some(inputs.u.address),
            number::DELTA => Some(inputs.delta.address),
            number::A => Some(inputs.a),
            number::B => Some(inputs.b.address),
            number::C => Some(inputs.c.address),
            number::D => inputs.d,
            number::Z => inputs.z.map(|z| z.address),
            number::BIAS => inputs.delta_bias,
            number::PAST => inputs.past_state,
            number::OUT => outputs.out.map(|out| out.address),
            number::PRESENT => outputs.present_state,
            _ => None,
        }))
    }

    fn device_lengths(
        _: &selective::Problem,
        inputs: &SelectiveDeviceInputs,
        outputs: &SeriesDeviceOutputs,
    ) -> Types {
        use of_selective as number;
        types([
            (number::U, Some(inputs.u.dtype)),
            (number::DELTA, Some(inputs.delta.dtype)),
            (number::B, Some(inputs.b.dtype)),
            (number::C, Some(inputs.c.dtype)),
            (number::Z, inputs.z.map(|z| z.dtype)),
            (number::OUT, outputs.out.map(|out| out.dtype)),
        ])
    }

    fn ran_on_cpu(_: &Self::Cpu, _: &selective::Problem, _: bool) -> Option<Infallible> {
        None
    }

    fn ran_on_gpu(_: &Self::Gpu, _: &selective::Problem) -> Option<Infallible> {
        None
    }
}

impl Operator for Convolution {
    type Problem = convolution::Problem;
    type Inputs<'a> = convolution::Inputs<'a>;
    type Outputs<'a> = convolution::Outputs<'a>;
    type DeviceInputs<'a> = ConvolutionDeviceInputs;
    type DeviceOutputs = SeriesDeviceOutputs;
    type Cpu = CpuPlan<convolution::Problem>;
    type Gpu = GpuPlan<convolution::Problem>;
    type Ran = Infallible;

    fn host_tensors<'a>(
        problem: &'a convolution::Problem,
        inputs: &convolution::Inputs<'a>,
        mut outputs: convolution::Outputs<'a>,
    ) -> Result<HostTensors<'a>, ArgumentError> {
        use of_convolution as number;
        problem.check_data(inputs, &outputs)?;
        let mut tensors = HostTensors::default();
        tensors.set(number::U, inputs.u.as_ptr().cast_mut());
        for (at, x) in [
            (number::FILTER, Some(inputs.filter)),
            (number::BIAS, inputs.bias),
            (number::PAST, inputs.past_state),
        ] {
            tensors.set(at, address(x));
        }
        if let Some(out) = &mut outputs.out {
            tensors.set(number::OUT, out.as_mut_ptr());
        }
        tensors.set(number::PRESENT, address_mut(outputs.present_state));
        Ok(tensors)
    }

    fn lengths<'a>(
        _: &'a convolution::Problem,
        inputs: &convolution::Inputs<'a>,
        outputs: &convolution::Outputs<'a>,
    ) -> Types {
        use of_convolution as number;
        let out = outputs.out.as_ref().map(ElementsMut::dtype);
        types([(number::U, Some(inputs.u.dtype())), (number::OUT, out)])
    }

    fn device_tensors(
        problem: &convolution::Problem,
        inputs: &ConvolutionDeviceInputs,
        outputs: &SeriesDeviceOutputs,
    ) -> Result<Addresses, ArgumentError> {
        use of_convolution as number;
        check_outputs(outputs.out.is_some(), outputs.present_state.is_some(), problem.spec().in_place)?;
        Ok(per_tensor(|at| match at {
            number::U => Some(inputs.u.address),
            number::FILTER => Some(inputs.filter),
            number::BIAS => inputs.bias,
            number::PAST => inputs.past_state,
            number::OUT => outputs.out.map(|out| out.address),
            number::PRESENT => outputs.present_state,
            _ => None,
        }))
    }

    fn device_lengths(
        _: &convolution::Problem,
        inputs: &ConvolutionDeviceInputs,
        outputs: &SeriesDeviceOutputs,
    ) -> Types {
        use of_convolution as number;
        types([(number::U, Some(inputs.u.dtype)), (number::OUT, outputs.out.map(|out| out.dtype))])
    }

    fn ran_on_cpu(_: &Self::Cpu, _: &convolution::Problem, _: bool) -> Option<Infallible> {
        None
    }

    fn ran_on_gpu(_: &Self::Gpu, _: &convolution::Problem) -> Option<Infallible> {
        None
    }
}
