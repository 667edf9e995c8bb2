//! Tasks of quorums: parts of the pairs of queries and keys, whose states merge into those of all pairs.

use crate::attention::convert;
use crate::attention::tensors::{state_buffers, with_states};
use crate::engine::ENGINES;
use crate::fault::{Fault, call};
use crate::growing::{Room, take, take_or_default};
use crate::handles::Table;
use crate::memory::{Buffer, apart};
use crate::pointer::{aligned, get, put};
use crate::task::planned::{self, Planned, on_large_stack, tokens};
use crate::text::{self, Text};
use crate::types::*;
use elsa_core::attention::StateOut;
use elsa_core::quorum::Division;
use elsa_runtime::{PlanError, TaskPlan, TaskReport, TaskTokens};
use std::sync::Arc;

static TASKS: Table<Planned<TaskPlan>> = Table::new("task");

/// Returns the division of a task, its number, and the tokens that its tensors contain.
pub(crate) fn division(o: &elsa_task_options) -> Result<(Division, u64, TaskTokens), Fault> {
    let levels = o.chunks.iter().position(|chunks| *chunks == 0).unwrap_or(o.chunks.len());
    let (chunks, rest) = o.chunks.split_at(levels);
    if let Some(found) = rest.iter().find(|chunks| **chunks != 0) {
        return Err(Fault::argument(format_args!("chunks: {found} after a zero; allowed: zeros")));
    }
    if o.reserved != 0 {
        return Err(Fault::argument(format_args!("reserved: {}; allowed: 0", o.reserved)));
    }
    let held = match o.gathered {
        0 => TaskTokens::Whole,
        _ => TaskTokens::Gathered { queries: o.queries, keys: o.keys },
    };
    Ok((Division::new(chunks).map_err(PlanError::Task)?, o.number, held))
}

fn report_of(done: &TaskReport) -> elsa_task_report {
    let reason = done.fallback.as_ref().map_or_else(Text::new, |reason| Text::of(reason));
    elsa_task_report {
        size: size_of::<elsa_task_report>(),
        backend: done.backend.map_or(ELSA_BACKEND_AUTO, crate::convert::backend_number),
        fallback: u32::from(done.fallback.is_some()),
        calls: done.calls,
        skipped: done.skipped,
        copied_bytes: done.copied,
        kernel: text::name(done.kernel.unwrap_or_default()),
        reason: reason.chars(),
    }
}

/// Creates a task of a division of attention by cyclic quorums: a part of the pairs of queries and keys. Every pair belongs to
/// exactly one task, and a task has only some of the tokens, so that each board needs only these. Everything that depends
/// on the shape is decided here, and all memory of runs is allocated. A thread of the library, named elsa-task, plans the
/// task and ends before the call does. Null plan options select the defaults.
///
/// A problem with a past, a present, packed sequences, windows of a picture, a bias or a table is rejected, and so is an
/// error budget.
///
/// # Safety
/// Each input pointer is null or valid for reads, and nothing writes there during the call (*read*). Each output
/// pointer is null or valid for writes, and nothing else uses that memory during the call (*write*).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_task_create(
    engine: elsa_engine,
    problem: *const elsa_problem,
    plan: *const elsa_plan_options,
    options: *const elsa_task_options,
    task: *mut elsa_task,
) -> elsa_status {
    call(|| {
        aligned("task", task)?;
        let engine = ENGINES.get(engine.id)?;
        // SAFETY: the caller keeps the clause *read*.
        let (problem, plan, options) =
            unsafe { (take("problem", problem)?, take_or_default("plan", plan)?, take("options", options)?) };
        let (problem, plan) = (convert::problem(&problem)?, convert::plan_options(&plan)?);
        let (division, number, held) = division(&options)?;
        let path = division.path(number).map_err(PlanError::Task)?;
        let made = on_large_stack(|| TaskPlan::new(&engine, &problem, &division, &path, held, &plan))?;
        let id = TASKS.insert(Arc::new(Planned::new(division.tasks(), made)))?;
        // SAFETY: the caller keeps the clause *write*.
        unsafe { put(task, elsa_task { id }) };
        Ok(())
    })
}

/// Describes a task.
///
/// # Safety
/// Each pointer is null or valid for writes, and nothing else uses that memory during the call (*write*).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_task_describe(task: elsa_task, info: *mut elsa_task_info) -> elsa_status {
    call(|| {
        // SAFETY: the caller keeps the clause *write*.
        let room = unsafe { Room::new("info", info) }?;
        let task = TASKS.get(task.id)?;
        let plan = task.lock()?;
        room.fill(planned::info(plan.task(), task.tasks, plan.totals(), plan.workspace_bytes()));
        Ok(())
    })
}

