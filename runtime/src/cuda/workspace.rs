//! The workspace of runs on a GPU: device memory, host memory and streams.

use super::copies::Copies;
use super::driver::{Capture, Context, DeviceBuffer, Entered, Event, PinnedBuffer, RawStream, Stream};
use super::gpu::Gpu;
use super::kept::{Kept, Key, Moves, Place};
use super::launch::{Beside, Launches, Means};
use super::with_kernels;
use crate::error::{BindError, DeviceError, PlanError};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Alignment in bytes of a workspace in device memory. Every region in the layout of the workspace has this alignment,
/// too.
const ALIGNMENT: usize = 256;

/// Sizes of the workspace that runs of a plan need, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Size of the device memory.
    pub scratch: usize,
    /// Size of the table that the host writes and a run copies to the device. [`GpuWorkspace::open_table`] enlarges the
    /// table if necessary.
    pub table: usize,
    /// Size of the records in device memory that the host reads after a run. If this size is not zero, the workspace
    /// also has a second stream. [`GpuWorkspace::reserve_records`] enlarges the records if necessary.
    pub records: usize,
}

impl Needs {
    /// Returns the maximum of each size over `self` and `other`. A workspace of the resulting sizes is sufficient for
    /// both plans.
    #[must_use]
    pub fn max(self, other: Needs) -> Needs {
        Needs {
            scratch: self.scratch.max(other.scratch),
            table: self.table.max(other.table),
            records: self.records.max(other.records),
        }
    }
}

/// The workspace of runs on one device.
///
/// Fields are dropped in order, so pending work is waited for before the memory that it uses is freed.
#[derive(Debug)]
pub struct GpuWorkspace {
    /// Enqueued work of runs on device tensors that has not been waited for.
    pub pending: Pending,
    /// The device of the engine that created the workspace.
    gpu: Arc<Gpu>,
    pub context: Arc<Context>,
    pub stream: Stream,
    /// Device memory that every run needs. The plan's layout contains the offsets of the regions in this memory. If the
    /// caller provides the memory, the additional memory of some calls is also in it.
    pub scratch: DeviceBuffer,
    /// Additional device memory that some calls need; `None` before the first such call, and always if the workspace is
    /// in the caller's memory.
    extra: Option<DeviceBuffer>,
    /// Device memory for copies of host tensors.
    pub staging: Option<DeviceBuffer>,
    /// Device memory for copies of rarely used host tensors.
    pub apart: Option<DeviceBuffer>,
    /// The table on the host, which a run copies to the device.
    pub table: PinnedBuffer,
    /// Host copy of an output. The rows of the output are copied from it to the caller's tensor.
    pub bounce: Vec<u8>,
    /// Event that is recorded after the copy of the table to the device.
    pub uploaded: Event,
    /// The parts of the workspace that CUDA graphs use.
    pub graph: Graph,
    /// The launches of the last call.
    pub list: Launches,
    /// `true` once the counters that kernels leave at zero ([`Launches::instead`]) are zero.
    counts: AtomicBool,
    /// Its place in `kept`; `None` if it is not kept.
    place: Option<Place>,
    /// Lists of earlier calls that may repeat.
    kept: Kept,
    /// Stream and events of the concurrent kernel, if a plan has one.
    pub beside: Option<Beside>,
    /// Host copy of the records of the last run.
    records: Vec<f32>,
}

/// Allocates `len` zeros in host memory.
fn zeros(len: usize) -> Result<Vec<f32>, DeviceError> {
    let mut values = Vec::new();
    let bytes = len.saturating_mul(size_of::<f32>());
    values.try_reserve_exact(len).map_err(|_| DeviceError::HostMemory { bytes })?;
    values.resize(len, 0.0);
    Ok(values)
}

/// The parts of a workspace that graphs of captured runs use. The library is not notified when the graph of a captured
/// run is destroyed, so these parts count as used until the workspace is dropped.
#[derive(Clone, Copy, Debug, Default)]
pub struct Graph {
    /// Number of leading bytes of the host table that graphs copy to the device. These bytes must keep their values.
    pub table: usize,
    /// `true` if the last copy of the table was captured. Nothing can then wait for this copy.
    pub uploads: bool,
    /// `true` if a run was captured. The memory that its graph uses must then not be replaced.
    any: bool,
}

