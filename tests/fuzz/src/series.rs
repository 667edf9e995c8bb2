//! Recurrences, selective scans and convolutions in the C interface: problems, mostly valid, occasionally wrong in one
//! place, and sequences of calls.

use crate::arena::{dense, input, output, pick};
use crate::structs::{accepted, read, write};
use elsa::*;
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use std::ptr::{null, null_mut};

/// A problem of one of the operators.
#[derive(Clone, Copy)]
#[expect(clippy::large_enum_variant, reason = "handles with their problems are few")]
pub enum Problem {
    /// A recurrence.
    Recurrence(elsa_recurrence_problem),
    /// A selective scan.
    Selective(elsa_selective_problem),
    /// A convolution.
    Convolution(elsa_convolution_problem),
}

/// Picks a value of an enumeration whose last value is `last`, or occasionally any number.
fn one_of(u: &mut Unstructured<'_>, last: u32) -> Result<u32> {
    if u.ratio(1, 32)? { u.arbitrary() } else { u.int_in_range(0..=last) }
}

/// Picks a size that no list has: a small number, or one that no memory can hold. A number between the two would have
/// the library allocate gigabytes, as it should.
fn unrelated(u: &mut Unstructured<'_>) -> Result<usize> {
    if u.arbitrary()? { u.int_in_range(0..=1 << 16) } else { u.int_in_range(1 << 50..=usize::MAX) }
}

/// Picks a view of a series whose first axis is tokens or channels. Some views have arbitrary strides or sizes.
fn view(u: &mut Unstructured<'_>, [batch, tokens, channels]: [usize; 3]) -> Result<elsa_view> {
    let mut view = if u.arbitrary()? {
        dense([batch, 1, tokens, channels])
    } else {
        dense([batch, channels, tokens, 1])
    };
    match u.int_in_range(0..=31)? {
        0 => view.strides[u.choose_index(4)?] = u.int_in_range(0..=99)?,
        1 => view.shape[u.choose_index(4)?] = u.int_in_range(0..=9)?,
        2 => view.strides[u.choose_index(3)?] = u.arbitrary()?,
        3 => view.shape[u.choose_index(4)?] = u.arbitrary()?,
        _ => {}
    }
    Ok(view)
}

fn problem(u: &mut Unstructured<'_>) -> Result<Problem> {
    let (batch, tokens, channels) = (u.int_in_range(1..=2)?, u.int_in_range(0..=70)?, u.int_in_range(1..=9)?);
    let shape = [batch, tokens, channels];
    let dtype = one_of(u, 2)?;
    let gate_dtype = if u.ratio(1, 4)? { dtype } else { ELSA_DTYPE_F32 };
    let (reverse, in_place) = (u.int_in_range(0..=1)?, u32::from(u.ratio(1, 4)?));
    Ok(match u.int_in_range(0..=2u8)? {
        0 => Problem::Recurrence(elsa_recurrence_problem {
            dtype,
            gate_dtype,
            gate: one_of(u, 1)?,
            reverse,
            in_place,
            reserved: u32::from(u.ratio(1, 64)?),
            a: view(u, shape)?,
            b: view(u, shape)?,
            out: view(u, shape)?,
            ..elsa_recurrence_problem::default()
        }),
        1 => {
            let states = u.int_in_range(1..=5)?;
            let groups = if channels.is_multiple_of(2) && u.arbitrary()? { 2 } else { 1 };
            let of = [batch, tokens, groups * states];
            Problem::Selective(elsa_selective_problem {
                dtype,
                gate_dtype,
                softplus: u.int_in_range(0..=1)?,
                reverse,
                in_place,
                fixed_b: u32::from(u.ratio(1, 4)?),
                fixed_c: u32::from(u.ratio(1, 4)?),
                has_z: u.int_in_range(0..=1)?,
                states: if u.ratio(1, 32)? { unrelated(u)? } else { states },
                u: view(u, shape)?,
                delta: view(u, shape)?,
                b: view(u, of)?,
                c: view(u, of)?,
                z: view(u, shape)?,
                out: view(u, shape)?,
                ..elsa_selective_problem::default()
            })
        }
        _ => Problem::Convolution(elsa_convolution_problem {
            dtype,
            order: one_of(u, 1)?,
            shared: u.int_in_range(0..=1)?,
            silu: u.int_in_range(0..=1)?,
            reverse,
            in_place,
            taps: if u.ratio(1, 32)? { unrelated(u)? } else { u.int_in_range(1..=80)? },
            u: view(u, shape)?,
            out: view(u, shape)?,
            ..elsa_convolution_problem::default()
        }),
    })
}

