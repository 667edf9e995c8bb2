//! The tensors of calls of the operators that treat every channel by itself: from pointers to checked slices, or to addresses
//! of a GPU.

use crate::convert;
use crate::fault::Fault;
use crate::frame::Named;
use crate::memory::{Buffer, Given, apart};
use crate::operator::{Called, OnDevice};
use crate::planned::{Planned, Typed};
use crate::space::Space;
use crate::types::*;
use elsa_core::dtype::DType;
use elsa_core::series::selective::Coefficient;
use elsa_core::series::{convolution, recurrence, selective};
use elsa_runtime::operators::Operator;
use elsa_runtime::{
    Backend, Convolution, ConvolutionDeviceInputs, ConvolutionPlan, ConvolutionWorkspace, DeviceElements,
    Engine, Recurrence, RecurrenceDeviceInputs, RecurrencePlan, RecurrenceWorkspace, Report, Selective,
    SelectiveDeviceInputs, SelectivePlan, SelectiveWorkspace, SeriesDeviceOutputs,
};

/// A tensor of a call as the problem has it, and as the frame names it.
struct Field {
    name: &'static str,
    given: Given,
    /// Number of elements.
    elements: usize,
    dtype: DType,
    /// Whether the frame may leave it out.
    optional: bool,
}

impl Field {
    fn required(name: &'static str, given: impl Into<Given>, elements: usize, dtype: DType) -> Field {
        Field { name, given: given.into(), elements, dtype, optional: false }
    }

    /// One that a frame may leave out.
    fn optional(name: &'static str, given: impl Into<Given>, elements: usize, dtype: DType) -> Field {
        Field { optional: true, ..Field::required(name, given, elements, dtype) }
    }

    fn buffer(&self) -> Result<Buffer, Fault> {
        // Without elements null with 0 bytes is an output, as an empty vector has it.
        if self.optional && !self.given.any() && (self.name, self.elements) != ("out", 0) {
            return Ok(Buffer::ABSENT);
        }
        Buffer::new(self.name, self.given, self.elements, self.dtype.size())
    }
}

/// What all of the operators have.
struct Shared<'a> {
    in_place: bool,
    /// Number of values of the states.
    states: usize,
    out: (usize, DType),
    past_state: elsa_input,
    written: &'a elsa_series_outputs,
}

/// The checked memory of a frame.
struct Tensors<const N: usize> {
    out: Buffer,
    present: Buffer,
    past: Buffer,
    rest: [Buffer; N],
}

impl<const N: usize> Tensors<N> {
    /// The outputs on a device, the first one of elements of `dtype`.
    fn written(&self, dtype: DType) -> SeriesDeviceOutputs {
        SeriesDeviceOutputs {
            out: self.out.map(|out| on_device(out, dtype)),
            present_state: address(&self.present),
        }
    }
}

/// A tensor of a series on a device.
fn on_device(buffer: &Buffer, dtype: DType) -> DeviceElements {
    DeviceElements { address: buffer.data as u64, dtype }
}

/// The address of a tensor on a device, if the frame has it.
fn address(buffer: &Buffer) -> Option<u64> {
    buffer.map(|buffer| buffer.data as u64)
}

impl Shared<'_> {
    /// Checks everything about the tensors that needs no access to them: addresses, sizes, overlap.
    fn check<const N: usize>(&self, fields: [Field; N]) -> Result<Tensors<N>, Fault> {
        let Shared { in_place, states, out: (elements, dtype), past_state, written } = *self;
        let out = Field::optional("out", written.out, elements, dtype).buffer()?;
        let present = Field::optional("present_state", written.present_state, states, DType::F32).buffer()?;
        let mut rest = [Buffer::ABSENT; N];
        for (buffer, field) in rest.iter_mut().zip(&fields) {
            *buffer = field.buffer()?;
        }
        let past = match in_place {
            true => {
                Buffer::within("past_state", past_state.into(), ("present_state", written.present_state.data))
            }
            false => Field::optional("past_state", past_state, states, DType::F32).buffer(),
        }?;
        let read = rest.iter().chain([&past]).map(|buffer| (false, *buffer));
        apart([(true, out), (true, present)].into_iter().chain(read))?;
        Ok(Tensors { out, present, past, rest })
    }
}

