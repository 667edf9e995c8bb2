//! Merges: sums of the shares of all tasks of gradients.

use crate::attention::convert;
use crate::fault::{Fault, call};
use crate::growing::take;
use crate::handles::Table;
use crate::memory::{Buffer, Unchecked, apart};
use crate::pointer::{aligned, put};
use crate::task::calls::division;
use crate::task::planned::{locked, on_large_stack};
use crate::types::*;
use elsa_core::attention::backward::{BackwardProblem, Operand};
use elsa_core::dtype::DType;
use elsa_core::quorum::{Division, Task};
use elsa_runtime::{GradientMerge, GradientSizes, PlanError, TaskGradients, TaskTokens};
use std::sync::{Arc, Mutex, MutexGuard};

/// The gradients, in the order of the fields of the C structs.
const GRADIENTS: [Operand; 3] = [Operand::QueryGradient, Operand::KeyGradient, Operand::ValueGradient];

/// Sums of the shares of tasks, behind a handle.
struct Merge {
    problem: BackwardProblem,
    division: Division,
    sums: GradientMerge,
    /// Number of tasks whose shares have been added.
    added: u64,
}

static MERGES: Table<Mutex<Box<Merge>>> = Table::new("merge");

/// Locks a merge for one call, or returns ELSA_STATUS_BUSY if another call is using it.
fn lock(merge: &Mutex<Box<Merge>>) -> Result<MutexGuard<'_, Box<Merge>>, Fault> {
    let broken = merge.is_poisoned();
    let mut locked = locked("merge", merge)?;
    if broken {
        // A call that panicked may have added a part of a task's shares, so the sums begin again.
        locked.sums.sums();
        locked.added = 0;
        merge.clear_poison();
    }
    Ok(locked)
}

/// Creates a merge, which adds the shares of all tasks of a division in a balanced tree, in the order of their numbers. problem
/// describes the complete tensors. Of the options, only chunks is used; gathered must be zero. The merge allocates memory
/// for one set of f32 gradients of the complete problem, and for one more set for each doubling of the number of tasks.
///
/// # Safety
/// Each input pointer is null or valid for reads, and nothing writes there during the call (*read*). Each output
/// pointer is null or valid for writes, and nothing else uses that memory during the call (*write*).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_gradients_merge_create(
    problem: *const elsa_problem,
    options: *const elsa_task_options,
    merge: *mut elsa_gradients_merge,
) -> elsa_status {
    call(|| {
        aligned("merge", merge)?;
        // SAFETY: the caller keeps the clause *read*.
        let (problem, options) = unsafe { (take("problem", problem)?, take("options", options)?) };
        let problem = BackwardProblem::new(&convert::problem(&problem)?)?;
        let (division, _, held) = division(&options)?;
        if held != TaskTokens::Whole {
            return Err(Fault::argument(format_args!(
                "gathered: {}; allowed: 0, because the problem of a merge has all tokens",
                options.gathered
            )));
        }
        let tasks = usize::try_from(division.tasks()).unwrap_or(usize::MAX);
        let sums = GradientMerge::new(&GradientSizes::of_problem(problem.forward()), tasks)?;
        let made = Box::new(Merge { problem, division, sums, added: 0 });
        let id = MERGES.insert(Arc::new(Mutex::new(made)))?;
        // SAFETY: the caller keeps the clause *write*.
        unsafe { put(merge, elsa_gradients_merge { id }) };
        Ok(())
    })
}

