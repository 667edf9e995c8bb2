//! Tasks of quorums in the C interface, over the inputs of a call of attention.

use crate::arena::ARENA;
use crate::structs::{accepted, read, write};
use elsa::*;
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use std::ptr::null;

/// Largest number of elements for which states are allocated.
const MOST: usize = 1 << 16;

/// Returns options of a task, which are often valid.
///
/// # Errors
/// Returns an error if the input has ended.
pub fn options(u: &mut Unstructured<'_>) -> Result<elsa_task_options> {
    let mut options = elsa_task_options {
        number: u.int_in_range(0..=24)?,
        queries: u.int_in_range(0..=30)?,
        keys: u.int_in_range(0..=30)?,
        gathered: u32::from(u.ratio(1, 4)?),
        reserved: u32::from(u.ratio(1, 64)?),
        ..elsa_task_options::default()
    };
    for level in options.chunks.iter_mut().take(if u.ratio(1, 32)? { 12 } else { 2 }) {
        *level = *u.choose(&[1, 3, 7, 13, 0, 6, usize::MAX])?;
    }
    Ok(options)
}

/// Creates a task of attention over the problem `p`, describes it, runs it over `inputs` and spreads its states.
///
/// # Errors
/// Returns an error if the input has ended.
pub fn calls(
    u: &mut Unstructured<'_>,
    engine: elsa_engine,
    p: &elsa_problem,
    inputs: &elsa_inputs,
    written: *mut u8,
) -> Result<()> {
    let options = options(u)?;
    let (given, how) = (read(u, p)?, read(u, &options)?);
    let mut task = elsa_task::default();
    // SAFETY (all calls below): structs have as many bytes as their sizes state; inputs and states are in memory of their
    // own, which nothing else uses during a call.
    if !accepted(unsafe { elsa_task_create(engine, given.get(), null(), how.get(), &mut task) }) {
        return Ok(());
    }
    let mut info = elsa_task_info::default();
    // SAFETY: as for all calls of this function (above).
    accepted(unsafe { elsa_task_describe(task, &mut info) });
    let mut tokens = [vec![0usize; info.queries], vec![0usize; u.int_in_range(0..=40)?]];
    let [queries, keys] = &mut tokens;
    // SAFETY: as for all calls of this function (above); the lists have as many numbers as the call says.
    accepted(unsafe {
        elsa_task_tokens(task, queries.as_mut_ptr(), queries.len(), keys.as_mut_ptr(), keys.len())
    });
    let (sequences, dim) = (p.q.shape[0].saturating_mul(p.q.shape[1]), p.v.shape[3]);
    let [rows, whole] = [info.queries, info.query_total].map(|tokens| sequences.saturating_mul(tokens));
    if rows.max(whole).saturating_mul(dim.max(1)) > MOST {
        accepted(elsa_task_destroy(task));
        return Ok(());
    }
    let mut states = [vec![0f32; rows], vec![0f32; rows], vec![0f32; rows * dim]];
    let mut all = [vec![0f32; whole], vec![0f32; whole], vec![0f32; whole * dim]];
    let [m, s, w] = &mut states;
    let mut part = elsa_states_out { m: m.as_mut_ptr(), s: s.as_mut_ptr(), w: w.as_mut_ptr() };
    if u.ratio(1, 16)? && rows <= ARENA / size_of::<f32>() {
        part.m = written.cast();
    }
    let reads = read(u, inputs)?;
    // SAFETY: as for all calls of this function (above); the arrays have the rows of the task.
    write(u, &elsa_task_report::default(), |report| unsafe {
        elsa_task_run(task, reads.get(), &part, report)
    })?;
    let from = elsa_states_in { m: part.m, s: part.s, w: part.w };
    let [m, s, w] = &mut all;
    let to = elsa_states_out { m: m.as_mut_ptr(), s: s.as_mut_ptr(), w: w.as_mut_ptr() };
    // SAFETY: as for all calls of this function (above); the arrays have the rows of the task and of all queries.
    accepted(unsafe { elsa_task_spread(task, &from, &to) });
    accepted(elsa_task_destroy(task));
    Ok(())
}