impl Graph {
    /// Records that a run copies the first `table` bytes of the table, and whether the run is captured.
    pub fn took(&mut self, table: usize, capture: Option<Capture>) {
        let captured = capture.is_some();
        self.any |= captured;
        if table > 0 {
            self.uploads = captured;
        }
        if captured {
            self.table = self.table.max(table);
        }
    }
}

/// State of the last work that a workspace has enqueued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// No work has been enqueued, or all enqueued work has been waited for.
    None,
    /// Work that is pending in this stream.
    Enqueued(RawStream),
    /// Work that became part of the graph of this capture.
    Captured(Capture),
}

/// Enqueued work that has not been waited for. Only streams in the same capture can wait for captured work.
#[derive(Debug)]
pub struct Pending {
    context: Arc<Context>,
    /// Event that is recorded after all of the work.
    done: Event,
    work: Work,
}

impl Pending {
    /// Records an event that marks the end of the work in `stream`. `capture` is the capture of `stream`, if it is
    /// being captured. If `stream` is not being captured and the event cannot be recorded, waits for `stream` instead.
    ///
    /// # Errors
    /// Returns the error that the driver reports.
    pub fn mark(
        &mut self,
        entered: &Entered<'_>,
        stream: RawStream,
        capture: Option<Capture>,
    ) -> Result<(), DeviceError> {
        let marked = self.done.record(entered, stream);
        self.work = match capture {
            _ if marked.is_err() => Work::None,
            None => Work::Enqueued(stream),
            Some(capture) => Work::Captured(capture),
        };
        if marked.is_err() && capture.is_none() {
            // No event marks the end of the work, so the work must not be left pending.
            stream.synchronize(entered)?;
        }
        marked
    }

    /// Makes `stream` wait for the pending work before it executes work that is enqueued after this call. `capture` is
    /// the capture of `stream`, if it is being captured. `stream` does not wait for work of another capture. If `kept`, equal
    /// handles always mean the same stream.
    ///
    /// # Errors
    /// Returns the error that the driver reports.
    pub fn precede(
        &self,
        entered: &Entered<'_>,
        stream: RawStream,
        capture: Option<Capture>,
        kept: bool,
    ) -> Result<(), DeviceError> {
        match self.work {
            // A stream executes its work in order. For the default stream, equal handles always mean the same stream,
            // because the default stream is never destroyed.
            Work::Enqueued(own) if own == stream && (kept || own.is_default()) => Ok(()),
            Work::Enqueued(_) => self.done.precede(entered, stream),
            Work::Captured(own) if capture == Some(own) => self.done.precede(entered, stream),
            Work::None | Work::Captured(_) => Ok(()),
        }
    }

    /// Waits for the pending work, unless it is captured.
    ///
    /// # Errors
    /// Returns the error that the driver reports.
    pub fn wait(&mut self) -> Result<(), DeviceError> {
        if matches!(self.work, Work::Enqueued(_)) {
            self.work = Work::None;
            if self.context.usable().is_err() {
                return Ok(());
            }
            let entered = self.context.enter()?;
            let _relaxed = entered.relax()?;
            self.done.synchronize(&entered)?;
        }
        Ok(())
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Err(e) = self.wait() {
            log::debug!("while waiting for a GPU: {e}");
        }
    }
}

impl GpuWorkspace {
    /// Creates a workspace of the sizes `needs` and allocates its memory.
    ///
    /// # Errors
    /// Returns an error if memory is not available, or if the device fails.
    pub fn new(gpu: &Arc<Gpu>, needs: Needs) -> Result<GpuWorkspace, DeviceError> {
        let context = gpu.context()?;
        let scratch = DeviceBuffer::new(&context, needs.scratch)?;
        GpuWorkspace::of(gpu, &context, scratch, needs)
    }