fn options(u: &mut Unstructured<'_>, of: &Problem) -> Result<elsa_series_options> {
    let wrong = u.ratio(1, 16)?;
    Ok(elsa_series_options {
        parts: match of {
            Problem::Recurrence(_) => *u.choose(&[0, 0, 1, 3, 2000])?,
            _ => usize::from(wrong),
        },
        method: match of {
            Problem::Convolution(_) => one_of(u, 2)?,
            _ => u32::from(wrong),
        },
        budget: if u.ratio(1, 8)? { u.int_in_range(0..=1 << 20)? } else { 0 },
        reserved: u32::from(u.ratio(1, 64)?),
        ..elsa_series_options::default()
    })
}

/// Calls the function that creates a plan for the problem's operator. The structs that it passes have the sizes of any
/// version.
fn create(u: &mut Unstructured<'_>, engine: elsa_engine, of: &Problem, plan: &mut elsa_plan) -> Result<bool> {
    let options = options(u, of)?;
    let options = read(u, &options)?;
    let options = if u.ratio(3, 4)? { options.get() } else { null_mut() };
    Ok(match of {
        Problem::Recurrence(p) => {
            let p = read(u, p)?;
            // SAFETY: structs have as many bytes as their sizes state.
            accepted(unsafe { elsa_recurrence_plan_create(engine, p.get(), options, plan) })
        }
        Problem::Selective(p) => {
            let p = read(u, p)?;
            // SAFETY: as above.
            accepted(unsafe { elsa_selective_plan_create(engine, p.get(), options, plan) })
        }
        Problem::Convolution(p) => {
            let p = read(u, p)?;
            // SAFETY: as above.
            accepted(unsafe { elsa_convolution_plan_create(engine, p.get(), options, plan) })
        }
    })
}

/// Runs a call directly with `run`, and occasionally also binds it with `bind` and runs the bound call.
fn run<T: Copy>(
    u: &mut Unstructured<'_>,
    inputs: &T,
    outputs: &elsa_series_outputs,
    run: impl FnOnce(*const T, *const elsa_series_outputs, *mut elsa_report) -> elsa_status,
    bind: impl FnOnce(*const T, *const elsa_series_outputs, *mut elsa_bound) -> elsa_status,
) -> Result<()> {
    let (reads, writes) = (read(u, inputs)?, read(u, outputs)?);
    write(u, &elsa_report::default(), |report| run(reads.get(), writes.get(), report))?;
    let mut bound = elsa_bound::default();
    if u.ratio(1, 4)? && accepted(bind(inputs, outputs, &mut bound)) {
        // SAFETY: bound calls run before their tensors change.
        accepted(unsafe { elsa_bound_run(bound, null_mut()) });
        accepted(elsa_bound_destroy(bound));
    }
    Ok(())
}

