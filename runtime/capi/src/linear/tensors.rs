//! Conversion of the tensors of a call of linear attention: from pointers to checked slices, or to GPU addresses.
//!
//! Only [`fields`] pairs each [`Operand`] with its field of the ABI. [`check`] goes through these pairs; [`host`] and
//! [`device`] look operands up by name.

use super::convert;
use crate::fault::Fault;
use crate::memory::{Buffer, Unchecked, apart};
use crate::objects::Typed;
use crate::operands::{buffers, in_order};
use crate::operator::{Called, PlanOf};
use crate::types::*;
use elsa_core::linear::{Inputs, Operand, Operands, Outputs, Problem};
use elsa_runtime::{
    Engine, Linear, LinearDeviceInputs, LinearDeviceOutputs, LinearPlan, LinearWorkspace, Report, RunError,
};

/// Pairs each operand with the memory that its field names. Operands are checked in this order, written ones first.
fn fields(i: &elsa_linear_inputs, o: &elsa_linear_outputs) -> [(Operand, Unchecked); Operand::ALL.len()] {
    [
        (Operand::Output, o.out.into()),
        (Operand::PresentState, o.present_state.into()),
        (Operand::Query, i.q.into()),
        (Operand::Key, i.k.into()),
        (Operand::Value, i.v.into()),
        (Operand::Decay, i.decay.into()),
        (Operand::Beta, i.beta.into()),
        (Operand::PastState, i.past_state.into()),
    ]
}

/// Checked memory of a call.
struct Tensors {
    operands: Operands<Buffer>,
    cu_seqlens: Buffer,
}

impl Tensors {
    /// # Safety
    /// For `'a`, the list of the buffer `cu_seqlens` is readable and nothing writes to it.
    unsafe fn cu_seqlens<'a>(&self) -> Option<&'a [i64]> {
        // SAFETY: the list is readable by the clause of this function, and `check` has made it a list of i64.
        self.cu_seqlens.map(|list| unsafe { list.read() })
    }

    /// # Safety
    /// For `'a`, all bytes of every input are readable and nothing writes to them.
    unsafe fn inputs<'a>(&self, problem: &Problem) -> Inputs<'a> {
        let at = |operand| &self.operands[operand];
        let dtype = |operand| problem.dtype_of(operand);
        // SAFETY: the memory is readable by the clause of this function. `check` has sized each buffer for the element
        // type of its operand, which is f32 for states.
        unsafe {
            Inputs {
                query: at(Operand::Query).elements(dtype(Operand::Query)),
                key: at(Operand::Key).elements(dtype(Operand::Key)),
                value: at(Operand::Value).elements(dtype(Operand::Value)),
                decay: at(Operand::Decay).map(|decay| decay.elements(dtype(Operand::Decay))),
                beta: at(Operand::Beta).map(|beta| beta.elements(dtype(Operand::Beta))),
                past_state: at(Operand::PastState).map(|past| past.read()),
                cu_seqlens: self.cu_seqlens(),
            }
        }
    }
}

/// Checks the address of `cu_seqlens`.
fn bounds(problem: &Problem, inputs: &elsa_linear_inputs) -> Result<Buffer, Fault> {
    let list = Unchecked::from(inputs.cu_seqlens);
    match problem.spec().packed.is_some() || list.any() {
        true => Buffer::new("cu_seqlens", list, inputs.cu_seqlens.count, size_of::<i64>()),
        false => Ok(Buffer::ABSENT),
    }
}

/// Checks every property of the tensors that needs no access to them: addresses, sizes, overlap. Without `outputs`, only
/// the inputs are given.
fn check(
    problem: &Problem,
    inputs: &elsa_linear_inputs,
    outputs: Option<&elsa_linear_outputs>,
) -> Result<Tensors, Fault> {
    let only_read = outputs.is_none();
    let outputs = outputs.copied().unwrap_or_default();
    let fields = fields(inputs, &outputs);
    let in_place = problem.spec().in_place;
    // Every problem has an output, but a call may omit it.
    let optional = |operand: Operand| operand == Operand::Output || only_read && operand.is_written();
    let memory = |operand| (problem.memory(operand), optional(operand));
    let present = (Operand::PresentState, outputs.present_state.data);
    let within = |operand| (in_place && operand == Operand::PastState).then_some(present);
    let operands = buffers(&fields, Operand::Output, memory, within)?;
    let cu_seqlens = bounds(problem, inputs)?;
    apart(in_order(&fields, &operands).chain([(false, cu_seqlens)]))?;
    Ok(Tensors { operands, cu_seqlens })
}

