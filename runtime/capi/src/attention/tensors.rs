//! Conversion of the tensors of a call: from pointers to checked slices, or to GPU addresses.
//!
//! [`fields`] is the only function that pairs each [`Operand`] with its field of the ABI. From these pairs, [`check`]
//! makes [`Tensors`], in which [`host`] and [`device`] look operands up by name.

use super::convert;
use crate::fault::Fault;
use crate::memory::{Buffer, Unchecked, apart};
use crate::objects::Typed;
use crate::operands::{buffers, in_order};
use crate::operator::{Called, PlanOf};
use crate::types::*;
use elsa_core::attention::{BiasView, MaskElements, MaskKind};
use elsa_core::attention::{
    Chunk, Inputs, Lengths, Operand, Operands, Outputs, Problem, StateOut, StateTensors,
};
use elsa_core::memory::Memory;
use elsa_runtime::{Attention, DeviceInputs, DeviceOutputs, Engine, Plan, Report, RunError, Workspace};
use std::ffi::c_void;

/// Pairs each operand with the memory that its field names. Operands are checked in this order, written ones first.
fn fields(i: &elsa_inputs, o: &elsa_outputs) -> [(Operand, Unchecked); Operand::ALL.len()] {
    [
        (Operand::Output, o.out.into()),
        (Operand::LogSumExp, o.lse.into()),
        (Operand::StateReference, o.state_m.into()),
        (Operand::StateSum, o.state_s.into()),
        (Operand::StateWeighted, o.state_w.into()),
        (Operand::PresentKey, o.present_k.into()),
        (Operand::PresentValue, o.present_v.into()),
        (Operand::Query, i.q.into()),
        (Operand::Key, i.k.into()),
        (Operand::Value, i.v.into()),
        (Operand::PastKey, i.past_k.into()),
        (Operand::PastValue, i.past_v.into()),
        (Operand::Mask, i.mask.into()),
        (Operand::Bias, i.bias.into()),
        (Operand::BiasIndex, i.bias_index.into()),
    ]
}

/// Checked memory of a call.
struct Tensors {
    operands: Operands<Buffer>,
    /// The lists `key_lengths`, `cu_seqlens_q` and `cu_seqlens_k`, in this order.
    lists: [Buffer; 3],
}

impl Tensors {
    /// Returns the three state arrays, which are either all present or all absent.
    fn states(&self) -> Option<[Buffer; 3]> {
        let states = [Operand::StateReference, Operand::StateSum, Operand::StateWeighted];
        let states = states.map(|operand| self.operands[operand]);
        states.iter().all(|array| array.present).then_some(states)
    }

    /// # Safety
    /// For `'a`, the three lists of `self.lists` are readable and nothing writes to them.
    unsafe fn lengths<'a>(&self) -> Lengths<'a> {
        // SAFETY: the caller keeps the clause of this function.
        unsafe { lengths_of(&self.lists) }
    }

    /// # Safety
    /// For `'a`, all bytes of every input are readable and nothing writes to them.
    unsafe fn inputs<'a>(&self, problem: &Problem, chunk: Option<Chunk>) -> Inputs<'a> {
        let (spec, at) = (problem.spec(), |operand| &self.operands[operand]);
        // SAFETY: the memory is readable by the clause of this function. `check` has sized each buffer for its element
        // type: that of the problem, of the mask or of the bias, or i64.
        unsafe {
            Inputs {
                mask: spec
                    .mask
                    .and_then(|view| at(Operand::Mask).map(|buffer| mask_elements(buffer, view.kind()))),
                bias_index: at(Operand::BiasIndex).map(|index| index.read()),
                lengths: Lengths { chunk, ..self.lengths() },
                ..Inputs::of(|operand| {
                    let dtype = match (operand, spec.bias) {
                        (Operand::Bias, Some(bias)) => bias.dtype(),
                        _ => spec.dtype,
                    };
                    at(operand).map(|buffer| buffer.elements(dtype))
                })
            }
        }
    }
}

