//! Values behind the pointers in an engine's options: the name of threads, the list of cores, and the hook that lends
//! the host's threads.

use crate::fault::Fault;
use crate::pointer::aligned;
use crate::types::*;
use elsa_runtime::{HostTask, HostThreads, ParallelFor};
use std::ffi::{CStr, c_void};
use std::{ptr, slice};

/// Maximum length of a list of cores.
const MOST_CORES: usize = 1024;

/// Hook of the host, with the pointer that it receives as its first argument.
struct Hook {
    call: unsafe extern "C" fn(*mut c_void, usize, elsa_parallel_task, *mut c_void),
    user: *mut c_void,
}

// SAFETY: any thread may call the hook with its pointer (clause *hook* of elsa_engine_create).
unsafe impl Send for Hook {}
// SAFETY: the same clause.
unsafe impl Sync for Hook {}

impl ParallelFor for Hook {
    fn parallel_for(&self, workers: usize, task: HostTask) {
        let context = ptr::without_provenance_mut(task.number());
        // SAFETY: the hook may be called (clause *hook*). The context is a number that is never dereferenced.
        unsafe { (self.call)(self.user, workers, Some(share), context) }
    }
}

/// Computes one worker's share of a task. Safe to call with any context, at any time, on any thread.
extern "C" fn share(context: *mut c_void, worker: usize) {
    HostTask::from_number(context.addr()).call(worker);
}

/// Returns the threads that the host lends; `None` if the options have no hook.
///
/// # Safety
/// The caller keeps the clause *hook* of elsa_engine_create.
pub(crate) unsafe fn host(options: &elsa_engine_options) -> Option<HostThreads> {
    options.parallel_for.map(|call| HostThreads::new(Hook { call, user: options.parallel_user }))
}

/// Copies the first part of the names of worker threads; `None` if the options have no name. A byte that is not part of
/// UTF-8 becomes a character that the engine refuses.
///
/// # Safety
/// The caller keeps the crate's clause *read*: `options.thread_name` is null, or readable up to its zero byte.
pub(crate) unsafe fn thread_name(options: &elsa_engine_options) -> Option<String> {
    if options.thread_name.is_null() {
        return None;
    }
    // SAFETY: the text is not null, and is readable up to its zero byte (clause *read*).
    let name = unsafe { CStr::from_ptr(options.thread_name) };
    Some(name.to_string_lossy().into_owned())
}

/// Copies the list of cores that the worker threads run on.
///
/// # Safety
/// The caller keeps the crate's clause *read*: `options.cores` is readable for `options.core_count` entries.
pub(crate) unsafe fn cores(options: &elsa_engine_options) -> Result<Vec<usize>, Fault> {
    let count = options.core_count;
    if count == 0 {
        return Ok(Vec::new());
    }
    aligned("cores", options.cores)?;
    if count > MOST_CORES {
        return Err(Fault::argument(format_args!("core_count: {count}; allowed: at most {MOST_CORES}")));
    }
    // SAFETY: the list is not null, is aligned, and is readable for `count` entries (clause *read*).
    let cores = unsafe { slice::from_raw_parts(options.cores, count) };
    Ok(cores.iter().map(|core| usize::try_from(*core).unwrap_or(usize::MAX)).collect())
}
