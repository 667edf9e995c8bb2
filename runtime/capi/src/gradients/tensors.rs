//! Conversion of the tensors of a call of gradients: from pointers to checked slices.
//!
//! Only [`fields`] pairs each [`Operand`] with its field of the ABI. [`check`] goes through these pairs; [`host`] looks
//! operands up by name.

use crate::attention::convert;
use crate::attention::tensors::{checked_lengths, lengths_of, lists, mask_elements};
use crate::fault::Fault;
use crate::memory::{Buffer, Unchecked, apart};
use crate::objects::Typed;
use crate::operands::{buffers, in_order};
use crate::operator::{Called, PlanOf};
use crate::types::*;
use elsa_core::attention::backward::{
    BackwardInputs, BackwardProblem, Gradients, Operand, Operands, Statistics,
};
use elsa_core::attention::{self, Inputs, Lengths};
use elsa_core::dtype::DType;
use elsa_runtime::operators::Operator;
use elsa_runtime::{
    Backward, BackwardPlan, BackwardPlanOptions, BackwardWorkspace, Engine, Report, RunError,
};

/// Element types of the tensors that may be f32 in a problem of another type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Types {
    output: DType,
    upstream: DType,
}

impl Types {
    /// Returns the types that `options` select for a problem of type `dtype`.
    pub(crate) fn of(options: &elsa_gradients_options, dtype: DType) -> Types {
        let of = |is_f32: u32| if is_f32 == 0 { dtype } else { DType::F32 };
        Types { output: of(options.out_is_f32), upstream: of(options.d_out_is_f32) }
    }
}

/// Returns the options of the runtime.
pub(crate) fn plan_options(options: &elsa_gradients_options) -> BackwardPlanOptions {
    BackwardPlanOptions::default().budget((options.budget != 0).then_some(options.budget))
}

/// Pairs each operand with the memory that its field names. Operands are checked in this order, written ones first.
fn fields(
    i: &elsa_gradients_inputs,
    o: &elsa_gradients_outputs,
) -> [(Operand, Unchecked); Operand::ALL.len()] {
    [
        (Operand::QueryGradient, o.d_q.into()),
        (Operand::KeyGradient, o.d_k.into()),
        (Operand::ValueGradient, o.d_v.into()),
        (Operand::Query, i.q.into()),
        (Operand::Key, i.k.into()),
        (Operand::Value, i.v.into()),
        (Operand::Mask, i.mask.into()),
        (Operand::Bias, i.bias.into()),
        (Operand::BiasIndex, i.bias_index.into()),
        (Operand::Output, i.out.into()),
        (Operand::Upstream, i.d_out.into()),
        (Operand::LogSumExp, i.lse.into()),
        (Operand::StateReference, i.state_m.into()),
        (Operand::StateSum, i.state_s.into()),
    ]
}

/// Returns the lists of lengths of a call.
fn of_lengths(i: &elsa_gradients_inputs) -> [elsa_integers; 3] {
    [i.key_lengths, i.cu_seqlens_q, i.cu_seqlens_k]
}

/// Checked memory of a call.
struct Tensors {
    operands: Operands<Buffer>,
    /// The lists `key_lengths`, `cu_seqlens_q` and `cu_seqlens_k`, in this order.
    lists: [Buffer; 3],
}

/// Checks every property of the tensors that needs no access to them: addresses, sizes, overlap, and that the
/// statistics are either the states or log-sum-exp. The outputs have the views of `written`, which is `problem`, or the
/// problem of a task's shares.
fn check(
    problem: &BackwardProblem,
    written: &BackwardProblem,
    types: Types,
    inputs: &elsa_gradients_inputs,
    outputs: &elsa_gradients_outputs,
) -> Result<Tensors, Fault> {
    let states = [Unchecked::from(inputs.state_m), inputs.state_s.into()].map(Unchecked::any);
    let lse = Unchecked::from(inputs.lse).any();
    let found = match (states, lse) {
        ([true, true], false) | ([false, false], true) => None,
        ([false, false], false) if problem.forward().rows() == 0 => None,
        ([false, false], false) => Some("all are null"),
        ([true, true], true) => Some("all are given"),
        _ => Some("one of the states is null"),
    };
    if let Some(found) = found {
        return Err(Fault::argument(format_args!(
            "state_m, state_s, lse: {found}; allowed: state_m and state_s, or lse"
        )));
    }
    let fields = fields(inputs, outputs);
    let memory = |operand: Operand| {
        let dtype = if operand == Operand::Upstream { types.upstream } else { types.output };
        let of = if operand.is_written() { written } else { problem };
        (of.memory(operand, dtype), operand.is_statistic())
    };
    let operands = buffers(&fields, Operand::Output, memory, |_| None)?;
    let lists = lists(problem.forward(), of_lengths(inputs))?;
    apart(in_order(&fields, &operands).chain(lists.map(|list| (false, list))))?;
    Ok(Tensors { operands, lists })
}

