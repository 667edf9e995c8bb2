//! The runtime's own threads, on which the operator computes where the runtime lends them.
//!
//! **The naive way** gives the engine threads of its own. The runtime's threads spin after their work, so that two pools then
//! take the cores from one another, and a model becomes slower than either pool alone makes it.
//!
//! **Why the code differs.** From 1.17 on a call can have its shares computed by the runtime's pool. The function takes the
//! context of the call, while an engine has one hook for all calls: the thread of a call notes its context before it runs
//! ([`during`]), and the engine calls the hook on that thread. Where no context is noted the hook does nothing, and the caller
//! computes every share.

use crate::api::Api;
use elsa_runtime::{HostTask, HostThreads, ParallelFor};
use ort_sys::OrtKernelContext;
use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;

thread_local! {
    /// The call that this thread is in.
    static CALL: Cell<Option<(Api, *const OrtKernelContext)>> = const { Cell::new(None) };
}

/// The hook of an engine.
struct Lent;

impl ParallelFor for Lent {
    fn parallel_for(&self, workers: usize, task: HostTask) {
        let Some((api, context)) = CALL.get() else { return };
        let number = ptr::without_provenance_mut(task.number());
        // SAFETY: *handle*: `during` is under way on this thread. A share may be called with any number. Shares that the
        // runtime refuses to compute are the caller's.
        let _ = unsafe { api.parallel_for(context, share, workers, number) };
    }
}

/// Computes a share. Safe to call with any number, at any time, on any thread.
unsafe extern "system" fn share(task: *mut c_void, worker: usize) {
    HostTask::from_number(task.addr()).call(worker);
}

/// What an engine takes to compute on the threads of the runtime that calls.
pub(crate) fn threads() -> HostThreads {
    HostThreads::new(Lent)
}

/// Ends what [`during`] has begun.
struct Ended(Option<(Api, *const OrtKernelContext)>);

impl Drop for Ended {
    fn drop(&mut self) {
        CALL.set(self.0);
    }
}

/// Does `work` with the threads of a call.
///
/// # Safety
/// *handle* of [`Api`], for `context`, and the runtime has the function ([`Api::lends`]).
pub(crate) unsafe fn during<T>(api: Api, context: *const OrtKernelContext, work: impl FnOnce() -> T) -> T {
    let _ended = Ended(CALL.replace(Some((api, context))));
    work()
}