/// Checks the addresses of `key_lengths`, `cu_seqlens_q`, `cu_seqlens_k`.
pub(crate) fn lists(problem: &Problem, given: [elsa_integers; 3]) -> Result<[Buffer; 3], Fault> {
    let packed = problem.spec().packed.is_some();
    let list = |name, list: elsa_integers, has: bool| {
        let given = Unchecked::from(list);
        match has || given.any() {
            true => Buffer::new(name, given, list.count, size_of::<i64>()),
            false => Ok(Buffer::ABSENT),
        }
    };
    let [keys, of_queries, of_keys] = given;
    Ok([
        list("key_lengths", keys, problem.spec().key_lengths)?,
        list("cu_seqlens_q", of_queries, packed)?,
        list("cu_seqlens_k", of_keys, packed)?,
    ])
}

/// Returns the lengths that `key_lengths`, `cu_seqlens_q` and `cu_seqlens_k` name. They are not yet checked.
///
/// # Safety
/// For `'a`, all entries of the lists in `given` are readable and nothing writes to them.
pub(crate) unsafe fn lengths<'a>(problem: &Problem, given: [elsa_integers; 3]) -> Result<Lengths<'a>, Fault> {
    let lists = lists(problem, given)?;
    // SAFETY: the caller keeps the clause of this function.
    Ok(unsafe { lengths_of(&lists) })
}

/// Returns the lengths of a call whose tensors have been checked. Checks the entries of its lists and of its bias index.
///
/// # Safety
/// For `'a`, all entries of `index` and of the lists in `given` are readable and nothing writes to them.
pub(crate) unsafe fn checked_lengths<'a>(
    problem: &Problem,
    index: elsa_integers,
    given: [elsa_integers; 3],
) -> Result<Lengths<'a>, Fault> {
    let spec = problem.spec();
    let indexed = matches!(spec.bias, Some(BiasView::Table(table)) if table.indexed);
    if !spec.key_lengths && spec.packed.is_none() && !indexed {
        return Ok(Lengths::default());
    }
    // SAFETY: the caller keeps the clause of this function. The buffer has been made for elements of its size.
    let (lengths, index) = unsafe {
        let index = problem.memory(Operand::BiasIndex).map(|memory| {
            let Memory { elements, element_size, .. } = memory;
            Buffer::new(Operand::BiasIndex.argument(), index.into(), elements, element_size)
        });
        let index = index.transpose()?.map(|index| index.read());
        (lengths(problem, given)?, index)
    };
    problem.check_index(index)?;
    lengths.check(problem)?;
    Ok(lengths)
}

/// Returns the lengths in the buffers of `key_lengths`, `cu_seqlens_q` and `cu_seqlens_k`.
///
/// # Safety
/// For `'a`, the memory of the buffers in `lists` is readable and nothing writes to it.
pub(crate) unsafe fn lengths_of<'a>(lists: &[Buffer; 3]) -> Lengths<'a> {
    // SAFETY: the lists are readable by the clause of this function, and `lists` has made them lists of i64.
    let [keys, cu_seqlens_q, cu_seqlens_k] =
        lists.each_ref().map(|list| list.map(|list| unsafe { list.read() }));
    Lengths { keys, cu_seqlens_q, cu_seqlens_k, chunk: None }
}

