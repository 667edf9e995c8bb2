//! Gradients of quorums in the C interface, over the inputs of a forward pass.

use crate::arena::{ARENA, output};
use crate::gradients::{inputs, options};
use crate::structs::{accepted, read, write};
use crate::task;
use elsa::*;
use libfuzzer_sys::arbitrary::{Result, Unstructured};

/// Largest number of elements for which gradients are allocated.
const MOST: usize = 1 << 16;

/// Returns memory of the first elements of a list, and sometimes of one element less than the list has.
fn part(u: &mut Unstructured<'_>, list: &mut [f32]) -> Result<elsa_output> {
    let short = usize::from(u.ratio(1, 64)? && !list.is_empty());
    Ok(elsa_output { data: list.as_mut_ptr().cast(), bytes: (list.len() - short) * size_of::<f32>() })
}

/// Creates a task of the gradients of `p`, describes it, runs it over `forward`, and adds its shares to a merge as the shares
/// of several tasks, which the merge finishes.
///
/// # Errors
/// Returns an error if the input has ended.
pub fn calls(
    u: &mut Unstructured<'_>,
    engine: elsa_engine,
    p: &elsa_problem,
    forward: &elsa_inputs,
    [from, written]: [*mut u8; 2],
) -> Result<()> {
    let (of_task, of_plan) = (task::options(u)?, options(u)?);
    let (given, how, with) = (read(u, p)?, read(u, &of_task)?, read(u, &of_plan)?);
    let mut made = elsa_gradients_task::default();
    // SAFETY (all calls below): structs have as many bytes as their sizes state; tensors are in the arenas and shares in
    // memory of their own, which nothing else uses during a call.
    if !accepted(unsafe { elsa_gradients_task_create(engine, given.get(), with.get(), how.get(), &mut made) })
    {
        return Ok(());
    }
    let mut info = elsa_task_info::default();
    // SAFETY: as for all calls of this function (above).
    accepted(unsafe { elsa_gradients_task_describe(made, &mut info) });
    let mut tokens = [vec![0usize; u.int_in_range(0..=40)?], vec![0usize; info.keys]];
    let [queries, keys] = &mut tokens;
    // SAFETY: as for all calls of this function (above); the lists have as many numbers as the call says.
    accepted(unsafe {
        elsa_gradients_task_tokens(made, queries.as_mut_ptr(), queries.len(), keys.as_mut_ptr(), keys.len())
    });
    let count = |view: &elsa_view, tokens: usize| {
        let [batch, heads, _, dim] = view.shape;
        [batch, heads, tokens, dim].into_iter().fold(1, usize::saturating_mul)
    };
    let sizes = [count(&p.q, info.queries), count(&p.k, info.keys), count(&p.v, info.keys)];
    if sizes.into_iter().any(|size| size > MOST) {
        accepted(elsa_gradients_task_destroy(made));
        return Ok(());
    }
    let mut shares = sizes.map(|size| vec![0f32; size]);
    let [d_q, d_k, d_v] = &mut shares;
    let mut outputs = elsa_gradients_outputs {
        d_q: part(u, d_q)?,
        d_k: part(u, d_k)?,
        d_v: part(u, d_v)?,
        ..elsa_gradients_outputs::default()
    };
    if u.ratio(1, 16)? && outputs.d_q.bytes <= ARENA {
        outputs.d_q.data = from.cast();
    }
    let (reads, writes) = (inputs(u, &of_plan, p, forward, from)?, read(u, &outputs)?);
    let reads = read(u, &reads)?;
    // SAFETY: as for all calls of this function (above).
    write(u, &elsa_task_report::default(), |report| unsafe {
        elsa_gradients_task_run(made, reads.get(), writes.get(), report)
    })?;
    accepted(elsa_gradients_task_destroy(made));
    let mut merge = elsa_gradients_merge::default();
    let whole = elsa_task_options { gathered: of_task.gathered & u32::from(u.ratio(1, 8)?), ..of_task };
    // SAFETY: as for all calls of this function (above).
    if !accepted(unsafe { elsa_gradients_merge_create(given.get(), &whole, &mut merge) }) {
        return Ok(());
    }
    let of = |output: elsa_output| elsa_input { data: output.data, bytes: output.bytes };
    let shares = elsa_gradients_shares {
        d_q: of(outputs.d_q),
        d_k: of(outputs.d_k),
        d_v: of(outputs.d_v),
        ..elsa_gradients_shares::default()
    };
    let shares = read(u, &shares)?;
    for next in 0..info.tasks.min(24) {
        let number = if u.ratio(1, 8)? { u.int_in_range(0..=25)? } else { next };
        // SAFETY: as for all calls of this function (above).
        accepted(unsafe { elsa_gradients_merge_add(merge, number, shares.get()) });
    }
    let sums = elsa_gradients_outputs {
        d_q: output(u, written, &p.q, ELSA_DTYPE_F32)?,
        d_k: output(u, written, &p.k, ELSA_DTYPE_F32)?,
        d_v: output(u, written, &p.v, ELSA_DTYPE_F32)?,
        ..elsa_gradients_outputs::default()
    };
    let sums = read(u, &sums)?;
    // SAFETY: as for all calls of this function (above).
    accepted(unsafe { elsa_gradients_merge_finish(merge, sums.get()) });
    accepted(elsa_gradients_merge_destroy(merge));
    Ok(())
}
