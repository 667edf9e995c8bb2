//! Tasks of gradients: each computes its shares of the gradients from its own tokens, and the shares of all tasks add up to
//! the gradients.

use crate::attention::convert;
use crate::engine::ENGINES;
use crate::fault::call;
use crate::gradients::tensors::{Types, host, plan_options};
use crate::growing::{Room, take, take_or_default};
use crate::handles::Table;
use crate::pointer::{aligned, put};
use crate::task::calls::division;
use crate::task::planned::{self, Planned, on_large_stack, tokens};
use crate::text::{self, Text};
use crate::types::*;
use elsa_core::attention::backward::BackwardProblem;
use elsa_runtime::{BackwardTaskPlan, BackwardTaskReport, PlanError};
use std::sync::Arc;

/// Plan of a task, with the element types of its tensors.
struct TypedTask {
    plan: BackwardTaskPlan,
    types: Types,
}

static TASKS: Table<Planned<TypedTask>> = Table::new("task");

fn report_of(plan: &BackwardTaskPlan, done: &BackwardTaskReport) -> elsa_task_report {
    let last = done.last_report.as_ref();
    let fallback = last.and_then(|report| report.fallback.as_ref());
    elsa_task_report {
        size: size_of::<elsa_task_report>(),
        backend: last.map_or(ELSA_BACKEND_AUTO, |report| crate::convert::backend_number(report.backend)),
        fallback: u32::from(fallback.is_some()),
        calls: done.calls,
        skipped: done.skipped,
        copied_bytes: last.map_or(0, |report| report.copied),
        kernel: text::name(plan.plans().first().map_or("", |plan| plan.kernel())),
        reason: fallback.map_or_else(Text::new, |reason| Text::of(reason)).chars(),
    }
}

/// Creates a task of the gradients of a division of attention by cyclic quorums: a part of the pairs of queries and keys, with
/// the tokens of the task of elsa_task_create that has the same options. Everything that depends on the shape is decided
/// here, and all memory of runs is allocated. A thread of the library, named elsa-task, plans the task and ends before the
/// call does. Null plan options select the defaults. The CPU computes the gradients, even on an engine with a GPU; the
/// report of a run then names this fallback.
///
/// A problem with a past, a present, packed sequences, windows of a picture, a bias or a table is rejected.
///
/// # Safety
/// Each input pointer is null or valid for reads, and nothing writes there during the call (*read*). Each output
/// pointer is null or valid for writes, and nothing else uses that memory during the call (*write*).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_gradients_task_create(
    engine: elsa_engine,
    problem: *const elsa_problem,
    plan: *const elsa_gradients_options,
    options: *const elsa_task_options,
    task: *mut elsa_gradients_task,
) -> elsa_status {
    call(|| {
        aligned("task", task)?;
        let engine = ENGINES.get(engine.id)?;
        // SAFETY: the caller keeps the clause *read*.
        let (problem, plan, options) =
            unsafe { (take("problem", problem)?, take_or_default("plan", plan)?, take("options", options)?) };
        let problem = BackwardProblem::new(&convert::problem(&problem)?)?;
        let (division, number, held) = division(&options)?;
        let path = division.path(number).map_err(PlanError::Task)?;
        let types = Types::of(&plan, problem.forward().spec().dtype);
        let made = on_large_stack(|| {
            let plan =
                BackwardTaskPlan::new(&engine, &problem, &division, &path, held, &plan_options(&plan))?;
            Ok(TypedTask { plan, types })
        })?;
        let id = TASKS.insert(Arc::new(Planned::new(division.tasks(), made)))?;
        // SAFETY: the caller keeps the clause *write*.
        unsafe { put(task, elsa_gradients_task { id }) };
        Ok(())
    })
}

/// Describes a task of gradients.
///
/// # Safety
/// Each pointer is null or valid for writes, and nothing else uses that memory during the call (*write*).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_gradients_task_describe(
    task: elsa_gradients_task,
    info: *mut elsa_task_info,
) -> elsa_status {
    call(|| {
        // SAFETY: the caller keeps the clause *write*.
        let room = unsafe { Room::new("info", info) }?;
        let task = TASKS.get(task.id)?;
        let plan = &task.lock()?.plan;
        room.fill(planned::info(plan.task(), task.tasks, plan.totals(), plan.workspace_bytes()));
        Ok(())
    })
}

/// Writes the positions of the task's queries and keys among all queries and keys, like elsa_task_tokens.
///
/// # Safety
/// queries is writable for query_count numbers and keys for key_count, and nothing else uses them during the call
/// (*write*).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_gradients_task_tokens(
    task: elsa_gradients_task,
    queries: *mut usize,
    query_count: usize,
    keys: *mut usize,
    key_count: usize,
) -> elsa_status {
    call(|| {
        let task = TASKS.get(task.id)?;
        // SAFETY: the caller keeps the clause of this function.
        unsafe { tokens(task.lock()?.plan.task(), (queries, query_count), (keys, key_count)) }
    })
}

/// Computes the task's shares of the gradients, over tensors in host memory, and waits. The results of the forward pass in
/// inputs are those of attention of all pairs, such as the merged states of all tasks, for the queries in the tensors. The
/// outputs are dense: d_q [batch, heads, queries of the task, d], d_k [batch, kv_heads, keys of the task, d] and d_v
/// [batch, kv_heads, keys of the task, d_v]. elsa_gradients_merge_add adds them to those of other tasks. Nothing is
/// allocated. The report may be null.
///
/// The bits depend neither on the number of threads nor on tokens of other tasks. A task serves one call at a time; a
/// concurrent second call returns ELSA_STATUS_BUSY.
///
/// # Safety
/// As for elsa_run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_gradients_task_run(
    task: elsa_gradients_task,
    inputs: *const elsa_gradients_inputs,
    outputs: *const elsa_gradients_outputs,
    report: *mut elsa_task_report,
) -> elsa_status {
    call(|| {
        // SAFETY: the caller keeps the clauses *read* and *write*.
        let (room, inputs, outputs) = unsafe {
            (Room::optional("report", report)?, take("inputs", inputs)?, take("outputs", outputs)?)
        };
        let task = TASKS.get(task.id)?;
        let mut task = task.lock()?;
        let TypedTask { plan, types } = &mut **task;
        // SAFETY: the caller keeps the clause *tensors*.
        let (inputs, shares) = unsafe { host(plan.problem(), plan.shares(), *types, &inputs, &outputs) }?;
        let done = plan.run(&inputs, shares)?;
        if let Some(room) = room {
            room.fill(report_of(plan, &done));
        }
        Ok(())
    })
}

/// Destroys the handle of a task of gradients. A run in progress completes.
#[unsafe(no_mangle)]
pub extern "C" fn elsa_gradients_task_destroy(task: elsa_gradients_task) -> elsa_status {
    call(|| TASKS.remove(task.id).map(drop))
}
