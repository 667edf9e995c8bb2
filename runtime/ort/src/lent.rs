//! The runtime's own threads, on which the operator computes if the runtime lends them.
//!
//! **The naive way** gives the engine its own threads. The runtime's threads spin after their work, so two pools then compete
//! for the cores, and a model becomes slower than with either pool alone.
//!
//! **Why the code differs.** From ONNX Runtime 1.17 on, an operator can divide a call among the runtime's threads. The
//! function for this requires the context of the call, while an engine has one hook for all calls. So the thread of a
//! call records the context of the call before the computation starts ([`during`]), and the engine calls the hook on
//! that thread. Without a recorded context the hook does nothing, and the calling thread computes every share.

use crate::api::Api;
use elsa_runtime::{HostTask, HostThreads, ParallelFor};
use ort_sys::OrtKernelContext;
use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;

thread_local! {
    /// The call that this thread is executing: the functions of the call's runtime, and the context of the call.
    static CALL: Cell<Option<(Api, *const OrtKernelContext)>> = const { Cell::new(None) };
}

/// The hook through which an engine uses the runtime's threads.
struct Lent;

impl ParallelFor for Lent {
    fn parallel_for(&self, workers: usize, task: HostTask) {
        let Some((api, context)) = CALL.get() else { return };
        let number = ptr::without_provenance_mut(task.number());
        // SAFETY: *handle*: `during` is active on this thread. A share may be called with any number. The caller computes
        // shares that the runtime refuses.
        let _ = unsafe { api.parallel_for(context, share, workers, number) };
    }
}

/// Computes share `worker` of a task. May be called with any number, at any time, on any thread.
unsafe extern "system" fn share(task: *mut c_void, worker: usize) {
    HostTask::from_number(task.addr()).call(worker);
}

/// Returns the interface to the runtime's threads for an engine that computes on the threads of the runtime that calls it.
pub(crate) fn threads() -> HostThreads {
    HostThreads::new(Lent)
}

/// Guard that restores the previous call of the thread when [`during`] ends.
struct Ended(Option<(Api, *const OrtKernelContext)>);

impl Drop for Ended {
    fn drop(&mut self) {
        CALL.set(self.0);
    }
}

/// Runs `work`. If `work` calls engines on this thread, they may use the threads that the runtime lends to the call
/// that has `context`.
///
/// # Safety
/// - The caller keeps the clause *handle* of [`Api`], for `context`, and the runtime lends its threads ([`Api::lends`]).
pub(crate) unsafe fn during<T>(api: Api, context: *const OrtKernelContext, work: impl FnOnce() -> T) -> T {
    let _ended = Ended(CALL.replace(Some((api, context))));
    work()
}
