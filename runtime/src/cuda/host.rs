//! Runs a plan on host tensors, which are copied to the device and back, or used in place.

use super::driver::{Entered, Event, Graph, RawStream};
use super::plan::{GpuPlan, OperandOf};
use super::staging::{Placed, for_runs, place};
use super::workspace::GpuWorkspace;
use crate::error::DeviceError;
use crate::problem::Problem;
use crate::tensors::{DeviceTensors, HostTensors};
use elsa_core::operands::Operands;
use std::time::{Duration, Instant};

/// Times of a call on a GPU, one for each activity.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CallTimes {
    /// Time for which the host enqueues the work.
    pub enqueue: Duration,
    /// Time for which the host then waits for the device.
    pub wait: Duration,
    /// Time on the device, from an event before the work to an event after it.
    pub device: Duration,
}

/// A call on host tensors.
///
/// Invariant *placed*: the address and size of every placed tensor are those of a slice that lives for `'a`. Nothing
/// else uses the outputs during that time.
pub struct HostCall<'a, P: GpuPlan> {
    plan: &'a P,
    problem: &'a P::Problem,
    lengths: <P::Problem as Problem>::Lengths<'a>,
    tensors: HostTensors<'a, OperandOf<P>>,
    /// `true` if the CPU computes the call again when the GPU fails.
    guarded: bool,
    workspace: &'a mut GpuWorkspace,
    placed: Operands<OperandOf<P>, Placed>,
    /// `true` if `placed` and the workspace's list of launches are valid for the workspace's current context.
    prepared: bool,
    /// `true` if the staging memory contains the inputs of this call.
    staged: bool,
    /// Number of bytes that the last run copied between the host tensors and the device.
    copied: usize,
    /// Events before and after the work of a timed run; `None` until the first timed run.
    clock: Option<[Event; 2]>,
    /// Graph of the calls that [`HostCall::time`] last enqueued, and the number of these calls; `None` before a
    /// measurement, or if the driver has no graphs.
    replay: Option<(Graph, usize)>,
}

// SAFETY: a call is equivalent to shared references to the inputs, and exclusive references to the outputs and the
// workspace.
unsafe impl<P: GpuPlan> Send for HostCall<'_, P> {}

impl<P: GpuPlan> std::fmt::Debug for HostCall<'_, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostCall").field("launches", &self.workspace.list).finish_non_exhaustive()
    }
}

