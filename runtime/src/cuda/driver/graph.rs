//! Records work as graphs. One call to the driver launches a graph, and a graph can be launched any number of times.

use super::api::GraphApi;
use super::context::{Context, Entered, log_error};
use super::stream::RawStream;
use crate::error::DeviceError;
use cudarc::driver::sys::CUgraphExec;
use std::ptr;
use std::sync::Arc;

/// The driver's number for the capture mode that permits every thread to make any call.
const RELAXED: u32 = 2;

/// A graph that can be launched.
#[derive(Debug)]
pub struct Graph {
    context: Arc<Context>,
    raw: CUgraphExec,
}

// SAFETY: every thread that makes the context current may use its handles.
unsafe impl Send for Graph {}

impl RawStream {
    /// Records the work that the closure `work` enqueues in this stream of `context`, without executing it. Returns
    /// `None` if the driver has no graphs.
    ///
    /// # Errors
    /// Returns the error of `work`, or the error that the driver reports.
    pub fn graph_of(
        self,
        entered: &Entered<'_>,
        context: &Arc<Context>,
        work: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<Option<Graph>, DeviceError> {
        let Some(api) = &entered.context.api().graph else { return Ok(None) };
        // SAFETY: *handle*, *current*.
        let code = unsafe { (api.cuStreamBeginCapture_v2)(self.handle(), RELAXED) };
        entered.check("cuStreamBeginCapture_v2", code)?;
        let result = work();
        let mut graph = ptr::null_mut();
        // SAFETY: *handle*, *current*; *room*: the call writes a handle.
        let code = unsafe { (api.cuStreamEndCapture)(self.handle(), &raw mut graph) };
        let ended = entered.check("cuStreamEndCapture", code);
        let mut raw = ptr::null_mut();
        let made = result.and(ended).and_then(|()| {
            // SAFETY: *handle*, *current*; *room*: the call writes a handle. Neither a node nor a log is requested.
            let code =
                unsafe { (api.cuGraphInstantiate)(&raw mut raw, graph, ptr::null_mut(), ptr::null_mut(), 0) };
            entered.check("cuGraphInstantiate", code)
        });
        if !graph.is_null() {
            // SAFETY: *handle*: the driver returned the handle above, and it is released once. The instantiated graph
            // does not need it.
            log_error(entered.check("cuGraphDestroy", unsafe { (api.cuGraphDestroy)(graph) }));
        }
        made.map(|()| Some(Graph { context: context.clone(), raw }))
    }
}

impl Graph {
    /// Enqueues the recorded work in `stream`.
    ///
    /// # Safety
    /// The clauses *room* and *alive* hold for every address in the recorded work.
    ///
    /// # Errors
    /// Returns the error that the driver reports.
    pub unsafe fn launch(&self, entered: &Entered<'_>, stream: RawStream) -> Result<(), DeviceError> {
        let launch = |api: &GraphApi| {
            // SAFETY: *handle*, *current*; the caller guarantees the clauses of this function.
            let code = unsafe { (api.cuGraphLaunch)(self.raw, stream.handle()) };
            entered.check("cuGraphLaunch", code)
        };
        entered.context.api().graph.as_ref().map_or(Ok(()), launch)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.context.usable().is_err() {
            return;
        }
        let freed = self.context.enter().and_then(|entered| {
            let Some(api) = &self.context.api().graph else { return Ok(()) };
            // SAFETY: *handle*: it is released only here; *current*.
            entered.check("cuGraphExecDestroy", unsafe { (api.cuGraphExecDestroy)(self.raw) })
        });
        log_error(freed);
    }
}