/// Adds the shares of task number, which must be the next task: 0 first, then 1. A repeated, missing or foreign task, and
/// shares that do not have exactly the elements of the task, are rejected with ELSA_STATUS_ARGUMENT and change nothing.
/// A thread of the library, named elsa-task, adds the shares and ends before the call does.
///
/// # Safety
/// The struct and the memory of the shares are valid for reads, and nothing writes there during the call (*read*).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_gradients_merge_add(
    merge: elsa_gradients_merge,
    number: u64,
    shares: *const elsa_gradients_shares,
) -> elsa_status {
    call(|| {
        // SAFETY: the caller keeps the clause *read*.
        let shares = unsafe { take("shares", shares) }?;
        let merge = MERGES.get(merge.id)?;
        let mut merge = lock(&merge)?;
        let Merge { problem, division, sums, added } = &mut **merge;
        let path = division.path(number).map_err(PlanError::Task)?;
        if number != *added {
            let before = if number < *added { ", added before" } else { "" };
            let next = match *added == division.tasks() {
                true => "none, because all tasks are added; elsa_gradients_merge_finish is next".to_owned(),
                false => format!("{added}, the next task"),
            };
            return Err(Fault::argument(format_args!("number: {number}{before}; allowed: {next}")));
        }
        let given = [shares.d_q, shares.d_k, shares.d_v].map(Unchecked::from);
        let mut data: [&[f32]; 3] = [&[]; 3];
        for ((data, operand), given) in data.iter_mut().zip(GRADIENTS).zip(given) {
            let size = size_of::<f32>();
            if !given.bytes.is_multiple_of(size) {
                let (name, bytes) = (operand.argument(), given.bytes);
                return Err(Fault::argument(format_args!(
                    "{name}: {bytes} bytes; allowed: a multiple of {size}"
                )));
            }
            let memory = Buffer::new(operand.argument(), given, given.bytes / size, size)?;
            // SAFETY: the memory is readable by the clause *read*.
            *data = unsafe { memory.read() };
        }
        let spec = problem.forward().spec();
        let totals = [spec.query.tokens(), spec.key.tokens()];
        on_large_stack(|| {
            let task = Task::new(division, &path, totals[0], totals[1]).map_err(PlanError::Task)?;
            Ok(sums.push_slices(&task, data)?)
        })?;
        *added += 1;
        Ok(())
    })
}

/// Writes the gradients, which are the sums of the shares of all tasks, in the views of the problem. The merge then begins
/// another sum: task 0 is next. If a task has not been added, returns ELSA_STATUS_ARGUMENT and changes nothing. Nothing is
/// allocated.
///
/// The bits depend only on the shares: tasks 0 to 6 are added as ((0 + 1) + (2 + 3)) + ((4 + 5) + 6).
///
/// # Safety
/// The struct is valid for reads, and the memory of the outputs for writes. Nothing else uses the outputs during the call
/// (*read*, *write*).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_gradients_merge_finish(
    merge: elsa_gradients_merge,
    outputs: *const elsa_gradients_outputs,
) -> elsa_status {
    call(|| {
        // SAFETY: the caller keeps the clause *read*.
        let outputs = unsafe { take("outputs", outputs) }?;
        let merge = MERGES.get(merge.id)?;
        let mut merge = lock(&merge)?;
        let Merge { problem, division, sums, added } = &mut **merge;
        if *added != division.tasks() {
            let tasks = division.tasks();
            return Err(Fault::argument(format_args!(
                "merge: {added} of {tasks} tasks added; allowed: all; elsa_gradients_merge_add adds task {added}"
            )));
        }
        let given = [outputs.d_q, outputs.d_k, outputs.d_v].map(Unchecked::from);
        let mut room = [Buffer::ABSENT; 3];
        for ((room, operand), given) in room.iter_mut().zip(GRADIENTS).zip(given) {
            let elements = problem.memory(operand, DType::F32).map_or(0, |memory| memory.elements);
            *room = Buffer::new(operand.argument(), given, elements, size_of::<f32>())?;
        }
        apart(room.into_iter().map(|room| (true, room)))?;
        let (spec, sums) = (problem.spec(), sums.sums());
        let views = [&spec.query, &spec.key, &spec.value];
        for ((room, view), sums) in room.iter().zip(views).zip([&sums.query, &sums.key, &sums.value]) {
            // SAFETY: the memory is writable by the clause *write*, and no output overlaps another.
            TaskGradients::lay(sums, view, unsafe { room.write() });
        }
        *added = 0;
        Ok(())
    })
}

/// Destroys the handle of a merge.
#[unsafe(no_mangle)]
pub extern "C" fn elsa_gradients_merge_destroy(merge: elsa_gradients_merge) -> elsa_status {
    call(|| MERGES.remove(merge.id).map(drop))
}
