//! Conversion of the tensors of the per-channel operators: from pointers to checked slices, or to GPU addresses.

use crate::convert;
use crate::fault::Fault;
use crate::frame::Named;
use crate::memory::{Buffer, Given, apart};
use crate::operands::{buffers, in_order};
use crate::operator::{Called, OnDevice};
use crate::planned::{Planned, Typed};
use crate::space::Space;
use crate::types::*;
use elsa_core::dtype::DType;
use elsa_core::operands::Operands;
use elsa_core::series::selective::Coefficient;
use elsa_core::series::{Outputs, convolution, recurrence, selective};
use elsa_runtime::operators::Operator;
use elsa_runtime::{
    Backend, Convolution, ConvolutionPlan, ConvolutionWorkspace, DeviceElements, Engine, Recurrence,
    RecurrencePlan, RecurrenceWorkspace, Report, Selective, SelectivePlan, SelectiveWorkspace,
    SeriesDeviceOutputs,
};

/// Returns the device address of a tensor; `None` if the frame does not have the tensor.
fn address(buffer: &Buffer) -> Option<u64> {
    buffer.map(|buffer| buffer.data as u64)
}

/// Returns the device address and the element type of a series; `None` if the frame does not have the series.
fn on_device(buffer: &Buffer, dtype: DType) -> Option<DeviceElements> {
    buffer.map(|buffer| DeviceElements { address: buffer.data as u64, dtype })
}

/// Implements the C interface for an operator in a module of `elsa_core::series`. `$fields` lists the operands in the
/// order of the checks, each with the memory that its field names. `$dtype` returns the element type of an operand.
macro_rules! called {
    (
        $operator:ident of $module:ident: $plan:ty, $workspace:ty, $read:ty, $described:ty, $name:literal;
        $fields:ident, $dtype:ident;
        $create:item
    ) => {
        impl Called for $operator {
            const CREATE: &'static str = $name;
            type Described = $described;
            type Options = elsa_series_options;
            type Read = $read;
            type Written = elsa_series_outputs;
            type Part = ();
            type Plan = Typed<$plan>;
            type Workspace = $workspace;

            $create

            fn plan(planned: &Planned) -> Option<&Typed<$plan>> {
                if let Planned::$operator(typed) = planned { Some(typed) } else { None }
            }

            fn workspace(space: &mut Space) -> Option<&mut $workspace> {
                if let Space::$operator(workspace) = space { Some(workspace) } else { None }
            }

            fn shared(plans: &[&Typed<$plan>]) -> Result<Space, Fault> {
                let plans: Vec<_> = plans.iter().map(|typed| &typed.plan).collect();
                Ok(Space::$operator(<$workspace>::shared(&plans)?.into()))
            }

            fn kernel(typed: &Typed<$plan>, backend: Backend) -> &'static str {
                typed.plan.kernel_of(backend)
            }

            fn named(inputs: $read, outputs: elsa_series_outputs) -> Named {
                Named::$operator(inputs, outputs)
            }

            fn addresses(i: &$read, o: &elsa_series_outputs) -> impl Iterator<Item = usize> {
                $fields(i, o).map(|(_, given)| given.data.addr()).into_iter()
            }

            unsafe fn bind(
                typed: &Typed<$plan>,
                workspace: &mut $workspace,
                inputs: &$read,
                written: &elsa_series_outputs,
                (): (),
                runs: bool,
            ) -> Result<Option<Report>, Fault> {
                use $module::{Inputs, Operand};
                let (tensors, dtype) = typed.tensors(inputs, written)?;
                let at = |operand| &tensors[operand];
                // SAFETY: the caller keeps the clause *tensors*. `buffers` has made each buffer for elements of its
                // operand's type, and has found no output that overlaps other memory.
                let (inputs, outputs) = unsafe {
                    let inputs = Inputs::of(
                        |operand| at(operand).map(|series| series.elements(dtype(operand))),
                        |operand| at(operand).map(|values| values.read()),
                    );
                    let outputs = Outputs {
                        out: at(Operand::Output).map(|out| out.elements_mut(dtype(Operand::Output))),
                        present_state: at(Operand::PresentState).map(|present| present.write()),
                    };
                    (inputs, outputs)
                };
                crate::operator::ran(&mut typed.plan.bind(inputs, outputs, workspace), runs)
            }
        }

        impl OnDevice for $operator {
            fn of_runtime(typed: &Typed<$plan>) -> &$plan {
                &typed.plan
            }

            unsafe fn device<'a>(
                typed: &Typed<$plan>,
                inputs: &$read,
                written: &elsa_series_outputs,
            ) -> Result<(<Self as Operator>::DeviceInputs<'a>, SeriesDeviceOutputs), Fault> {
                use $module::{InputTensors, Operand};
                let (tensors, dtype) = typed.tensors(inputs, written)?;
                let at = |operand| &tensors[operand];
                let read = InputTensors::of(
                    |operand| on_device(at(operand), dtype(operand)),
                    |operand| address(at(operand)),
                );
                let written = SeriesDeviceOutputs {
                    out: on_device(at(Operand::Output), dtype(Operand::Output)),
                    present_state: address(at(Operand::PresentState)),
                };
                Ok((read, written))
            }
        }

        impl Typed<$plan> {
            /// Returns the checked memory of a frame's tensors, and the types of their elements.
            fn tensors(
                &self,
                inputs: &$read,
                written: &elsa_series_outputs,
            ) -> Result<
                (Operands<$module::Operand, Buffer>, impl Fn($module::Operand) -> DType + use<'_>),
                Fault,
            > {
                use $module::Operand;
                let dtype = |operand| $dtype(self, operand);
                let memory = |operand: Operand| {
                    (self.plan.problem().memory(operand, dtype(operand)), operand.is_optional())
                };
                let in_place = self.plan.problem().spec().in_place;
                let present = (Operand::PresentState, written.present_state.data);
                let within = |operand| (in_place && operand == Operand::PastState).then_some(present);
                let fields = $fields(inputs, written);
                let tensors = buffers(&fields, Operand::Output, memory, within)?;
                apart(in_order(&fields, &tensors))?;
                Ok((tensors, dtype))
            }
        }
    };
}

