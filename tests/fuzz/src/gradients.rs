//! Calls of gradients in the C interface, over the inputs of a forward pass.

use crate::arena::{dense, input, output};
use crate::structs::{accepted, read, write};
use elsa::*;
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use std::ptr::null_mut;

/// Returns options of gradients.
///
/// # Errors
/// Returns an error if the input has ended.
pub fn options(u: &mut Unstructured<'_>) -> Result<elsa_gradients_options> {
    Ok(elsa_gradients_options {
        budget: if u.ratio(1, 8)? { u.int_in_range(0..=1 << 20)? } else { 0 },
        out_is_f32: u.int_in_range(0..=1)?,
        d_out_is_f32: u.int_in_range(0..=1)?,
        ..elsa_gradients_options::default()
    })
}

/// Returns the inputs of gradients of `p`: those of the forward pass in `forward`, and its results in `from`.
///
/// # Errors
/// Returns an error if the input has ended.
pub fn inputs(
    u: &mut Unstructured<'_>,
    options: &elsa_gradients_options,
    p: &elsa_problem,
    forward: &elsa_inputs,
    from: *mut u8,
) -> Result<elsa_gradients_inputs> {
    let rows = dense([p.q.shape[0], p.q.shape[1], p.q.shape[2], 1]);
    let states = u.arbitrary::<bool>()? != u.ratio(1, 16)?;
    let only = |has: bool| if has { rows } else { elsa_view::default() };
    let of = |is_f32: u32| if is_f32 == 0 { p.dtype } else { ELSA_DTYPE_F32 };
    let (f32s, sum) = (ELSA_DTYPE_F32, states != u.ratio(1, 32)?);
    Ok(elsa_gradients_inputs {
        q: forward.q,
        k: forward.k,
        v: forward.v,
        mask: forward.mask,
        key_lengths: forward.key_lengths,
        cu_seqlens_q: forward.cu_seqlens_q,
        cu_seqlens_k: forward.cu_seqlens_k,
        bias: forward.bias,
        bias_index: forward.bias_index,
        out: input(u, from, &p.out, of(options.out_is_f32))?,
        d_out: input(u, from, &p.out, of(options.d_out_is_f32))?,
        lse: input(u, from, &only(!states), f32s)?,
        state_m: input(u, from, &only(states), f32s)?,
        state_s: input(u, from, &only(sum), f32s)?,
        ..elsa_gradients_inputs::default()
    })
}

/// Creates a plan of the gradients of `p`, and runs or binds it over `forward`, the inputs of a forward pass. Returns the
/// plan, unless it was refused.
///
/// # Errors
/// Returns an error if the input has ended.
pub fn calls(
    u: &mut Unstructured<'_>,
    engine: elsa_engine,
    p: &elsa_problem,
    forward: &elsa_inputs,
    workspaces: &mut Vec<elsa_workspace>,
    [from, written]: [*mut u8; 2],
) -> Result<Option<elsa_plan>> {
    let options = options(u)?;
    let (given, how) = (read(u, p)?, read(u, &options)?);
    let mut plan = elsa_plan::default();
    // SAFETY (all calls below): structs have as many bytes as their sizes state; tensors are in the arenas, which
    // nothing else uses during a call.
    if !accepted(unsafe { elsa_gradients_plan_create(engine, given.get(), how.get(), &mut plan) }) {
        return Ok(None);
    }
    let mut workspace = elsa_workspace::default();
    // SAFETY: as for all calls of this function (above).
    if accepted(unsafe { elsa_workspace_create(plan, &mut workspace) }) {
        workspaces.push(workspace);
    }
    if u.ratio(1, 8)? {
        accepted(elsa_plan_warm(plan, workspace));
    }
    let (to, f32s) = (if u.ratio(1, 16)? { from } else { written }, ELSA_DTYPE_F32);
    let inputs = inputs(u, &options, p, forward, from)?;
    let outputs = elsa_gradients_outputs {
        d_q: output(u, to, &p.q, f32s)?,
        d_k: output(u, to, &p.k, f32s)?,
        d_v: output(u, to, &p.v, f32s)?,
        ..elsa_gradients_outputs::default()
    };
    let (reads, writes) = (read(u, &inputs)?, read(u, &outputs)?);
    // SAFETY: as for all calls of this function (above).
    write(u, &elsa_report::default(), |report| unsafe {
        elsa_gradients_run(plan, workspace, reads.get(), writes.get(), report)
    })?;
    let mut bound = elsa_bound::default();
    // SAFETY: as for all calls of this function (above). Bound calls run before the lists change.
    if u.ratio(1, 4)?
        && accepted(unsafe { elsa_gradients_bind(plan, workspace, &inputs, &outputs, &mut bound) })
    {
        // SAFETY: as for all calls of this function (above).
        accepted(unsafe { elsa_gradients_bound_set(bound, reads.get(), writes.get()) });
        // SAFETY: as for all calls of this function (above).
        accepted(unsafe { elsa_bound_run(bound, null_mut()) });
        accepted(elsa_bound_destroy(bound));
    }
    Ok(Some(plan))
}
