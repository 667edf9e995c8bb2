//! What tasks of attention and tasks of gradients share: plans behind handles, and descriptions of tasks.

use crate::fault::Fault;
use crate::pointer::aligned;
use crate::types::*;
use elsa_core::quorum::{Run, Task};
use elsa_runtime::PlanError;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Plan of a task behind a handle.
#[derive(Debug)]
pub(crate) struct Planned<P> {
    /// Number of tasks of the division.
    pub tasks: u64,
    /// The plan is large, so it is on the heap.
    plan: Mutex<Box<P>>,
}

impl<P> Planned<P> {
    pub(crate) fn new(tasks: u64, plan: Box<P>) -> Planned<P> {
        Planned { tasks, plan: Mutex::new(plan) }
    }

    /// Locks the plan for one call, or returns ELSA_STATUS_BUSY if another call is using it.
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, Box<P>>, Fault> {
        // A run overwrites anything that an earlier one has left in the plan.
        locked("task", &self.plan)
    }
}

/// Locks an object for one call, or returns ELSA_STATUS_BUSY if another call is using it. `argument` names its handle.
pub(crate) fn locked<'a, T>(argument: &str, object: &'a Mutex<T>) -> Result<MutexGuard<'a, T>, Fault> {
    match object.try_lock() {
        Ok(guard) => Ok(guard),
        Err(TryLockError::Poisoned(guard)) => Ok(PoisonError::into_inner(guard)),
        Err(TryLockError::WouldBlock) => Err(Fault::new(
            ELSA_STATUS_BUSY,
            &format_args!("{argument}: at work in another call; allowed: one call at a time"),
        )),
    }
}

/// Bytes of the stack on which tasks are planned. The lists of a task's runs take more than ELSA_STACK_BYTES, which is
/// all that the calling thread may have.
const STACK: usize = 1 << 20;

/// Calls `plan` on a thread with a large stack, and returns its result on the heap.
pub(crate) fn on_large_stack<T: Send>(
    plan: impl FnOnce() -> Result<T, PlanError> + Send,
) -> Result<Box<T>, Fault> {
    std::thread::scope(|scope| -> Result<Box<T>, Fault> {
        let thread = std::thread::Builder::new().name("elsa-task".to_owned()).stack_size(STACK);
        let thread = thread.spawn_scoped(scope, || plan().map(Box::new));
        let thread = thread.map_err(|error| {
            Fault::new(ELSA_STATUS_DEVICE, &format_args!("task: no thread to plan it: {error}"))
        })?;
        Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?)
    })
}

/// Describes a task of a division into `tasks` tasks, of a problem with `totals` queries and keys.
pub(crate) fn info(
    task: &Task,
    tasks: u64,
    [query_total, key_total]: [usize; 2],
    workspace_bytes: usize,
) -> elsa_task_info {
    elsa_task_info {
        size: size_of::<elsa_task_info>(),
        tasks,
        queries: task.query_tokens(),
        keys: task.key_tokens(),
        query_total,
        key_total,
        pairs: u64::try_from(task.pair_count()).unwrap_or(u64::MAX),
        workspace_bytes,
    }
}

/// Writes the positions of the queries and the keys of a task to two arrays, each with its number of elements.
///
/// # Safety
/// Each array is null or writable for its number of elements, and nothing else uses it.
pub(crate) unsafe fn tokens(
    task: &Task,
    queries: (*mut usize, usize),
    keys: (*mut usize, usize),
) -> Result<(), Fault> {
    for (name, (array, count)) in [("queries", queries), ("keys", keys)] {
        if count > 0 {
            aligned(name, array)?;
        }
    }
    for (runs, (array, count)) in [(task.queries(), queries), (task.keys(), keys)] {
        let tokens = runs.iter().map(Run::span).flat_map(|span| span.start..span.start + span.tokens);
        for (at, token) in tokens.take(count).enumerate() {
            // SAFETY: the array is writable for count numbers (clause of this function), and at < count.
            unsafe { array.add(at).write(token) };
        }
    }
    Ok(())
}