/// The addresses of the outputs and of some inputs.
fn addresses<const N: usize>(
    inputs: [elsa_input; N],
    outputs: &elsa_series_outputs,
) -> impl Iterator<Item = usize> + use<N> {
    let outputs = [outputs.out, outputs.present_state].map(|output| output.data.addr());
    inputs.into_iter().map(|input| input.data.addr()).chain(outputs)
}

/// What [`Called`] has of every one of the operators in the same words.
macro_rules! called {
    ($variant:ident, $plan:ty, $workspace:ty) => {
        type Options = elsa_series_options;
        type Written = elsa_series_outputs;
        type Part = ();
        type Plan = Typed<$plan>;
        type Workspace = $workspace;

        fn plan(planned: &Planned) -> Option<&Typed<$plan>> {
            if let Planned::$variant(typed) = planned { Some(typed) } else { None }
        }

        fn workspace(space: &mut Space) -> Option<&mut $workspace> {
            if let Space::$variant(workspace) = space { Some(workspace) } else { None }
        }

        fn shared(plans: &[&Typed<$plan>]) -> Result<Space, Fault> {
            let plans: Vec<_> = plans.iter().map(|typed| &typed.plan).collect();
            Ok(Space::$variant(<$workspace>::shared(&plans)?.into()))
        }

        fn kernel(typed: &Typed<$plan>, backend: Backend) -> &'static str {
            typed.plan.kernel_of(backend)
        }

        fn named(inputs: Self::Read, outputs: elsa_series_outputs) -> Named {
            Named::$variant(inputs, outputs)
        }
    };
}

/// Checks the tensors of a recurrence: factors and addends.
fn recurrence_tensors(
    Typed { plan, dtype, gate }: &Typed<RecurrencePlan>,
    inputs: &elsa_recurrence_inputs,
    written: &elsa_series_outputs,
) -> Result<Tensors<2>, Fault> {
    let (problem, dtype, gate) = (plan.problem(), *dtype, *gate);
    let s = problem.spec();
    let shared = Shared {
        in_place: s.in_place,
        states: problem.states(),
        out: (s.out.extent(), dtype),
        past_state: inputs.past_state,
        written,
    };
    let fields = [
        Field::required("a", inputs.a, s.a.extent(), gate),
        Field::required("b", inputs.b, s.b.extent(), dtype),
    ];
    shared.check(fields)
}

impl Called for Recurrence {
    const CREATE: &'static str = "elsa_recurrence_plan_create";
    type Described = elsa_recurrence_problem;
    type Read = elsa_recurrence_inputs;

    called!(Recurrence, RecurrencePlan, RecurrenceWorkspace);

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

    fn addresses(i: &elsa_recurrence_inputs, o: &elsa_series_outputs) -> impl Iterator<Item = usize> {
        addresses([i.a, i.b, i.past_state], o)
    }

    unsafe fn bind(
        typed: &Typed<RecurrencePlan>,
        workspace: &mut RecurrenceWorkspace,
        inputs: &elsa_recurrence_inputs,
        written: &elsa_series_outputs,
        (): (),
        runs: bool,
    ) -> Result<Option<Report>, Fault> {
        let Tensors { out, present, past, rest: [a, b] } = recurrence_tensors(typed, inputs, written)?;
        let Typed { plan, dtype, gate } = typed;
        let (dtype, gate) = (*dtype, *gate);
        // SAFETY: *tensors*. `check` has made the buffers for elements of these types, and has found no output that overlaps
        // anything.
        let (inputs, outputs) = unsafe {
            let inputs = recurrence::Inputs {
                a: a.elements(gate),
                b: b.elements(dtype),
                past_state: past.map(|past| past.read()),
            };
            let outputs = recurrence::Outputs {
                out: out.map(|out| out.elements_mut(dtype)),
                present_state: present.map(|present| present.write()),
            };
            (inputs, outputs)
        };
        crate::operator::ran(&mut plan.bind(inputs, outputs, workspace), runs)
    }
}

impl OnDevice for Recurrence {
    fn of_runtime(typed: &Typed<RecurrencePlan>) -> &RecurrencePlan {
        &typed.plan
    }