fn recurrence_fields(
    i: &elsa_recurrence_inputs,
    o: &elsa_series_outputs,
) -> [(recurrence::Operand, Given); recurrence::Operand::ALL.len()] {
    [
        (recurrence::Operand::Output, o.out.into()),
        (recurrence::Operand::PresentState, o.present_state.into()),
        (recurrence::Operand::Gates, i.a.into()),
        (recurrence::Operand::Addends, i.b.into()),
        (recurrence::Operand::PastState, i.past_state.into()),
    ]
}

fn recurrence_dtype(typed: &Typed<RecurrencePlan>, operand: recurrence::Operand) -> DType {
    match operand {
        recurrence::Operand::Gates => typed.gate,
        _ => typed.dtype,
    }
}

called! {
    Recurrence of recurrence: RecurrencePlan, RecurrenceWorkspace, elsa_recurrence_inputs, elsa_recurrence_problem,
        "elsa_recurrence_plan_create";
    recurrence_fields, recurrence_dtype;
    fn create(
        engine: &Engine,
        problem: &elsa_recurrence_problem,
        options: &elsa_series_options,
    ) -> Result<Planned, Fault> {
        let (dtype, gate) = convert::gated_types(problem.dtype, problem.gate_dtype)?;
        let problem = convert::recurrence_problem(problem)?;
        let plan = engine.recurrence_plan(&problem, &convert::recurrence_options(options)?)?;
        Ok(Planned::Recurrence(Typed { plan, dtype, gate }.into()))
    }
}

fn selective_fields(
    i: &elsa_selective_inputs,
    o: &elsa_series_outputs,
) -> [(selective::Operand, Given); selective::Operand::ALL.len()] {
    [
        (selective::Operand::Output, o.out.into()),
        (selective::Operand::PresentState, o.present_state.into()),
        (selective::Operand::Signal, i.u.into()),
        (selective::Operand::Steps, i.delta.into()),
        (selective::Operand::Rates, i.a.into()),
        (selective::Operand::IntoState, i.b.into()),
        (selective::Operand::OutOfState, i.c.into()),
        (selective::Operand::Skip, i.d.into()),
        (selective::Operand::Gate, i.z.into()),
        (selective::Operand::StepBias, i.delta_bias.into()),
        (selective::Operand::PastState, i.past_state.into()),
    ]
}

fn selective_dtype(typed: &Typed<SelectivePlan>, operand: selective::Operand) -> DType {
    let spec = typed.plan.problem().spec();
    let coefficient = |of: &Coefficient| match of {
        Coefficient::Token(_) => typed.dtype,
        Coefficient::Channel => DType::F32,
    };
    match operand {
        selective::Operand::Steps => typed.gate,
        selective::Operand::IntoState => coefficient(&spec.b),
        selective::Operand::OutOfState => coefficient(&spec.c),
        _ => typed.dtype,
    }
}

called! {
    Selective of selective: SelectivePlan, SelectiveWorkspace, elsa_selective_inputs, elsa_selective_problem,
        "elsa_selective_plan_create";
    selective_fields, selective_dtype;
    fn create(
        engine: &Engine,
        problem: &elsa_selective_problem,
        options: &elsa_series_options,
    ) -> Result<Planned, Fault> {
        let (dtype, gate) = convert::gated_types(problem.dtype, problem.gate_dtype)?;
        let problem = convert::selective_problem(problem)?;
        let plan = engine.selective_plan(&problem, &convert::selective_options(options)?)?;
        Ok(Planned::Selective(Typed { plan, dtype, gate }.into()))
    }
}

fn convolution_fields(
    i: &elsa_convolution_inputs,
    o: &elsa_series_outputs,
) -> [(convolution::Operand, Given); convolution::Operand::ALL.len()] {
    [
        (convolution::Operand::Output, o.out.into()),
        (convolution::Operand::PresentState, o.present_state.into()),
        (convolution::Operand::Signal, i.u.into()),
        (convolution::Operand::Filter, i.filter.into()),
        (convolution::Operand::Bias, i.bias.into()),
        (convolution::Operand::PastState, i.past_state.into()),
    ]
}

fn convolution_dtype(typed: &Typed<ConvolutionPlan>, _: convolution::Operand) -> DType {
    typed.dtype
}

called! {
    Convolution of convolution: ConvolutionPlan, ConvolutionWorkspace, elsa_convolution_inputs, elsa_convolution_problem,
        "elsa_convolution_plan_create";
    convolution_fields, convolution_dtype;
    fn create(
        engine: &Engine,
        problem: &elsa_convolution_problem,
        options: &elsa_series_options,
    ) -> Result<Planned, Fault> {
        let (dtype, gate) = convert::gated_types(problem.dtype, ELSA_DTYPE_F32)?;
        let problem = convert::convolution_problem(problem)?;
        let plan = engine.convolution_plan(&problem, &convert::convolution_options(options)?)?;
        Ok(Planned::Convolution(Typed { plan, dtype, gate }.into()))
    }
}
