//! The tensors of a frame: from pointers to checked slices, or to addresses of a GPU.
//!
//! [`fields`] is the one table that pairs each [`Operand`] with its field of the ABI. [`check`] goes through it and
//! makes [`Tensors`], from which [`host`] and [`device`] take operands by name.

use crate::fault::Fault;
use crate::memory::{Buffer, Given};
use crate::types::*;
use elsa_core::attention::{Chunk, Inputs, Lengths, Operand, Operands, Outputs, Problem, StateOut};
use elsa_core::attention::{MaskElements, MaskKind};
use elsa_runtime::{DeviceInputs, DeviceOutputs};

/// Each operand with the name of its field and the memory that it names. Operands are checked in this order, those
/// that are written first.
fn fields(i: &elsa_inputs, o: &elsa_outputs) -> [(Operand, &'static str, Given); Operand::ALL.len()] {
    [
        (Operand::Output, "out", o.out.into()),
        (Operand::LogSumExp, "lse", o.lse.into()),
        (Operand::StateReference, "state_m", o.state_m.into()),
        (Operand::StateSum, "state_s", o.state_s.into()),
        (Operand::StateWeighted, "state_w", o.state_w.into()),
        (Operand::PresentKey, "present_k", o.present_k.into()),
        (Operand::PresentValue, "present_v", o.present_v.into()),
        (Operand::Query, "q", i.q.into()),
        (Operand::Key, "k", i.k.into()),
        (Operand::Value, "v", i.v.into()),
        (Operand::PastKey, "past_k", i.past_k.into()),
        (Operand::PastValue, "past_v", i.past_v.into()),
        (Operand::Mask, "mask", i.mask.into()),
        (Operand::Bias, "bias", i.bias.into()),
        (Operand::BiasIndex, "bias_index", i.bias_index.into()),
    ]
}

/// The checked memory of a frame.
struct Tensors {
    operands: Operands<Buffer>,
    /// `key_lengths`, `cu_seqlens_q`, `cu_seqlens_k`.
    lists: [Buffer; 3],
}

impl Tensors {
    /// The three arrays of states, which a frame has together or not at all.
    fn states(&self) -> Option<[Buffer; 3]> {
        let states = [Operand::StateReference, Operand::StateSum, Operand::StateWeighted];
        let states = states.map(|operand| self.operands[operand]);
        states.iter().all(|array| array.present).then_some(states)
    }

    /// # Safety
    /// The lists are readable as long as `'a`, and nobody writes there.
    unsafe fn lengths<'a>(&self) -> Lengths<'a> {
        // SAFETY: the clause of this function.
        unsafe { lengths_of(&self.lists) }
    }
}

fn is_past(operand: Operand) -> bool {
    matches!(operand, Operand::PastKey | Operand::PastValue)
}

/// Whether a past is named by the address of the present to which the problem appends.
fn in_place(operand: Operand, given: Given, outputs: &elsa_outputs) -> bool {
    let present = match operand {
        Operand::PastKey => outputs.present_k,
        Operand::PastValue => outputs.present_v,
        _ => return false,
    };
    !given.data.is_null() && given.data == present.data
}

/// Checks the addresses of `key_lengths`, `cu_seqlens_q`, `cu_seqlens_k`.
fn lists(problem: &Problem, given: [elsa_integers; 3]) -> Result<[Buffer; 3], Fault> {
    let packed = problem.spec().packed.is_some();
    let list = |name, list: elsa_integers, has: bool| {
        let given = Given::from(list);
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

/// The lengths that `key_lengths`, `cu_seqlens_q` and `cu_seqlens_k` name. They are yet to be checked.
///
/// # Safety
/// As long as `'a`, the lists are readable for their entries and nobody writes there.
pub(crate) unsafe fn lengths<'a>(problem: &Problem, given: [elsa_integers; 3]) -> Result<Lengths<'a>, Fault> {
    let lists = lists(problem, given)?;
    // SAFETY: the clause of this function.
    Ok(unsafe { lengths_of(&lists) })
}

/// # Safety
/// The lists are readable as long as `'a`, and nobody writes there.
unsafe fn lengths_of<'a>(lists: &[Buffer; 3]) -> Lengths<'a> {
    // SAFETY: the clause of this function; `lists` makes lists of i64.
    let [keys, cu_seqlens_q, cu_seqlens_k] =
        lists.each_ref().map(|list| list.map(|list| unsafe { list.read() }));
    Lengths { keys, cu_seqlens_q, cu_seqlens_k, chunk: None }
}

/// Checks everything about the tensors that needs no access to them: addresses, sizes, overlap.
fn check(problem: &Problem, inputs: &elsa_inputs, outputs: &elsa_outputs) -> Result<Tensors, Fault> {
    let states = problem.memory(Operand::StateWeighted);
    if states.is_some_and(|states| states.elements.checked_mul(states.element_size).is_none()) {
        let rows = problem.rows();
        return Err(Fault::argument(format_args!(
            "state_w: {rows} rows; allowed: sizes that can be counted"
        )));
    }
    let fields = fields(inputs, outputs);
    let states = fields.iter().filter(|(operand, _, given)| operand.is_state() && given.any());
    if !matches!(states.count(), 0 | 3) {
        return Err(Fault::argument(format_args!(
            "state_m, state_s, state_w: some are null; allowed: all or none"
        )));
    }
    let mut operands = Operands::from_fn(|_| Buffer::ABSENT);
    for (operand, name, given) in fields {
        // Every problem has these; a frame may leave some of them out.
        let may_be_none = matches!(operand, Operand::Output | Operand::LogSumExp) || operand.is_state();
        operands[operand] = match problem.memory(operand) {
            Some(_) if may_be_none && !given.any() => Buffer::ABSENT,
            Some(memory) => Buffer::new(name, given, memory.elements, memory.element_size)?,
            // The past lies in the present, and may be named there.
            None if problem.spec().append && in_place(operand, given, outputs) => Buffer::ABSENT,
            None if problem.spec().append && given.any() && is_past(operand) => {
                return Err(Fault::argument(format_args!(
                    "{name}: address {:#x}; allowed: null with 0 bytes, or the address of {}, to which the problem appends",
                    given.data as usize,
                    name.replace("past", "present")
                )));
            }
            None if given.any() => {
                return Err(Fault::argument(format_args!(
                    "{name}: given, and the problem does not have it; allowed: null with 0 bytes"
                )));
            }
            None => Buffer::ABSENT,
        };
    }
    let lists = lists(problem, [inputs.key_lengths, inputs.cu_seqlens_q, inputs.cu_seqlens_k])?;
    let order = fields.iter().map(|(operand, ..)| *operand);
    for (n, operand) in order.clone().enumerate() {
        if operand.is_written() {
            let later = order.clone().skip(n + 1).map(|operand| operands[operand]);
            later.chain(lists).try_for_each(|other| operands[operand].apart_from(&other))?;
        }
    }
    Ok(Tensors { operands, lists })
}

/// The tensors of a frame in memory of the host.
///
/// # Safety
/// As long as `'a`, every input is readable for its bytes and nobody writes there, and every output is writable and
/// nobody else uses it.
pub(crate) unsafe fn host<'a>(
    problem: &Problem,
    inputs: &elsa_inputs,
    outputs: &elsa_outputs,
    chunk: Option<Chunk>,
) -> Result<(Inputs<'a>, Outputs<'a>), Fault> {
    let tensors = check(problem, inputs, outputs)?;
    let dtype = problem.spec().dtype;
    let at = |operand| &tensors.operands[operand];
    // SAFETY: the clause of this function. `check` has made the buffers for elements of the size of `dtype`, of the
    // kinds of mask and bias, of f32 and of i64, and has found no output that overlaps anything.
    let (read, written) = unsafe {
        let mask = |buffer: &Buffer, kind| match kind {
            MaskKind::Bool => MaskElements::Bool(buffer.read()),
            MaskKind::Additive(dtype) => MaskElements::Additive(buffer.elements(dtype)),
        };
        let read = Inputs {
            query: at(Operand::Query).elements(dtype),
            key: at(Operand::Key).elements(dtype),
            value: at(Operand::Value).elements(dtype),
            past_key: at(Operand::PastKey).map(|past| past.elements(dtype)),
            past_value: at(Operand::PastValue).map(|past| past.elements(dtype)),
            mask: problem
                .spec()
                .mask
                .and_then(|view| at(Operand::Mask).map(|buffer| mask(buffer, view.kind()))),
            bias: problem
                .spec()
                .bias
                .and_then(|view| at(Operand::Bias).map(|bias| bias.elements(view.dtype()))),
            bias_index: at(Operand::BiasIndex).map(|index| index.read()),
            lengths: Lengths { chunk, ..tensors.lengths() },
        };
        let written = Outputs {
            output: at(Operand::Output).map(|out| out.elements_mut(dtype)),
            lse: at(Operand::LogSumExp).map(|lse| lse.write()),
            state: tensors.states().map(|[m, s, w]| StateOut { m: m.write(), s: s.write(), w: w.write() }),
            present_key: at(Operand::PresentKey).map(|present| present.elements_mut(dtype)),
            present_value: at(Operand::PresentValue).map(|present| present.elements_mut(dtype)),
        };
        (read, written)
    };
    read.check(problem)?;
    written.check(problem)?;
    Ok((read, written))
}

/// The tensors of a frame in memory of a GPU; the lists lie in memory of the host.
///
/// # Safety
/// As long as `'a`, the lists are readable for their entries and nobody writes there.
pub(crate) unsafe fn device<'a>(
    problem: &Problem,
    inputs: &elsa_inputs,
    outputs: &elsa_outputs,
) -> Result<(DeviceInputs<'a>, DeviceOutputs), Fault> {
    let tensors = check(problem, inputs, outputs)?;
    let required = |operand| tensors.operands[operand].data as u64;
    let optional = |operand| tensors.operands[operand].map(|buffer| buffer.data as u64);
    let read = DeviceInputs {
        query: required(Operand::Query),
        key: required(Operand::Key),
        value: required(Operand::Value),
        past_key: optional(Operand::PastKey),
        past_value: optional(Operand::PastValue),
        mask: optional(Operand::Mask),
        bias: optional(Operand::Bias),
        bias_index: optional(Operand::BiasIndex),
        // SAFETY: the clause of this function.
        lengths: unsafe { tensors.lengths() },
    };
    let written = DeviceOutputs {
        output: optional(Operand::Output),
        lse: optional(Operand::LogSumExp),
        state: tensors.states().map(|states| states.map(|array| array.data as u64)),
        present_key: optional(Operand::PresentKey),
        present_value: optional(Operand::PresentValue),
    };
    Ok((read, written))
}