/// Checks every property of the tensors that needs no access to them: addresses, sizes, overlap.
fn check(problem: &Problem, inputs: &elsa_inputs, outputs: &elsa_outputs) -> Result<Tensors, Fault> {
    let states = problem.memory(Operand::StateWeighted);
    if states.is_some_and(|states| states.elements.checked_mul(states.element_size).is_none()) {
        let rows = problem.rows();
        return Err(Fault::argument(format_args!(
            "state_w: {rows} rows; allowed: sizes that can be counted"
        )));
    }
    let fields = fields(inputs, outputs);
    let states = fields.iter().filter(|(operand, given)| operand.is_state() && given.any());
    if !matches!(states.count(), 0 | 3) {
        return Err(Fault::argument(format_args!(
            "state_m, state_s, state_w: some are null; allowed: all or none"
        )));
    }
    // Every problem has these operands, but a call may omit them.
    let optional =
        |operand: Operand| matches!(operand, Operand::Output | Operand::LogSumExp) || operand.is_state();
    let within = |operand| match operand {
        Operand::PastKey if problem.spec().append => Some((Operand::PresentKey, outputs.present_k.data)),
        Operand::PastValue if problem.spec().append => Some((Operand::PresentValue, outputs.present_v.data)),
        _ => None,
    };
    let memory = |operand| (problem.memory(operand), optional(operand));
    let operands = buffers(&fields, Operand::Output, memory, within)?;
    let lists = lists(problem, [inputs.key_lengths, inputs.cu_seqlens_q, inputs.cu_seqlens_k])?;
    apart(in_order(&fields, &operands).chain(lists.map(|list| (false, list))))?;
    Ok(Tensors { operands, lists })
}

/// Returns the elements of a mask.
///
/// # Safety
/// The buffer was made for elements of `kind`. For `'a`, its memory is readable and nothing writes to it.
pub(crate) unsafe fn mask_elements<'a>(buffer: &Buffer, kind: MaskKind) -> MaskElements<'a> {
    // SAFETY: the caller keeps the clause of this function.
    unsafe {
        match kind {
            MaskKind::Bool => MaskElements::Bool(buffer.read()),
            MaskKind::Additive(dtype) => MaskElements::Additive(buffer.elements(dtype)),
        }
    }
}

/// Returns the tensors of a call in host memory.
///
/// # Safety
/// For `'a`, all bytes of every input are readable and nothing writes to them; all bytes of every output are writable and
/// nothing else uses them.
#[inline(never)]
unsafe fn host<'a>(
    problem: &Problem,
    inputs: &elsa_inputs,
    outputs: &elsa_outputs,
    chunk: Option<Chunk>,
) -> Result<(Inputs<'a>, Outputs<'a>), Fault> {
    without_event("ready_event", inputs.ready_event)?;
    without_event("done_event", outputs.done_event)?;
    let tensors = check(problem, inputs, outputs)?;
    let dtype = problem.spec().dtype;
    let at = |operand| &tensors.operands[operand];
    // SAFETY: the memory is valid by the clause of this function. `check` has sized each buffer for its element type:
    // `dtype` or f32. It has found no output that overlaps other memory.
    unsafe {
        let written = Outputs {
            output: at(Operand::Output).map(|out| out.elements_mut(dtype)),
            lse: at(Operand::LogSumExp).map(|lse| lse.write()),
            state: tensors.states().map(|[m, s, w]| StateOut { m: m.write(), s: s.write(), w: w.write() }),
            present_key: at(Operand::PresentKey).map(|present| present.elements_mut(dtype)),
            present_value: at(Operand::PresentValue).map(|present| present.elements_mut(dtype)),
        };
        Ok((tensors.inputs(problem, chunk), written))
    }
}

/// Returns the inputs of a call in host memory that writes only states of `rows` rows with values of size `dim`.
///
/// # Safety
/// For `'a`, all bytes of every input are readable and nothing writes to them. The arrays of `states` are writable for
/// these rows, and nothing else uses them.
#[cfg(feature = "task")]
pub(crate) unsafe fn with_states<'a>(
    problem: &Problem,
    inputs: &elsa_inputs,
    states: &elsa_states_out,
    [rows, dim]: [usize; 2],
) -> Result<(Inputs<'a>, StateOut<'a>), Fault> {
    without_event("ready_event", inputs.ready_event)?;
    let none = elsa_outputs::default();
    let tensors = check(problem, inputs, &none)?;
    let arrays = state_buffers(["state_m", "state_s", "state_w"], [states.m, states.s, states.w], rows, dim)?;
    let fields = fields(inputs, &none);
    let read = in_order(&fields, &tensors.operands).chain(tensors.lists.map(|list| (false, list)));
    apart(arrays.map(|array| (true, array)).into_iter().chain(read))?;
    let [m, s, w] = arrays;
    // SAFETY: the memory is valid by the clause of this function, and no array overlaps other memory.
    unsafe {
        let states = StateOut { m: m.write(), s: s.write(), w: w.write() };
        Ok((tensors.inputs(problem, None), states))
    }
}