    unsafe fn device<'a>(
        typed: &Typed<RecurrencePlan>,
        inputs: &elsa_recurrence_inputs,
        written: &elsa_series_outputs,
    ) -> Result<(<Self as Operator>::DeviceInputs<'a>, SeriesDeviceOutputs), Fault> {
        let tensors = recurrence_tensors(typed, inputs, written)?;
        let [a, b] = &tensors.rest;
        let read = RecurrenceDeviceInputs {
            a: on_device(a, typed.gate),
            b: on_device(b, typed.dtype),
            past_state: address(&tensors.past),
        };
        Ok((read, tensors.written(typed.dtype)))
    }
}

/// Checks the tensors of a selective scan: u, delta, a, b, c, d, z and what is added to delta. Returns also the types of b and c.
fn selective_tensors(
    Typed { plan, dtype, gate }: &Typed<SelectivePlan>,
    inputs: &elsa_selective_inputs,
    written: &elsa_series_outputs,
) -> Result<(Tensors<8>, [DType; 2]), Fault> {
    let (problem, dtype, gate) = (plan.problem(), *dtype, *gate);
    let (s, channels) = (problem.spec(), problem.channels());
    let parameters = channels * problem.states();
    let shared = Shared {
        in_place: s.in_place,
        states: problem.state_values(),
        out: (s.out.extent(), dtype),
        past_state: inputs.past_state,
        written,
    };
    let coefficient = |of: &Coefficient| match of {
        Coefficient::Token(series) => (series.extent(), dtype),
        Coefficient::Channel => (parameters, DType::F32),
    };
    let ((of_b, type_b), (of_c, type_c)) = (coefficient(&s.b), coefficient(&s.c));
    let given = Given::from(inputs.z);
    let z = match &s.z {
        Some(z) => Field::required("z", given, z.extent(), dtype),
        None => {
            Buffer::without("z", given)?;
            Field::optional("z", given, 0, dtype)
        }
    };
    let fields = [
        Field::required("u", inputs.u, s.u.extent(), dtype),
        Field::required("delta", inputs.delta, s.delta.extent(), gate),
        Field::required("a", inputs.a, parameters, DType::F32),
        Field::required("b", inputs.b, of_b, type_b),
        Field::required("c", inputs.c, of_c, type_c),
        Field::optional("d", inputs.d, channels, DType::F32),
        z,
        Field::optional("delta_bias", inputs.delta_bias, channels, DType::F32),
    ];
    Ok((shared.check(fields)?, [type_b, type_c]))
}

impl Called for Selective {
    const CREATE: &'static str = "elsa_selective_plan_create";
    type Described = elsa_selective_problem;
    type Read = elsa_selective_inputs;

    called!(Selective, SelectivePlan, SelectiveWorkspace);

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

    fn addresses(i: &elsa_selective_inputs, o: &elsa_series_outputs) -> impl Iterator<Item = usize> {
        addresses([i.u, i.delta, i.a, i.b, i.c, i.d, i.z, i.delta_bias, i.past_state], o)
    }

    unsafe fn bind(
        typed: &Typed<SelectivePlan>,
        workspace: &mut SelectiveWorkspace,
        inputs: &elsa_selective_inputs,
        written: &elsa_series_outputs,
        (): (),
        runs: bool,
    ) -> Result<Option<Report>, Fault> {
        let (tensors, [type_b, type_c]) = selective_tensors(typed, inputs, written)?;
        let Tensors { out, present, past, rest: [u, delta, a, b, c, d, z, bias] } = tensors;
        let Typed { plan, dtype, gate } = typed;
        let (dtype, gate) = (*dtype, *gate);
        // SAFETY: *tensors*. `check` has made the buffers for elements of these types, and has found no output that overlaps
        // anything.
        let (inputs, outputs) = unsafe {
            let inputs = selective::Inputs {
                u: u.elements(dtype),
                delta: delta.elements(gate),
                a: a.read(),
                b: b.elements(type_b),
                c: c.elements(type_c),
                d: d.map(|d| d.read()),
                z: z.map(|z| z.elements(dtype)),
                delta_bias: bias.map(|bias| bias.read()),
                past_state: past.map(|past| past.read()),
            };
            let outputs = selective::Outputs {
                out: out.map(|out| out.elements_mut(dtype)),
                present_state: present.map(|present| present.write()),
            };
            (inputs, outputs)
        };
        crate::operator::ran(&mut plan.bind(inputs, outputs, workspace), runs)
    }
}

impl OnDevice for Selective {
    fn of_runtime(typed: &Typed<SelectivePlan>) -> &SelectivePlan {
        &typed.plan
    }

