//! Conversion of the tensors of the per-channel operators: from pointers to checked slices, or to GPU addresses.

use super::convert;
use crate::convert::gated_types;
use crate::fault::Fault;
use crate::memory::{Buffer, Unchecked, apart};
use crate::objects::Typed;
use crate::operands::{buffers, in_order};
use crate::operator::{Called, PlanOf};
use crate::types::*;
use elsa_core::dtype::DType;
use elsa_core::operands::Operands;
use elsa_core::series::selective::Coefficient;
use elsa_core::series::{Outputs, convolution, recurrence, selective};
use elsa_runtime::operators::{LengthsOf, Operator, Plan, Workspace};
use elsa_runtime::{
    Convolution, DeviceElements, Engine, Recurrence, Report, RunError, Selective, SeriesDeviceOutputs,
};

/// The element types of the tensors of a call.
#[derive(Debug)]
pub(crate) struct Types {
    /// Element type of most tensors.
    dtype: DType,
    /// Element type of gates or time steps.
    gate: DType,
}

/// Returns the device address of a tensor; `None` if the call does not have the tensor.
fn address(buffer: &Buffer) -> Option<u64> {
    buffer.map(|buffer| buffer.data as u64)
}

/// Returns the device address and the element type of a series; `None` if the call does not have the series.
fn on_device(buffer: &Buffer, dtype: DType) -> Option<DeviceElements> {
    buffer.map(|buffer| DeviceElements { address: buffer.data as u64, dtype })
}