impl<'a, P: GpuPlan> HostCall<'a, P> {
    /// Places the tensors, which must have been checked against the problem, and prepares the launches. `guarded` is
    /// `true` if the CPU recomputes the call when the GPU fails.
    ///
    /// # Errors
    /// Returns an error if memory is not available, or if the device fails.
    pub fn new(
        plan: &'a P,
        problem: &'a P::Problem,
        lengths: <P::Problem as Problem>::Lengths<'a>,
        tensors: HostTensors<'a, OperandOf<P>>,
        guarded: bool,
        workspace: &'a mut GpuWorkspace,
    ) -> Result<HostCall<'a, P>, DeviceError> {
        workspace.revive()?;
        let placed = prepare(plan, problem, lengths, &tensors, guarded, workspace)?;
        Ok(HostCall {
            plan,
            problem,
            lengths,
            tensors,
            guarded,
            workspace,
            placed,
            prepared: true,
            staged: false,
            copied: 0,
            clock: None,
            replay: None,
        })
    }

    /// Returns the workspace of the call.
    pub fn workspace(&mut self) -> &mut GpuWorkspace {
        self.workspace
    }

    /// Returns the number of bytes that the last run copied between the host tensors and the device.
    pub fn copied(&self) -> usize {
        self.copied
    }

    /// Returns the number of thread blocks that share the work.
    pub fn blocks(&self) -> usize {
        self.workspace.list.blocks()
    }

    /// Waits for earlier runs in the workspace, computes the outputs and waits for them. If `resident`, the run reuses
    /// the inputs that an earlier run of this call has copied to the staging memory, and leaves the outputs there. The
    /// run copies the inputs if no earlier run has copied them, or if the device's memory has been lost since that run.
    ///
    /// # Errors
    /// Returns the error that the device reports. The outputs are then incomplete. Even after an error, no enqueued
    /// work uses the tensors.
    pub fn run(&mut self, resident: bool) -> Result<(), DeviceError> {
        self.run_with(resident, false).map(|_| ())
    }

    /// Runs like [`HostCall::run`] with `resident` set, and returns the time of each activity. The first timed run
    /// allocates.
    ///
    /// # Errors
    /// Returns the error that the device reports.
    pub fn run_timed(&mut self) -> Result<CallTimes, DeviceError> {
        self.run_with(true, true)
    }

    /// Returns the mean time on the device over `calls` consecutive calls. If the driver has graphs and the launches
    /// are plain ([`Launches::is_plain`](super::launch::Launches::is_plain)), the calls are enqueued as one graph, so that the time excludes the host's
    /// work. Inputs are reused as in a resident run. The first measurement with a given number of calls allocates.
    ///
    /// # Errors
    /// Returns the error that the device reports.
    pub fn time(&mut self, calls: usize) -> Result<Duration, DeviceError> {
        if !self.staged || self.workspace.context.is_lost() {
            self.run(true)?;
        }
        let context = self.workspace.context.clone();
        let [before, behind] = match self.clock.take() {
            Some(clock) => clock,
            None => [Event::timed(&context)?, Event::timed(&context)?],
        };
        let entered = context.enter()?;
        let stream = self.workspace.stream.raw();
        // The inputs count as staged again only when the work is known to be done.
        self.staged = false;
        if self.replay.as_ref().is_none_or(|(_, recorded)| *recorded != calls) {
            self.replay = None;
            if self.workspace.list.is_plain() {
                // SAFETY: *room*, *alive*: as in `enqueue`; the graph is dropped before the memory.
                let enqueue =
                    || unsafe { self.workspace.list.enqueue(&entered, stream, self.workspace.means(), true) };
                let graph = stream.graph_of(&entered, &context, || (0..calls).try_for_each(|_| enqueue()))?;
                self.replay = graph.map(|graph| (graph, calls));
            }
        }
        let launch = || match &self.replay {
            // SAFETY: as for the recorded calls above.
            Some((graph, _)) => unsafe { graph.launch(&entered, stream) },
            // SAFETY: as for the recorded calls above.
            None => (0..calls).try_for_each(|_| unsafe {
                self.workspace.list.enqueue(&entered, stream, self.workspace.means(), false)
            }),
        };
        let begun = before.record(&entered, stream);
        let launched = begun.and_then(|()| launch());
        let ended = behind.record(&entered, stream);
        let waited = stream.synchronize(&entered);
        launched.and(ended).and(waited)?;
        self.workspace.graph.took(self.workspace.list.table_bytes(), None);
        self.staged = true;
        let ms = f64::from(behind.since(&entered, &before)?);
        self.clock = Some([before, behind]);
        Ok(Duration::try_from_secs_f64(ms / 1e3 / calls.max(1) as f64).unwrap_or_default())
    }

    #[inline(never)]
    fn run_with(&mut self, resident: bool, timed: bool) -> Result<CallTimes, DeviceError> {
        if self.workspace.revive()? {
            (self.prepared, self.staged) = (false, false);
            self.clock = None;
            self.replay = None;
        }
        if !self.prepared {
            let (plan, problem, guarded) = (self.plan, self.problem, self.guarded);
            self.placed = prepare(plan, problem, self.lengths, &self.tensors, guarded, self.workspace)?;
            self.prepared = true;
        }
        let context = self.workspace.context.clone();
        if timed && self.clock.is_none() {
            self.clock = Some([Event::timed(&context)?, Event::timed(&context)?]);
        }
        let clock = self.clock.as_ref().filter(|_| timed);
        let entered = context.enter()?;
        let stream = self.workspace.stream.raw();
        let reused = resident && self.staged;
        self.staged = false;
        let start = timed.then(Instant::now);
        let begun = clock.map_or(Ok(()), |[before, _]| before.record(&entered, stream));
        let done = begun.and_then(|()| self.enqueue(&entered, stream, reused, resident));
        let ended = clock.map_or(Ok(()), |[_, behind]| behind.record(&entered, stream));
        let enqueued = timed.then(Instant::now);
        // Enqueued work must not use the caller's memory after this call. So this function waits for the work even
        // after an error.
        let waited = stream.synchronize(&entered);
        let over = timed.then(Instant::now);
        self.copied = done?;
        waited?;
        ended?;
        self.workspace.graph.took(self.workspace.list.table_bytes(), None);
        self.staged = true;
        if !resident {
            self.copy_rows(&entered, stream)?;
        }
        let (Some([before, behind]), Some(start), Some(enqueued), Some(over)) =
            (self.clock.as_ref().filter(|_| timed), start, enqueued, over)
        else {
            return Ok(CallTimes::default());
        };
        // If the driver reports no valid time, the two events have measured nothing, and the result is zero.
        let ms = f64::from(behind.since(&entered, before)?);
        let device = Duration::try_from_secs_f64(ms / 1e3).unwrap_or_default();
        Ok(CallTimes { enqueue: enqueued - start, wait: over - enqueued, device })
    }

    /// Enqueues a run. If `reused`, inputs are not copied to the device; if `resident`, outputs are not copied back.
    /// Returns the number of copied bytes, including outputs that are copied back row by row later.
    fn enqueue(
        &self,
        entered: &Entered<'_>,
        stream: RawStream,
        reused: bool,
        resident: bool,
    ) -> Result<usize, DeviceError> {
        self.workspace.pending.precede(entered, stream, None, false)?;
        let mut bytes = 0;
        let copied = || self.placed.values().filter(|tensor| !tensor.mapped);
        for tensor in copied().filter(|tensor| !reused && tensor.read) {
            bytes += tensor.bytes;
            // SAFETY: *room*: the slice and its copy in the staging memory both have `tensor.bytes` bytes. *alive*:
            // slices and staging memory outlive `run`, which waits.
            unsafe { stream.copy_in(entered, tensor.device, tensor.data, tensor.bytes)? };
        }
        for (tensor, (view, kept)) in copied().filter_map(|tensor| Some((tensor, tensor.append?))) {
            let size = tensor.size;
            if !reused {
                for_runs(&view, 0..kept, |run| {
                    bytes += run.len() * size;
                    let (to, at) = (tensor.device + (run.start * size) as u64, run.start * size);
                    // SAFETY: as above; the contiguous elements are in the tensor's view.
                    unsafe { stream.copy_in(entered, to, tensor.data.add(at), run.len() * size) }
                })?;
            }
        }
        // SAFETY: *room*: every address belongs to the workspace, or to a staged or mapped tensor that has all bytes of
        // its view. *alive*: as above.
        unsafe { self.workspace.list.enqueue(entered, stream, self.workspace.means(), false)? };
        for tensor in copied().filter(|tensor| !resident && tensor.written) {
            let size = tensor.size;
            match tensor.append {
                Some((view, kept)) => for_runs(&view, kept..view.tokens(), |run| {
                    bytes += run.len() * size;
                    let (from, at) = (tensor.device + (run.start * size) as u64, run.start * size);
                    // SAFETY: as for the inputs; the contiguous elements are in the tensor's view.
                    unsafe { stream.copy_out(entered, tensor.data.add(at), from, run.len() * size) }
                })?,
                None => {
                    bytes += tensor.bytes;
                    if tensor.rows.is_none() {
                        // SAFETY: as for the inputs; nothing else uses the outputs.
                        unsafe { stream.copy_out(entered, tensor.data, tensor.device, tensor.bytes)? };
                    }
                }
            }
        }
        Ok(bytes)
    }

    /// Copies outputs back row by row: outputs with gaps, which must not be overwritten, and outputs that the run also
    /// reads.
    fn copy_rows(&mut self, entered: &Entered<'_>, stream: RawStream) -> Result<(), DeviceError> {
        let written = self.placed.values().filter(|tensor| tensor.written);
        for tensor in written.filter(|tensor| !tensor.mapped && tensor.bytes > 0) {
            let (Some(view), size) = (tensor.rows, tensor.size) else { continue };
            let bounce = &mut self.workspace.bounce;
            let bytes = tensor.bytes.min(bounce.len());
            // SAFETY: *room*: both buffers have `bytes` bytes, since `place` has allocated the complete tensor.
            // *alive*: the stream is waited for even after an error.
            let copied = unsafe { stream.copy_out(entered, bounce.as_mut_ptr(), tensor.device, bytes) };
            let waited = stream.synchronize(entered);
            copied?;
            waited?;
            let [batch, heads, tokens, dim] = view.shape();
            for b in 0..batch {
                for h in 0..heads {
                    for t in 0..tokens {
                        let at = view.row(b, h, t) * size;
                        let Some(row) = bounce.get(at..at + dim * size) else { continue };
                        // SAFETY: *placed*: the row is in the tensor's view.
                        unsafe { tensor.data.add(at).copy_from_nonoverlapping(row.as_ptr(), row.len()) };
                    }
                }
            }
        }
        Ok(())
    }
}

/// Places the tensors on the device and lists the launches of a run.
fn prepare<P: GpuPlan>(
    plan: &P,
    problem: &P::Problem,
    lengths: <P::Problem as Problem>::Lengths<'_>,
    tensors: &HostTensors<'_, OperandOf<P>>,
    guarded: bool,
    workspace: &mut GpuWorkspace,
) -> Result<Operands<OperandOf<P>, Placed>, DeviceError> {
    let placed = place(plan.gpu(), &problem.tensors_of(tensors.types()), tensors, guarded, workspace)?;
    let at = Operands::from_fn(|operand| placed[operand].device);
    let tensors = DeviceTensors { at, types: tensors.types() };
    workspace.list = plan.launches(problem, lengths, &tensors, workspace)?;
    Ok(placed)
}