    /// Creates a workspace in the caller's device memory.
    ///
    /// # Errors
    /// Returns an error if the memory is null, misaligned or too short, or if the device cannot use it. Also returns an
    /// error if the device fails.
    ///
    /// # Safety
    /// - *lent*: the clause *lent* of [`DeviceBuffer::lent`] holds for this memory.
    pub unsafe fn lent(
        gpu: &Arc<Gpu>,
        needs: Needs,
        address: u64,
        bytes: usize,
    ) -> Result<GpuWorkspace, PlanError> {
        let needed = needs.scratch;
        if address == 0 && (bytes > 0 || needed > 0) {
            return Err(PlanError::Null { found: bytes, needed });
        }
        if bytes > isize::MAX as usize || address.checked_add(bytes as u64).is_none() {
            return Err(PlanError::Extent { found: bytes, address, needed });
        }
        if bytes < needed {
            return Err(PlanError::Room { found: bytes, needed });
        }
        if !address.is_multiple_of(ALIGNMENT as u64) {
            return Err(PlanError::Alignment { address, alignment: ALIGNMENT });
        }
        let context = gpu.context()?;
        let at = match bytes {
            0 => Ok(address),
            _ => context.enter()?.usable_at(address, bytes),
        };
        let at = at.map_err(|found| match found {
            Some(found) => PlanError::DeviceShort { found, given: bytes },
            None => PlanError::Address { address },
        })?;
        // SAFETY: the clause *lent* is the same, and the driver reports that the context can use the bytes.
        let scratch = unsafe { DeviceBuffer::lent(&context, at, bytes) };
        Ok(GpuWorkspace::of(gpu, &context, scratch, needs)?)
    }

    /// Creates a workspace with the scratch memory `scratch`, and with new streams, events, table and records of the
    /// sizes in `needs`.
    fn of(
        gpu: &Arc<Gpu>,
        context: &Arc<Context>,
        scratch: DeviceBuffer,
        needs: Needs,
    ) -> Result<GpuWorkspace, DeviceError> {
        let beside = if needs.records > 0 { Some(Beside::new(context)?) } else { None };
        Ok(GpuWorkspace {
            beside,
            records: zeros(needs.records / size_of::<f32>())?,
            gpu: gpu.clone(),
            stream: Stream::new(context)?,
            scratch,
            extra: None,
            staging: None,
            apart: None,
            table: PinnedBuffer::new(context, needs.table)?,
            bounce: Vec::new(),
            uploaded: Event::new(context)?,
            graph: Graph::default(),
            list: Launches::default(),
            counts: AtomicBool::new(false),
            place: None,
            kept: Kept::default(),
            pending: Pending { context: context.clone(), done: Event::new(context)?, work: Work::None },
            context: context.clone(),
        })
    }

    /// Ends the last call. Returns its list, whose memory may be used again, or an empty list if the call's list is kept.
    fn taken_list(&mut self) -> Launches {
        let list = mem::take(&mut self.list);
        match self.place.take() {
            Some(place) => {
                self.kept.put(place, list);
                Launches::default()
            }
            None => list,
        }
    }

    /// Returns an empty list of launches, in the memory of the last call's list if this is not kept.
    pub fn new_list(&mut self) -> Launches {
        let mut list = self.taken_list();
        list.clear();
        list
    }

    /// Sets the list to the one that is kept under `key`. Returns `false` if no list is kept.
    pub fn again(&mut self, key: Key<'_>) -> bool {
        self.list = self.taken_list();
        let Some((place, list)) = self.kept.take(key) else { return false };
        (self.list, self.place) = (list, Some(place));
        true
    }

    /// Keeps the list under `key`, if it needs no table and no second stream. `moves` are its words that depend on addresses.
    pub fn keep(&mut self, key: Key<'_>, moves: Option<Moves>) {
        if self.list.is_plain() {
            self.place = self.kept.reserve(key, moves);
        }
    }