/// Creates a plan, describes it, and runs or binds it. `plans` and `workspaces` come from earlier calls.
///
/// # Errors
/// Returns an error if the input has ended.
pub fn calls(
    u: &mut Unstructured<'_>,
    engine: elsa_engine,
    plans: &mut Vec<(elsa_plan, Problem)>,
    workspaces: &mut Vec<elsa_workspace>,
    [from, written]: [*mut u8; 2],
) -> Result<()> {
    let made = problem(u)?;
    let mut plan = elsa_plan::default();
    if create(u, engine, &made, &mut plan)? {
        plans.push((plan, made));
    }
    let (plan, of) = pick(u, plans, (elsa_plan::default(), made))?;
    // SAFETY (all calls below): structs have as many bytes as their sizes state; tensors are in the arenas, which
    // nothing else uses during a call.
    write(u, &elsa_series_info::default(), |info| unsafe { elsa_series_plan_describe(plan, info) })?;
    let mut workspace = pick(u, workspaces, elsa_workspace::default())?;
    // SAFETY: as for all calls of this function (above).
    if u.ratio(3, 4)? && accepted(unsafe { elsa_workspace_create(plan, &mut workspace) }) {
        workspaces.push(workspace);
    }
    if u.ratio(1, 8)? {
        accepted(elsa_plan_warm(plan, workspace));
    }
    let to = if u.ratio(1, 16)? { from } else { written };
    let line = |n: usize| dense([1, 1, 1, n]);
    let count = |view: &elsa_view| view.shape[1].wrapping_mul(view.shape[3]);
    let f32s = ELSA_DTYPE_F32;
    let (out, dtype, state, in_place) = match &of {
        Problem::Recurrence(p) => (p.out, p.dtype, p.b.shape[0].wrapping_mul(count(&p.b)), p.in_place),
        Problem::Selective(p) => {
            (p.out, p.dtype, p.u.shape[0].wrapping_mul(count(&p.u)).wrapping_mul(p.states), p.in_place)
        }
        Problem::Convolution(p) => {
            (p.out, p.dtype, p.u.shape[0].wrapping_mul(count(&p.u)).wrapping_mul(p.taps), p.in_place)
        }
    };
    let outputs = elsa_series_outputs {
        out: output(u, to, &out, dtype)?,
        present_state: output(u, to, &line(state), f32s)?,
        ..elsa_series_outputs::default()
    };
    let past_state = match in_place {
        0 => input(u, from, &line(state), f32s)?,
        _ => {
            let absent = elsa_input { data: null(), bytes: 0 };
            let same = elsa_input { data: outputs.present_state.data, bytes: outputs.present_state.bytes };
            *u.choose(&[absent, same])?
        }
    };
    match &of {
        Problem::Recurrence(p) => {
            let inputs = elsa_recurrence_inputs {
                a: input(u, from, &p.a, p.gate_dtype)?,
                b: input(u, from, &p.b, dtype)?,
                past_state,
                ..elsa_recurrence_inputs::default()
            };
            // SAFETY: as for all calls of this function (above).
            run(
                u,
                &inputs,
                &outputs,
                |i, o, report| unsafe { elsa_recurrence_run(plan, workspace, i, o, report) },
                // SAFETY: as for all calls of this function (above).
                |i, o, bound| unsafe { elsa_recurrence_bind(plan, workspace, i, o, bound) },
            )
        }
        Problem::Selective(p) => {
            let parameters = line(count(&p.u).wrapping_mul(p.states));
            let fixed = |fixed: u32, view: elsa_view| match fixed {
                0 => (view, dtype),
                _ => (parameters, f32s),
            };
            let ((b, type_b), (c, type_c)) = (fixed(p.fixed_b, p.b), fixed(p.fixed_c, p.c));
            let absent = elsa_view::default();
            let inputs = elsa_selective_inputs {
                u: input(u, from, &p.u, dtype)?,
                delta: input(u, from, &p.delta, p.gate_dtype)?,
                a: input(u, from, &parameters, f32s)?,
                b: input(u, from, &b, type_b)?,
                c: input(u, from, &c, type_c)?,
                d: input(u, from, &line(count(&p.u)), f32s)?,
                z: input(u, from, if p.has_z == 0 { &absent } else { &p.z }, dtype)?,
                delta_bias: input(u, from, &line(count(&p.u)), f32s)?,
                past_state,
                ..elsa_selective_inputs::default()
            };
            // SAFETY: as for all calls of this function (above).
            run(
                u,
                &inputs,
                &outputs,
                |i, o, report| unsafe { elsa_selective_run(plan, workspace, i, o, report) },
                // SAFETY: as for all calls of this function (above).
                |i, o, bound| unsafe { elsa_selective_bind(plan, workspace, i, o, bound) },
            )
        }
        Problem::Convolution(p) => {
            let filters = if p.shared == 0 { count(&p.u) } else { 1 };
            let inputs = elsa_convolution_inputs {
                u: input(u, from, &p.u, dtype)?,
                filter: input(u, from, &line(filters.wrapping_mul(p.taps)), f32s)?,
                bias: input(u, from, &line(count(&p.u)), f32s)?,
                past_state,
                ..elsa_convolution_inputs::default()
            };
            // SAFETY: as for all calls of this function (above).
            run(
                u,
                &inputs,
                &outputs,
                |i, o, report| unsafe { elsa_convolution_run(plan, workspace, i, o, report) },
                // SAFETY: as for all calls of this function (above).
                |i, o, bound| unsafe { elsa_convolution_bind(plan, workspace, i, o, bound) },
            )
        }
    }
}