/// Checks the addresses of the arrays `m`, `s` and `w` of states of `rows` rows with values of size `dim`.
#[cfg(feature = "task")]
pub(crate) fn state_buffers(
    names: [&'static str; 3],
    [m, s, w]: [*mut f32; 3],
    rows: usize,
    dim: usize,
) -> Result<[Buffer; 3], Fault> {
    let array = |name, data: *mut f32, elements: usize| {
        let given = Unchecked { data: data.cast(), bytes: elements.saturating_mul(size_of::<f32>()) };
        Buffer::new(name, given, elements, size_of::<f32>())
    };
    let [of_m, of_s, of_w] = names;
    Ok([array(of_m, m, rows)?, array(of_s, s, rows)?, array(of_w, w, rows.saturating_mul(dim))?])
}

/// Returns an error if a call on host tensors has a CUDA event.
fn without_event(name: &str, event: *mut c_void) -> Result<(), Fault> {
    match event.is_null() {
        true => Ok(()),
        false => {
            Err(Fault::argument(format_args!("{name}: given; allowed: null, except in elsa_run_device")))
        }
    }
}

impl Called for Attention {
    const NAME: &'static str = "attention";
    const CREATE: &'static str = "elsa_plan_create";
    type Described = elsa_problem;
    type Options = elsa_plan_options;
    type Read = elsa_inputs;
    type Written = elsa_outputs;
    type Part = Option<Chunk>;
    type Types = ();

    fn create(
        engine: &Engine,
        problem: &elsa_problem,
        options: &elsa_plan_options,
    ) -> Result<PlanOf<Attention>, Fault> {
        let plan = engine.plan(&convert::problem(problem)?, &convert::plan_options(options)?)?;
        Ok(Typed { plan, types: () })
    }

    fn state_workspace_bytes(plan: &Plan) -> usize {
        plan.state_workspace_bytes()
    }

    fn tensor_cores(plan: &Plan) -> elsa_tensor_cores {
        let backend = plan.backend();
        match (plan.on_tensor_cores(backend), plan.certificate_of(backend).executed.one_product) {
            (false, _) => ELSA_TENSOR_CORES_OFF,
            (true, false) => ELSA_TENSOR_CORES_ALWAYS,
            (true, true) => ELSA_TENSOR_CORES_F16,
        }
    }

    fn warm(plan: &Plan, workspace: &mut Workspace) -> Result<Report, RunError> {
        plan.warm(workspace)
    }

    fn addresses(i: &elsa_inputs, o: &elsa_outputs) -> impl Iterator<Item = usize> {
        let tensors = fields(i, o).map(|(_, given)| given.data.addr());
        let lists = [i.key_lengths, i.cu_seqlens_q, i.cu_seqlens_k].map(|list| list.data.addr());
        tensors.into_iter().chain(lists)
    }

    fn has_lists(i: &elsa_inputs) -> bool {
        [i.key_lengths, i.cu_seqlens_q, i.cu_seqlens_k].iter().any(|list| !list.data.is_null())
    }

    fn events(i: &elsa_inputs, o: &elsa_outputs) -> [*mut c_void; 2] {
        [i.ready_event, o.done_event]
    }

    unsafe fn host<'a>(
        of: &PlanOf<Attention>,
        inputs: &elsa_inputs,
        outputs: &elsa_outputs,
        chunk: Option<Chunk>,
    ) -> Result<(Inputs<'a>, Outputs<'a>), Fault> {
        // SAFETY: the caller keeps the clause *tensors*.
        unsafe { host(of.plan.problem(), inputs, outputs, chunk) }
    }

    unsafe fn lists<'a>(of: &PlanOf<Attention>, i: &elsa_inputs) -> Result<Lengths<'a>, Fault> {
        let lists = [i.key_lengths, i.cu_seqlens_q, i.cu_seqlens_k];
        // SAFETY: the caller keeps the clause *tensors*.
        unsafe { checked_lengths(of.plan.problem(), i.bias_index, lists) }
    }

    // The lists of lengths are in host memory, unlike the tensors.
    unsafe fn device<'a>(
        of: &PlanOf<Attention>,
        inputs: &elsa_inputs,
        outputs: &elsa_outputs,
    ) -> Result<(DeviceInputs<'a>, DeviceOutputs), Fault> {
        let tensors = check(of.plan.problem(), inputs, outputs)?;
        let optional = |operand| tensors.operands[operand].map(|buffer| buffer.data as u64);
        let read = DeviceInputs {
            mask: optional(Operand::Mask),
            bias_index: optional(Operand::BiasIndex),
            // SAFETY: the caller keeps the clause of this function.
            lengths: unsafe { tensors.lengths() },
            ..DeviceInputs::of(optional)
        };
        let written = DeviceOutputs {
            output: optional(Operand::Output),
            lse: optional(Operand::LogSumExp),
            state: tensors.states().map(|states| {
                let [m, s, w] = states.map(|array| array.data as u64);
                StateTensors { m, s, w }
            }),
            present_key: optional(Operand::PresentKey),
            present_value: optional(Operand::PresentValue),
        };
        Ok((read, written))
    }
}