    /// Returns what launches use besides their parameters.
    pub fn means(&self) -> Means<'_> {
        Means {
            table: self.table.data(),
            uploaded: &self.uploaded,
            beside: self.beside.as_ref(),
            counts: &self.counts,
        }
    }

    /// Returns the size of the records in bytes.
    fn record_bytes(&self) -> usize {
        self.records.len() * size_of::<f32>()
    }

    /// Allocates the memory for copies of the host tensors that most calls have, unless this memory exists already. The
    /// memory consists of host memory for tensors that are copied back row by row. If `staged` is set, it also contains
    /// device memory.
    ///
    /// # Errors
    /// Returns an error if memory is not available.
    pub fn reserve_copies(&mut self, copies: &Copies, staged: bool) -> Result<(), DeviceError> {
        if staged {
            reserve(&self.context, &mut self.staging, copies.staging)?;
        }
        let (bounce, bytes) = (&mut self.bounce, copies.bounce);
        if bounce.len() < bytes {
            bounce.try_reserve_exact(bytes - bounce.len()).map_err(|_| DeviceError::HostMemory { bytes })?;
            bounce.resize(bytes, 0);
        }
        Ok(())
    }

    /// Allocates device memory for copies of rarely used host tensors, unless this memory exists already.
    ///
    /// # Errors
    /// Returns an error if memory is not available.
    pub fn reserve_apart(&mut self, copies: &Copies) -> Result<(), DeviceError> {
        reserve(&self.context, &mut self.apart, copies.apart)
    }

    /// If the context of the workspace was lost, replaces the workspace by a new one in a new context. The new
    /// workspace has the same size, so it is valid for the same plans, but it contains no tensors. Returns `true` if
    /// the workspace was replaced. A workspace in the caller's memory is not replaced.
    ///
    /// # Errors
    /// Returns an error if a context is lost a second time, if the lost memory was the caller's, if memory is not
    /// available, or if the device fails.
    pub fn revive(&mut self) -> Result<bool, DeviceError> {
        let lost = self.context.is_lost();
        if lost {
            if self.scratch.is_lent() {
                return Err(DeviceError::LostWorkspace);
            }
            let (scratch, table, records) = (self.scratch.bytes(), self.table.bytes(), self.record_bytes());
            *self = GpuWorkspace::new(&self.gpu, Needs { scratch, table, records })?;
        }
        Ok(lost)
    }

    /// Checks that the workspace belongs to the engine of `gpu` and has at least `needs.scratch` bytes of device
    /// memory. A workspace in the caller's memory must also have at least `room` bytes.
    ///
    /// # Errors
    /// Returns an error if the workspace belongs to another engine, or is too small.
    pub fn check(&self, gpu: &Arc<Gpu>, needs: &Needs, room: usize) -> Result<(), BindError> {
        with_kernels();
        if !Arc::ptr_eq(&self.gpu, gpu) {
            return Err(BindError::Foreign);
        }
        let (found, needed) = (self.scratch.bytes(), needs.scratch);
        if found < needed {
            return Err(BindError::Room { found, needed });
        }
        if self.scratch.is_lent() && found < room {
            return Err(BindError::StateRoom { found, needed: room });
        }
        Ok(())
    }

    /// Prepares the host table for writing `bytes` bytes and returns its address. If an earlier run is still copying
    /// the table, waits until the copy is done. A copy that is part of a graph is not waited for. The caller must not
    /// change bytes that graphs copy ([`Graph::table`]).
    ///
    /// # Errors
    /// Returns an error if the device fails, if memory is not available, or if the table is too small and graphs copy
    /// it.
    pub fn open_table(&mut self, bytes: usize) -> Result<*mut u8, DeviceError> {
        if !self.graph.uploads {
            let entered = self.context.enter()?;
            let _relaxed = entered.relax()?;
            self.uploaded.synchronize(&entered)?;
        }
        if self.table.bytes() < bytes {
            if self.graph.table > 0 {
                return Err(DeviceError::Captured);
            }
            self.table = PinnedBuffer::new(&self.context, bytes)?;
        }
        Ok(self.table.data())
    }

    /// Allocates host memory for `bytes` bytes of records, and the second stream, unless they exist.
    ///
    /// # Errors
    /// Returns an error if memory is not available, or if the device fails.
    pub fn reserve_records(&mut self, bytes: usize) -> Result<(), DeviceError> {
        if bytes > 0 && self.beside.is_none() {
            self.beside = Some(Beside::new(&self.context)?);
        }
        self.reserve_fetched(bytes)
    }

    /// Allocates host memory for `bytes` bytes of records, unless it exists.
    ///
    /// # Errors
    /// Returns an error if memory is not available.
    pub fn reserve_fetched(&mut self, bytes: usize) -> Result<(), DeviceError> {
        if self.record_bytes() < bytes {
            self.records = zeros(bytes / size_of::<f32>())?;
        }
        Ok(())
    }

    /// Allocates the additional memory that some calls need, unless it exists, and returns its address. If the existing
    /// memory is too small, waits for pending work and then replaces the memory. If the workspace is in the caller's
    /// memory, allocates nothing: the additional memory begins at offset `after`, and [`GpuWorkspace::check`] has
    /// checked the size.
    ///
    /// # Errors
    /// Returns an error if memory is not available, or if the device fails.
    pub fn reserve_extra(&mut self, after: usize, bytes: usize) -> Result<u64, DeviceError> {
        if self.scratch.is_lent() {
            return Ok(self.scratch.address() + after as u64);
        }
        if self.extra.as_ref().is_some_and(|extra| extra.bytes() < bytes) {
            if self.graph.any {
                return Err(DeviceError::Captured);
            }
            self.pending.wait()?;
            self.kept.clear();
        }
        reserve(&self.context, &mut self.extra, bytes)?;
        Ok(self.extra.as_ref().map_or(0, DeviceBuffer::address))
    }

    /// Waits for pending runs. Then copies `len` f32 values of records to the host. They begin at byte `at` of the
    /// scratch memory.
    ///
    /// # Errors
    /// Returns an error if the device fails, or if the workspace no longer contains the records of the run.
    pub fn fetch(&mut self, at: usize, len: usize) -> Result<&mut [f32], DeviceError> {
        self.context.usable()?;
        self.pending.wait()?;
        let bytes = len.saturating_mul(size_of::<f32>());
        let fits = at.checked_add(bytes).is_some_and(|end| end <= self.scratch.bytes());
        let Some(to) = self.records.get_mut(..len).filter(|_| fits) else {
            return Err(DeviceError::LostWorkspace);
        };
        let entered = self.context.enter()?;
        let (stream, data) = (self.stream.raw(), to.as_mut_ptr().cast());
        // SAFETY: *room*: both memories have the bytes. *alive*: the copy is waited for.
        let copied = unsafe { stream.copy_out(&entered, data, self.scratch.address() + at as u64, bytes) };
        let waited = stream.synchronize(&entered);
        copied?;
        waited?;
        Ok(to)
    }

    /// Frees the copies of host tensors on the device.
    ///
    /// # Errors
    /// Returns the first error that the driver reports.
    pub fn free_copies(&mut self) -> Result<(), DeviceError> {
        let copies = [self.staging.take(), self.apart.take()];
        let closed = copies.map(|copy| copy.map_or(Ok(()), DeviceBuffer::close));
        closed.into_iter().collect()
    }

    /// Waits for pending work and frees all memory, streams and events.
    ///
    /// # Errors
    /// Returns the first error that the driver reports. Everything else is freed even after an error.
    pub fn close(self) -> Result<(), DeviceError> {
        let GpuWorkspace {
            mut pending, stream, scratch, extra, staging, apart, table, uploaded, beside, ..
        } = self;
        let mut closed = vec![pending.wait(), scratch.close(), table.close()];
        closed.extend([extra, staging, apart].into_iter().flatten().map(DeviceBuffer::close));
        closed.extend([uploaded.close(), stream.close()]);
        if let Some(Beside { stream, inputs, done }) = beside {
            closed.extend([stream.close(), inputs.close(), done.close()]);
        }
        closed.into_iter().collect()
    }
}

fn reserve(
    context: &Arc<Context>,
    buffer: &mut Option<DeviceBuffer>,
    bytes: usize,
) -> Result<(), DeviceError> {
    if buffer.as_ref().is_none_or(|b| b.bytes() < bytes) {
        // A buffer that is too small is freed first, so that its memory can be reused.
        if let Some(small) = buffer.take() {
            small.close()?;
        }
        *buffer = Some(DeviceBuffer::new(context, bytes)?);
    }
    Ok(())
}