/// Implements the C interface for an operator in a module of `elsa_core::series`. `$fields` lists the operands in the
/// order of the checks, each with the memory that its field names. `$dtype` returns the element type of an operand.
macro_rules! called {
    (
        $operator:ident of $module:ident: $read:ty, $described:ty, $name:literal, $create_name:literal;
        $fields:ident, $dtype:ident;
        $create:item
    ) => {
        impl Called for $operator {
            const NAME: &'static str = $name;
            const CREATE: &'static str = $create_name;
            type Described = $described;
            type Options = elsa_series_options;
            type Read = $read;
            type Written = elsa_series_outputs;
            type Part = ();
            type Types = Types;

            $create

            fn warm(
                plan: &Plan<$operator>,
                workspace: &mut Workspace<$operator>,
            ) -> Result<Report, RunError> {
                plan.warm(workspace)
            }

            fn addresses(i: &$read, o: &elsa_series_outputs) -> impl Iterator<Item = usize> {
                $fields(i, o).map(|(_, given)| given.data.addr()).into_iter()
            }

            unsafe fn host<'a>(
                typed: &PlanOf<$operator>,
                inputs: &$read,
                written: &elsa_series_outputs,
                (): (),
            ) -> Result<($module::Inputs<'a>, Outputs<'a>), Fault> {
                use $module::{Inputs, Operand};
                let (tensors, dtype) = typed.tensors(inputs, written)?;
                let at = |operand| &tensors[operand];
                // SAFETY: the caller keeps the clause *tensors*. `buffers` has made each buffer for elements of its
                // operand's type, and has found no output that overlaps other memory.
                unsafe {
                    let inputs = Inputs::of(
                        |operand| at(operand).map(|series| series.elements(dtype(operand))),
                        |operand| at(operand).map(|values| values.read()),
                    );
                    let outputs = Outputs {
                        out: at(Operand::Output).map(|out| out.elements_mut(dtype(Operand::Output))),
                        present_state: at(Operand::PresentState).map(|present| present.write()),
                    };
                    Ok((inputs, outputs))
                }
            }

            unsafe fn lists<'a>(_: &PlanOf<$operator>, _: &$read) -> Result<LengthsOf<'a, $operator>, Fault> {
                Ok(())
            }

            unsafe fn device<'a>(
                typed: &PlanOf<$operator>,
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

        impl Typed<$operator, Types> {
            /// Returns the checked memory of a call's tensors, and the types of their elements.
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
) -> [(recurrence::Operand, Unchecked); recurrence::Operand::ALL.len()] {
    [
        (recurrence::Operand::Output, o.out.into()),
        (recurrence::Operand::PresentState, o.present_state.into()),
        (recurrence::Operand::Gates, i.a.into()),
        (recurrence::Operand::Addends, i.b.into()),
        (recurrence::Operand::PastState, i.past_state.into()),
    ]
}

fn recurrence_dtype(typed: &PlanOf<Recurrence>, operand: recurrence::Operand) -> DType {
    match operand {
        recurrence::Operand::Gates => typed.types.gate,
        _ => typed.types.dtype,
    }
}

called! {
    Recurrence of recurrence: elsa_recurrence_inputs, elsa_recurrence_problem, "a recurrence",
        "elsa_recurrence_plan_create";
    recurrence_fields, recurrence_dtype;
    fn create(
        engine: &Engine,
        problem: &elsa_recurrence_problem,
        options: &elsa_series_options,
    ) -> Result<PlanOf<Recurrence>, Fault> {
        let (dtype, gate) = gated_types(problem.dtype, problem.gate_dtype)?;
        let problem = convert::recurrence_problem(problem)?;
        let plan = engine.recurrence_plan(&problem, &convert::recurrence_options(options)?)?;
        Ok(Typed { plan, types: Types { dtype, gate } })
    }
}

fn selective_fields(
    i: &elsa_selective_inputs,
    o: &elsa_series_outputs,
) -> [(selective::Operand, Unchecked); selective::Operand::ALL.len()] {
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

fn selective_dtype(typed: &PlanOf<Selective>, operand: selective::Operand) -> DType {
    let spec = typed.plan.problem().spec();
    let coefficient = |of: &Coefficient| match of {
        Coefficient::Token(_) => typed.types.dtype,
        Coefficient::Channel => DType::F32,
    };
    match operand {
        selective::Operand::Steps => typed.types.gate,
        selective::Operand::IntoState => coefficient(&spec.b),
        selective::Operand::OutOfState => coefficient(&spec.c),
        _ => typed.types.dtype,
    }
}

called! {
    Selective of selective: elsa_selective_inputs, elsa_selective_problem, "a selective scan",
        "elsa_selective_plan_create";
    selective_fields, selective_dtype;
    fn create(
        engine: &Engine,
        problem: &elsa_selective_problem,
        options: &elsa_series_options,
    ) -> Result<PlanOf<Selective>, Fault> {
        let (dtype, gate) = gated_types(problem.dtype, problem.gate_dtype)?;
        let problem = convert::selective_problem(problem)?;
        let plan = engine.selective_plan(&problem, &convert::selective_options(options)?)?;
        Ok(Typed { plan, types: Types { dtype, gate } })
    }
}

fn convolution_fields(
    i: &elsa_convolution_inputs,
    o: &elsa_series_outputs,
) -> [(convolution::Operand, Unchecked); convolution::Operand::ALL.len()] {
    [
        (convolution::Operand::Output, o.out.into()),
        (convolution::Operand::PresentState, o.present_state.into()),
        (convolution::Operand::Signal, i.u.into()),
        (convolution::Operand::Filter, i.filter.into()),
        (convolution::Operand::Bias, i.bias.into()),
        (convolution::Operand::PastState, i.past_state.into()),
    ]
}

fn convolution_dtype(typed: &PlanOf<Convolution>, _: convolution::Operand) -> DType {
    typed.types.dtype
}

called! {
    Convolution of convolution: elsa_convolution_inputs, elsa_convolution_problem, "a convolution",
        "elsa_convolution_plan_create";
    convolution_fields, convolution_dtype;
    fn create(
        engine: &Engine,
        problem: &elsa_convolution_problem,
        options: &elsa_series_options,
    ) -> Result<PlanOf<Convolution>, Fault> {
        let (dtype, gate) = gated_types(problem.dtype, ELSA_DTYPE_F32)?;
        let problem = convert::convolution_problem(problem)?;
        let plan = engine.convolution_plan(&problem, &convert::convolution_options(options)?)?;
        Ok(Typed { plan, types: Types { dtype, gate } })
    }
}