#[cfg(test)]
mod tests {
    use elsa_core::operands::Operand;
    use elsa_core::series::{convolution, recurrence, selective};
    use elsa_core::{attention, linear};

    /// Checks that the input and output structs have exactly the fields for the operands, the lists of lengths and the
    /// events.
    #[test]
    fn structs_have_the_operands_of_the_operators() {
        let abi: &'static str = include_str!("../../abi.txt");
        let fields = |of: &str| {
            let lines = abi.lines().filter_map(|line| line.strip_prefix("field ")?.strip_prefix(of));
            let names = lines.filter_map(|line| line.strip_prefix(' ')?.split(' ').next_back());
            let lengths = ["size", "key_lengths", "cu_seqlens", "cu_seqlens_q", "cu_seqlens_k"];
            let events = ["*ready_event", "*done_event"];
            let mut names: Vec<_> =
                names.filter(|name| !lengths.contains(name) && !events.contains(name)).collect();
            names.sort_unstable();
            names
        };
        fn compare<O: Operand>(fields: impl Fn(&str) -> Vec<&'static str>, structs: [&str; 2]) {
            for (of, is_written) in structs.into_iter().zip([false, true]) {
                let operands = O::LIST.iter().filter(|operand| operand.is_written() == is_written);
                let mut names: Vec<_> = operands.map(|operand| operand.argument()).collect();
                names.sort_unstable();
                assert_eq!(fields(of), names, "{of}");
            }
        }
        compare::<attention::Operand>(fields, ["elsa_inputs", "elsa_outputs"]);
        let gradients = ["elsa_gradients_inputs", "elsa_gradients_outputs"];
        compare::<attention::backward::Operand>(fields, gradients);
        compare::<linear::Operand>(fields, ["elsa_linear_inputs", "elsa_linear_outputs"]);
        compare::<recurrence::Operand>(fields, ["elsa_recurrence_inputs", "elsa_series_outputs"]);
        compare::<selective::Operand>(fields, ["elsa_selective_inputs", "elsa_series_outputs"]);
        compare::<convolution::Operand>(fields, ["elsa_convolution_inputs", "elsa_series_outputs"]);
    }
}