    unsafe fn device<'a>(
        typed: &Typed<SelectivePlan>,
        inputs: &elsa_selective_inputs,
        written: &elsa_series_outputs,
    ) -> Result<(<Self as Operator>::DeviceInputs<'a>, SeriesDeviceOutputs), Fault> {
        let (tensors, [type_b, type_c]) = selective_tensors(typed, inputs, written)?;
        let [u, delta, a, b, c, d, z, bias] = &tensors.rest;
        let read = SelectiveDeviceInputs {
            u: on_device(u, typed.dtype),
            delta: on_device(delta, typed.gate),
            a: a.data as u64,
            b: on_device(b, type_b),
            c: on_device(c, type_c),
            d: address(d),
            z: z.map(|z| on_device(z, typed.dtype)),
            delta_bias: address(bias),
            past_state: address(&tensors.past),
        };
        Ok((read, tensors.written(typed.dtype)))
    }
}

/// Checks the tensors of a convolution: inputs, filters and what is added to the sums.
fn convolution_tensors(
    Typed { plan, dtype, .. }: &Typed<ConvolutionPlan>,
    inputs: &elsa_convolution_inputs,
    written: &elsa_series_outputs,
) -> Result<Tensors<3>, Fault> {
    let (problem, dtype) = (plan.problem(), *dtype);
    let s = problem.spec();
    let shared = Shared {
        in_place: s.in_place,
        states: problem.states(),
        out: (s.out.extent(), dtype),
        past_state: inputs.past_state,
        written,
    };
    let fields = [
        Field::required("u", inputs.u, s.u.extent(), dtype),
        Field::required("filter", inputs.filter, problem.weights(), DType::F32),
        Field::optional("bias", inputs.bias, problem.channels(), DType::F32),
    ];
    shared.check(fields)
}

impl Called for Convolution {
    const CREATE: &'static str = "elsa_convolution_plan_create";
    type Described = elsa_convolution_problem;
    type Read = elsa_convolution_inputs;

    called!(Convolution, ConvolutionPlan, ConvolutionWorkspace);

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

    fn addresses(i: &elsa_convolution_inputs, o: &elsa_series_outputs) -> impl Iterator<Item = usize> {
        addresses([i.u, i.filter, i.bias, i.past_state], o)
    }

    unsafe fn bind(
        typed: &Typed<ConvolutionPlan>,
        workspace: &mut ConvolutionWorkspace,
        inputs: &elsa_convolution_inputs,
        written: &elsa_series_outputs,
        (): (),
        runs: bool,
    ) -> Result<Option<Report>, Fault> {
        let Tensors { out, present, past, rest: [u, filter, bias] } =
            convolution_tensors(typed, inputs, written)?;
        let Typed { plan, dtype, .. } = typed;
        let dtype = *dtype;
        // SAFETY: *tensors*. `check` has made the buffers for elements of these types, and has found no output that overlaps
        // anything.
        let (inputs, outputs) = unsafe {
            let inputs = convolution::Inputs {
                u: u.elements(dtype),
                filter: filter.read(),
                bias: bias.map(|bias| bias.read()),
                past_state: past.map(|past| past.read()),
            };
            let outputs = convolution::Outputs {
                out: out.map(|out| out.elements_mut(dtype)),
                present_state: present.map(|present| present.write()),
            };
            (inputs, outputs)
        };
        crate::operator::ran(&mut plan.bind(inputs, outputs, workspace), runs)
    }
}

impl OnDevice for Convolution {
    fn of_runtime(typed: &Typed<ConvolutionPlan>) -> &ConvolutionPlan {
        &typed.plan
    }

    unsafe fn device<'a>(
        typed: &Typed<ConvolutionPlan>,
        inputs: &elsa_convolution_inputs,
        written: &elsa_series_outputs,
    ) -> Result<(<Self as Operator>::DeviceInputs<'a>, SeriesDeviceOutputs), Fault> {
        let tensors = convolution_tensors(typed, inputs, written)?;
        let [u, filter, bias] = &tensors.rest;
        let read = ConvolutionDeviceInputs {
            u: on_device(u, typed.dtype),
            filter: filter.data as u64,
            bias: address(bias),
            past_state: address(&tensors.past),
        };
        Ok((read, tensors.written(typed.dtype)))
    }
}