/// Returns the tensors of a call in host memory.
///
/// # Safety
/// For `'a`, all bytes of every input are readable and nothing writes to them; all bytes of every output are writable and
/// nothing else uses them.
unsafe fn host<'a>(
    problem: &Problem,
    inputs: &elsa_linear_inputs,
    outputs: &elsa_linear_outputs,
) -> Result<(Inputs<'a>, Outputs<'a>), Fault> {
    let tensors = check(problem, inputs, Some(outputs))?;
    let at = |operand| &tensors.operands[operand];
    // SAFETY: the memory is valid by the clause of this function. `check` has sized each buffer for the element type of
    // its operand, which is f32 for states, and has found no output that overlaps other memory.
    unsafe {
        let dtype = problem.dtype_of(Operand::Output);
        let written = Outputs {
            output: at(Operand::Output).map(|out| out.elements_mut(dtype)),
            present_state: at(Operand::PresentState).map(|present| present.write()),
        };
        Ok((tensors.inputs(problem), written))
    }
}

/// Returns the inputs of a call in host memory. The problem is not in place.
///
/// # Safety
/// For `'a`, all bytes of every input are readable and nothing writes to them.
pub(super) unsafe fn inputs<'a>(problem: &Problem, given: &elsa_linear_inputs) -> Result<Inputs<'a>, Fault> {
    let tensors = check(problem, given, None)?;
    // SAFETY: the caller keeps the clause of this function.
    Ok(unsafe { tensors.inputs(problem) })
}

impl Called for Linear {
    const NAME: &'static str = "linear attention";
    const CREATE: &'static str = "elsa_linear_plan_create";
    type Described = elsa_linear_problem;
    type Options = elsa_linear_options;
    type Read = elsa_linear_inputs;
    type Written = elsa_linear_outputs;
    type Part = ();
    type Types = ();

    fn create(
        engine: &Engine,
        problem: &elsa_linear_problem,
        options: &elsa_linear_options,
    ) -> Result<PlanOf<Linear>, Fault> {
        let problem = convert::problem(problem)?;
        let plan = engine.linear_plan(&problem, &convert::options(options)?)?;
        Ok(Typed { plan, types: () })
    }

    fn warm(plan: &LinearPlan, workspace: &mut LinearWorkspace) -> Result<Report, RunError> {
        plan.warm(workspace)
    }

    fn addresses(i: &elsa_linear_inputs, o: &elsa_linear_outputs) -> impl Iterator<Item = usize> {
        let tensors = fields(i, o).map(|(_, given)| given.data.addr());
        tensors.into_iter().chain([i.cu_seqlens.data.addr()])
    }

    fn has_lists(i: &elsa_linear_inputs) -> bool {
        !i.cu_seqlens.data.is_null()
    }

    unsafe fn host<'a>(
        of: &PlanOf<Linear>,
        inputs: &elsa_linear_inputs,
        outputs: &elsa_linear_outputs,
        (): (),
    ) -> Result<(Inputs<'a>, Outputs<'a>), Fault> {
        // SAFETY: the caller keeps the clause *tensors*.
        unsafe { host(of.plan.problem(), inputs, outputs) }
    }

    unsafe fn lists<'a>(
        of: &PlanOf<Linear>,
        inputs: &elsa_linear_inputs,
    ) -> Result<Option<&'a [i64]>, Fault> {
        let problem = of.plan.problem();
        // SAFETY: the caller keeps the clause *tensors*. `bounds` makes a list of i64.
        let cu_seqlens = bounds(problem, inputs)?.map(|list| unsafe { list.read() });
        problem.check_bounds(cu_seqlens)?;
        Ok(cu_seqlens)
    }

    // `cu_seqlens` is in host memory, unlike the tensors.
    unsafe fn device<'a>(
        of: &PlanOf<Linear>,
        inputs: &elsa_linear_inputs,
        outputs: &elsa_linear_outputs,
    ) -> Result<(LinearDeviceInputs<'a>, LinearDeviceOutputs), Fault> {
        let tensors = check(of.plan.problem(), inputs, Some(outputs))?;
        let required = |operand| tensors.operands[operand].data as u64;
        let optional = |operand| tensors.operands[operand].map(|buffer| buffer.data as u64);
        let read = LinearDeviceInputs {
            query: required(Operand::Query),
            key: required(Operand::Key),
            value: required(Operand::Value),
            decay: optional(Operand::Decay),
            beta: optional(Operand::Beta),
            past_state: optional(Operand::PastState),
            // SAFETY: the caller keeps the clause of this function.
            cu_seqlens: unsafe { tensors.cu_seqlens() },
        };
        let written = LinearDeviceOutputs {
            output: optional(Operand::Output),
            present_state: optional(Operand::PresentState),
        };
        Ok((read, written))
    }
}