/// Writes the positions of the task's queries and keys among all queries and keys, in the order of the task: at most
/// query_count and key_count numbers. An array may be null if its count is 0.
///
/// # Safety
/// queries is writable for query_count numbers and keys for key_count, and nothing else uses them during the call
/// (*write*).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_task_tokens(
    task: elsa_task,
    queries: *mut usize,
    query_count: usize,
    keys: *mut usize,
    key_count: usize,
) -> elsa_status {
    call(|| {
        let task = TASKS.get(task.id)?;
        // SAFETY: the caller keeps the clause of this function.
        unsafe { tokens(task.lock()?.task(), (queries, query_count), (keys, key_count)) }
    })
}

/// Computes the states of the task's queries over the keys that the task pairs with them, over tensors in host memory, and
/// waits. The arrays of states hold one row for each batch, head and query of the task, in this order: m and s one number,
/// w as many as a value has. A run allocates nothing that grows with the tensors. The report may be null.
///
/// A task serves one call at a time; a concurrent second call returns ELSA_STATUS_BUSY.
///
/// # Safety
/// As for elsa_run. The arrays of states are writable for the rows of the task.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_task_run(
    task: elsa_task,
    inputs: *const elsa_inputs,
    states: *const elsa_states_out,
    report: *mut elsa_task_report,
) -> elsa_status {
    call(|| {
        // SAFETY: the caller keeps the clauses *read* and *write*.
        let (room, inputs, states) =
            unsafe { (Room::optional("report", report)?, take("inputs", inputs)?, get("states", states)?) };
        let task = TASKS.get(task.id)?;
        let mut plan = task.lock()?;
        let sizes = [plan.rows(), plan.problem().value_dim()];
        // SAFETY: the caller keeps the clause *tensors* and the one on the arrays.
        let (inputs, states) = unsafe { with_states(plan.problem(), &inputs, states, sizes) }?;
        let done = plan.run(&inputs, states)?;
        if let Some(room) = room {
            room.fill(report_of(&done));
        }
        Ok(())
    })
}

/// Copies the states of the task's queries to their rows in the states of all queries, [batch, heads, query_total]. All other
/// rows become the states of no keys. elsa_states_merge then merges the states of the tasks, in the order of their
/// numbers for reproducible bits, and elsa_states_finish converts the result to the output.
///
/// # Safety
/// The structs and the arrays of states are valid for reads, and those of whole for writes. Nothing else writes to the
/// inputs or uses the outputs during the call (*read*, *write*).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_task_spread(
    task: elsa_task,
    states: *const elsa_states_in,
    whole: *const elsa_states_out,
) -> elsa_status {
    call(|| {
        // SAFETY: the caller keeps the clauses *read* and *write*.
        let (states, whole) = unsafe { (get("states", states)?, get("whole", whole)?) };
        let task = TASKS.get(task.id)?;
        let plan = task.lock()?;
        let problem = plan.problem();
        let sequences = problem.spec().query.batch() * problem.heads();
        let (rows, dim) = (sequences.saturating_mul(plan.totals()[0]), problem.value_dim());
        let names = ["whole.m", "whole.s", "whole.w"];
        let written = state_buffers(names, [whole.m, whole.s, whole.w], rows, dim)?;
        let given = [states.m, states.s, states.w].map(<*const f32>::cast_mut);
        let read = state_buffers(["states.m", "states.s", "states.w"], given, plan.rows(), dim)?;
        let of = |written: bool| move |array: Buffer| (written, array);
        apart(written.map(of(true)).into_iter().chain(read.map(of(false))))?;
        let [m, s, w] = written;
        // SAFETY: the memory is valid by the clauses *read* and *write*, and no array of whole overlaps another.
        unsafe {
            let whole = StateOut { m: m.write(), s: s.write(), w: w.write() };
            plan.spread(read.map(|array| array.read()), whole)?;
        }
        Ok(())
    })
}

/// Destroys the handle of a task. A run in progress completes.
#[unsafe(no_mangle)]
pub extern "C" fn elsa_task_destroy(task: elsa_task) -> elsa_status {
    call(|| TASKS.remove(task.id).map(drop))
}