/// Returns the tensors of a call in host memory. The outputs have the views of `written`, as in [`check`].
///
/// # Safety
/// For `'a`, all bytes of every input are readable and nothing writes to them; all bytes of every output are writable and
/// nothing else uses them.
#[inline(never)]
pub(crate) unsafe fn host<'a>(
    problem: &BackwardProblem,
    written: &BackwardProblem,
    types: Types,
    inputs: &elsa_gradients_inputs,
    outputs: &elsa_gradients_outputs,
) -> Result<(BackwardInputs<'a>, Gradients<'a>), Fault> {
    let tensors = check(problem, written, types, inputs, outputs)?;
    let spec = problem.forward().spec();
    let at = |operand| &tensors.operands[operand];
    // SAFETY: the memory is valid by the clause of this function. `check` has sized each buffer for its element type: that
    // of the problem, of the mask, of the bias or of `types`, f32 or i64. It has found no output that overlaps other
    // memory.
    unsafe {
        let forward = Inputs {
            mask: spec
                .mask
                .and_then(|view| at(Operand::Mask).map(|buffer| mask_elements(buffer, view.kind()))),
            bias_index: at(Operand::BiasIndex).map(|index| index.read()),
            lengths: lengths_of(&tensors.lists),
            ..Inputs::of(|operand| match (operand, spec.bias) {
                (attention::Operand::Query, _) => Some(at(Operand::Query).elements(spec.dtype)),
                (attention::Operand::Key, _) => Some(at(Operand::Key).elements(spec.dtype)),
                (attention::Operand::Value, _) => Some(at(Operand::Value).elements(spec.dtype)),
                (attention::Operand::Bias, Some(bias)) => {
                    at(Operand::Bias).map(|buffer| buffer.elements(bias.dtype()))
                }
                _ => None,
            })
        };
        let states = at(Operand::StateReference);
        let read = BackwardInputs {
            forward,
            output: at(Operand::Output).elements(types.output),
            upstream: at(Operand::Upstream).elements(types.upstream),
            statistics: match states.present {
                true => Statistics::State { m: states.read(), s: at(Operand::StateSum).read() },
                false => Statistics::LogSumExp(at(Operand::LogSumExp).read()),
            },
        };
        let written = Gradients {
            query: at(Operand::QueryGradient).write(),
            key: at(Operand::KeyGradient).write(),
            value: at(Operand::ValueGradient).write(),
        };
        Ok((read, written))
    }
}

impl Called for Backward {
    const NAME: &'static str = "gradients";
    const CREATE: &'static str = "elsa_gradients_plan_create";
    type Described = elsa_problem;
    type Options = elsa_gradients_options;
    type Read = elsa_gradients_inputs;
    type Written = elsa_gradients_outputs;
    type Part = ();
    type Types = Types;

    fn create(
        engine: &Engine,
        problem: &elsa_problem,
        options: &elsa_gradients_options,
    ) -> Result<PlanOf<Backward>, Fault> {
        let problem = BackwardProblem::new(&convert::problem(problem)?)?;
        let plan = engine.backward_plan(&problem, &plan_options(options))?;
        Ok(Typed { plan, types: Types::of(options, problem.forward().spec().dtype) })
    }

    fn warm(plan: &BackwardPlan, workspace: &mut BackwardWorkspace) -> Result<Report, RunError> {
        plan.warm(workspace)
    }

    fn addresses(i: &elsa_gradients_inputs, o: &elsa_gradients_outputs) -> impl Iterator<Item = usize> {
        let tensors = fields(i, o).map(|(_, given)| given.data.addr());
        tensors.into_iter().chain(of_lengths(i).map(|list| list.data.addr()))
    }

    unsafe fn host<'a>(
        of: &PlanOf<Backward>,
        inputs: &elsa_gradients_inputs,
        outputs: &elsa_gradients_outputs,
        (): (),
    ) -> Result<(BackwardInputs<'a>, Gradients<'a>), Fault> {
        // SAFETY: the caller keeps the clause *tensors*.
        unsafe { host(of.plan.problem(), of.plan.problem(), of.types, inputs, outputs) }
    }

    unsafe fn lists<'a>(of: &PlanOf<Backward>, i: &elsa_gradients_inputs) -> Result<Lengths<'a>, Fault> {
        // SAFETY: the caller keeps the clause *tensors*.
        unsafe { checked_lengths(of.plan.problem().forward(), i.bias_index, of_lengths(i)) }
    }

    unsafe fn device<'a>(
        _: &PlanOf<Backward>,
        _: &elsa_gradients_inputs,
        _: &elsa_gradients_outputs,
    ) -> Result<(<Backward as Operator>::DeviceInputs<'a>, <Backward as Operator>::DeviceOutputs), Fault>
    {
        Err(Fault::new(
            ELSA_STATUS_UNSUPPORTED,
            &"tensors: in GPU memory; allowed for gradients: host memory",
        ))
    }
}
