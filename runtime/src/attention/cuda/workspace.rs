//! The memory in which the runs of a plan work on a GPU.

use super::plan::GpuPlan;
use crate::cuda::driver::{Capture, Context, DeviceBuffer, Entered, Event, PinnedBuffer, RawStream, Stream};
use crate::cuda::gpu::Gpu;
use crate::error::{BindError, DeviceError, PlanError};
use elsa_core::attention::measured::larger;
use elsa_core::attention::plan::SEQUENCE_BYTES;
use elsa_core::attention::{Operand, Operands, Problem};
use elsa_kernels::cuda::attention::Sequence;
use std::sync::Arc;

const _: () = assert!(size_of::<Sequence>() == SEQUENCE_BYTES);

/// Alignment of a workspace in device memory, which the offsets of its layout keep.
const ALIGNMENT: usize = 256;

/// The layout of device memory that holds copies of host tensors. States have a buffer of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Staging {
    /// Offset of each tensor, a multiple of 256. Absent tensors take no bytes.
    pub at: Operands<usize>,
    /// Total number of bytes.
    pub bytes: usize,
}

impl Staging {
    /// Lays out the staging. Returns `None` if its size overflows.
    pub fn of(problem: &Problem) -> Option<Staging> {
        let mut bytes = 0usize;
        let staged = |operand: &Operand| !operand.is_state();
        let mut at = Operands::default();
        for operand in Operand::ALL.into_iter().filter(staged) {
            at[operand] = bytes;
            let memory = problem.memory(operand).map_or(0, |memory| memory.bytes());
            bytes = bytes.checked_add(memory)?.checked_next_multiple_of(256)?;
        }
        Some(Staging { at, bytes })
    }

    /// Size of the staging in bytes; `usize::MAX` if it overflows.
    pub fn bytes_of(problem: &Problem) -> usize {
        Staging::of(problem).map_or(usize::MAX, |staging| staging.bytes)
    }
}

impl GpuPlan {
    /// Makes a workspace of the caller's device memory.
    ///
    /// # Errors
    /// Returns an error if the memory is null, misaligned, too short, or not memory that the device can use, or if the
    /// device fails.
    ///
    /// # Safety
    /// - *lent*, of [`DeviceBuffer::lent`].
    pub unsafe fn workspace_on_device(&self, address: u64, bytes: usize) -> Result<GpuWorkspace, PlanError> {
        let needed = self.layout.bytes;
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
        let context = self.gpu.context()?;
        let at = match bytes {
            0 => Ok(address),
            _ => context.enter()?.usable_at(address, bytes),
        };
        let at = at.map_err(|found| match found {
            Some(found) => PlanError::DeviceShort { found, given: bytes },
            None => PlanError::Address { address },
        })?;
        // SAFETY: *lent*; the context can use the bytes, as the driver says.
        let scratch = unsafe { DeviceBuffer::lent(&context, at, bytes) };
        Ok(GpuWorkspace::new(
            &self.gpu,
            &context,
            scratch,
            self.layout.sequences.len,
            self.layout.records.len,
        )?)
    }
}

/// The memory in which the runs of a plan work, on one device.
///
/// Fields are dropped in order, so pending work is waited for before its memory is freed.
#[derive(Debug)]
pub struct GpuWorkspace {
    /// Work that runs on device tensors have enqueued.
    pub pending: Pending,
    /// The device of the engine that created the workspace.
    gpu: Arc<Gpu>,
    pub context: Arc<Context>,
    pub stream: Stream,
    /// Partial states and the table of sequences, at the offsets of the plan's layout. If it is lent, partial states of
    /// undivided keys follow them.
    pub scratch: DeviceBuffer,
    /// Partial states of undivided keys, for calls that output states, unless the scratch is lent.
    pub state_partials: Option<DeviceBuffer>,
    /// Copies of host tensors on the device.
    pub staging: Option<DeviceBuffer>,
    /// States on the device, before they are copied to the host.
    pub states: Option<DeviceBuffer>,
    /// The table of sequences on the host.
    pub table: PinnedBuffer,
    /// Host copy of an output with gaps, before its rows are copied to the caller.
    pub bounce: Vec<u8>,
    /// Recorded after the copy of the table to the device.
    pub uploaded: Event,
    /// What graphs use of it.
    pub graph: Graph,
    /// The stream of the kernel that measures, if a plan certifies.
    pub beside: Option<Beside>,
    /// Records on the host.
    records: Vec<f32>,
}

/// A stream for what runs beside the attention.
#[derive(Debug)]
pub struct Beside {
    pub stream: Stream,
    /// Recorded when the inputs of a run are there.
    pub inputs: Event,
    /// Recorded after the work.
    pub done: Event,
}

impl Beside {
    fn new(context: &Arc<Context>) -> Result<Beside, DeviceError> {
        let (inputs, done) = (Event::new(context)?, Event::new(context)?);
        Ok(Beside { stream: Stream::new(context)?, inputs, done })
    }
}

/// Zeros in host memory.
fn zeros(len: usize) -> Result<Vec<f32>, DeviceError> {
    let mut values = Vec::new();
    let bytes = len.saturating_mul(size_of::<f32>());
    values.try_reserve_exact(len).map_err(|_| DeviceError::HostMemory { bytes })?;
    values.resize(len, 0.0);
    Ok(values)
}

/// What graphs use of a workspace in which runs were captured. Nobody says when such a graph is destroyed, so this stays
/// for as long as the workspace.
#[derive(Clone, Copy, Debug, Default)]
pub struct Graph {
    /// Entries of the table of sequences that a graph copies to the device from host memory, which keep their values.
    pub entries: usize,
    /// Whether the last copy of the table was captured, so that nothing can wait for it.
    pub uploads: bool,
    /// Whether a run was captured, whose memory is not replaced.
    any: bool,
}

impl Graph {
    /// Remembers a run, whose table has so many entries.
    pub fn took(&mut self, entries: usize, capture: Option<Capture>) {
        let captured = capture.is_some();
        self.any |= captured;
        if entries > 0 {
            self.uploads = captured;
        }
        if captured {
            self.entries = self.entries.max(entries);
        }
    }
}

/// Work that has been enqueued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// None, or it has been waited for.
    None,
    /// It is pending in a stream.
    Enqueued,
    /// It is a part of a graph.
    Captured(Capture),
}

/// Enqueued work that has not been waited for. That of a graph is waited for within its capture alone.
#[derive(Debug)]
pub struct Pending {
    context: Arc<Context>,
    /// Recorded after all of the work.
    done: Event,
    work: Work,
}

impl Pending {
    /// Marks the end of the work in the stream, which `capture` captures. If that fails, waits for the stream.
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
            None => Work::Enqueued,
            Some(capture) => Work::Captured(capture),
        };
        if marked.is_err() && capture.is_none() {
            // Nothing marks the end of the work, so it must not be left pending.
            stream.synchronize(entered)?;
        }
        marked
    }

    /// Has the stream, which `capture` captures, wait for the pending work before it does anything that is enqueued from
    /// here on. Work of another capture is not waited for.
    ///
    /// # Errors
    /// Returns the error that the driver reports.
    pub fn precede(
        &self,
        entered: &Entered<'_>,
        stream: RawStream,
        capture: Option<Capture>,
    ) -> Result<(), DeviceError> {
        match self.work {
            Work::Enqueued => self.done.precede(entered, stream),
            Work::Captured(own) if capture == Some(own) => self.done.precede(entered, stream),
            Work::None | Work::Captured(_) => Ok(()),
        }
    }

    /// Waits for the pending work, unless it is captured.
    ///
    /// # Errors
    /// Returns the error that the driver reports.
    pub fn wait(&mut self) -> Result<(), DeviceError> {
        if self.work == Work::Enqueued {
            self.work = Work::None;
            if self.context.usable().is_err() {
                return Ok(());
            }
            let entered = self.context.enter()?;
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
    /// Allocates what runs of each of the plans need, including staging, unless the device may use host memory in place.
    /// The plans are those of `gpu`.
    ///
    /// # Errors
    /// Returns an error if memory is not available, or if the device fails.
    pub fn of<'a>(
        gpu: &Arc<Gpu>,
        plans: impl Iterator<Item = (&'a GpuPlan, &'a Problem)> + Clone,
    ) -> Result<GpuWorkspace, DeviceError> {
        let context = gpu.context()?;
        let most =
            |bytes: fn(&GpuPlan) -> usize| plans.clone().map(|(plan, _)| bytes(plan)).max().unwrap_or(0);
        let scratch = DeviceBuffer::new(&context, most(|plan| plan.layout.bytes))?;
        let table = most(|plan| plan.layout.sequences.len);
        let records = most(|plan| plan.layout.records.len);
        let mut workspace = GpuWorkspace::new(gpu, &context, scratch, table, records)?;
        for (_, problem) in plans {
            workspace.reserve_bounce(problem)?;
            if !gpu.profile().integrated {
                workspace.reserve_staging(problem)?;
            }
        }
        Ok(workspace)
    }

    /// Creates what every run needs beside the scratch, with `table` bytes for the table of sequences, and what runs that
    /// certify need if `records` bytes of records are not zero.
    fn new(
        gpu: &Arc<Gpu>,
        context: &Arc<Context>,
        scratch: DeviceBuffer,
        table: usize,
        records: usize,
    ) -> Result<GpuWorkspace, DeviceError> {
        let beside = if records > 0 { Some(Beside::new(context)?) } else { None };
        Ok(GpuWorkspace {
            beside,
            records: zeros(records / size_of::<f32>())?,
            gpu: gpu.clone(),
            stream: Stream::new(context)?,
            scratch,
            state_partials: None,
            staging: None,
            states: None,
            table: PinnedBuffer::new(context, table)?,
            bounce: Vec::new(),
            uploaded: Event::new(context)?,
            graph: Graph::default(),
            pending: Pending { context: context.clone(), done: Event::new(context)?, work: Work::None },
            context: context.clone(),
        })
    }

    /// Allocates staging for host tensors, unless it is allocated already.
    ///
    /// # Errors
    /// Returns an error if memory is not available.
    pub fn reserve_staging(&mut self, problem: &Problem) -> Result<(), DeviceError> {
        reserve(&self.context, &mut self.staging, Staging::bytes_of(problem))
    }

    /// Replaces a workspace whose context was lost by one in a new context. It is as large as the lost one, so that
    /// every plan that it served can use it. Returns whether it was replaced; it then holds no tensors. Memory of the
    /// caller's is not replaced.
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
            let context = self.gpu.context()?;
            let scratch = DeviceBuffer::new(&context, self.scratch.bytes())?;
            let records = self.records.len() * size_of::<f32>();
            *self = GpuWorkspace::new(&self.gpu, &context, scratch, self.table.bytes(), records)?;
        }
        Ok(lost)
    }

    /// Checks that the workspace is large enough for the plan and belongs to the plan's engine. `partial` says whether
    /// the call needs partial states, as in [`GpuPlan::functions`]; memory of the caller's must have room for them.
    ///
    /// # Errors
    /// Returns an error if the workspace belongs to another engine, or is too small.
    pub fn check(&self, plan: &GpuPlan, problem: &Problem, partial: bool) -> Result<(), BindError> {
        if !Arc::ptr_eq(&self.gpu, &plan.gpu) {
            return Err(BindError::Foreign);
        }
        let (found, needed) = (self.scratch.bytes(), plan.layout.bytes);
        let records = self.records.len() * size_of::<f32>();
        if found < needed
            || self.table.bytes() < plan.layout.sequences.len
            || records < plan.layout.records.len
        {
            let sequences = problem.sequences();
            return Err(BindError::Workspace { found, needed, found_sequences: 0, sequences });
        }
        if partial && self.scratch.is_lent() {
            let needed = plan.bytes_with_states();
            if found < needed {
                return Err(BindError::StateRoom { found, needed });
            }
        }
        Ok(())
    }

    /// Allocates the host copy of outputs with gaps that a call writes whole, unless it is allocated already.
    ///
    /// # Errors
    /// Returns an error if memory is not available.
    pub fn reserve_bounce(&mut self, problem: &Problem) -> Result<(), DeviceError> {
        let bounce = &mut self.bounce;
        let copied = |operand: &Operand| operand.is_written() && problem.kept(*operand).is_none();
        let with_gaps = Operand::ALL.into_iter().filter(copied);
        let memories = with_gaps.filter_map(|operand| problem.memory(operand));
        let bytes = memories.filter(|memory| memory.gaps().is_some()).map(|memory| memory.bytes()).max();
        let bytes = bytes.unwrap_or(0);
        if bounce.len() < bytes {
            bounce.try_reserve_exact(bytes - bounce.len()).map_err(|_| DeviceError::HostMemory { bytes })?;
            bounce.resize(bytes, 0);
        }
        Ok(())
    }

    /// Allocates states on the device, unless they are allocated already: references `[rows]`, sums `[rows]` and
    /// weighted sums `[rows][value_dim]`.
    ///
    /// # Errors
    /// Returns an error if memory is not available.
    pub fn reserve_states(&mut self, problem: &Problem) -> Result<(), DeviceError> {
        let bytes = problem.rows().saturating_mul(problem.value_dim() + 2).saturating_mul(4);
        reserve(&self.context, &mut self.states, bytes)
    }

    /// Allocates partial states of undivided keys, unless they are allocated already. Waits for pending work if that
    /// may use smaller ones. In memory of the caller's they begin at offset `after`, where [`GpuWorkspace::check`] has
    /// found room for them. Returns their address.
    ///
    /// # Errors
    /// Returns an error if memory is not available, or if the device fails.
    pub fn reserve_state_partials(&mut self, after: usize, bytes: usize) -> Result<u64, DeviceError> {
        if self.scratch.is_lent() {
            return Ok(self.scratch.address() + after as u64);
        }
        if self.state_partials.as_ref().is_some_and(|partials| partials.bytes() < bytes) {
            if self.graph.any {
                return Err(DeviceError::Captured);
            }
            self.pending.wait()?;
        }
        reserve(&self.context, &mut self.state_partials, bytes)?;
        Ok(self.state_partials.as_ref().map_or(0, DeviceBuffer::address))
    }

    /// Waits for pending runs and copies the records of the last one to the host, the first of `count` records of `stride`
    /// numbers at `at`, where they are joined. Returns that of the call.
    ///
    /// # Errors
    /// Returns an error if the device fails, or if its memory is no longer that of the run.
    pub fn fetch_records(&mut self, at: usize, count: usize, stride: usize) -> Result<&[f32], DeviceError> {
        self.context.usable()?;
        self.pending.wait()?;
        let bytes = count.saturating_mul(stride).saturating_mul(size_of::<f32>());
        let fits = at.checked_add(bytes).is_some_and(|end| end <= self.scratch.bytes());
        if !fits || bytes > self.records.len() * size_of::<f32>() {
            return Err(DeviceError::LostWorkspace);
        }
        let entered = self.context.enter()?;
        let (stream, to) = (self.stream.raw(), self.records.as_mut_ptr().cast());
        // SAFETY: *room*: both sides have the bytes. *alive*: the copy is waited for.
        let copied = unsafe { stream.copy_out(&entered, to, self.scratch.address() + at as u64, bytes) };
        let waited = stream.synchronize(&entered);
        copied?;
        waited?;
        let (first, rest) = self.records.split_at_mut(stride);
        for record in rest.chunks_exact(stride).take(count.saturating_sub(1)) {
            first.iter_mut().zip(record).for_each(|(a, b)| *a = larger(*a, *b));
        }
        Ok(first)
    }

    /// Frees the copies of host tensors on the device.
    ///
    /// # Errors
    /// Returns the first error that the driver reports.
    pub fn free_copies(&mut self) -> Result<(), DeviceError> {
        let copies = [self.staging.take(), self.states.take()];
        let closed = copies.map(|copy| copy.map_or(Ok(()), DeviceBuffer::close));
        closed.into_iter().collect()
    }

    /// Waits for pending work and frees everything.
    ///
    /// # Errors
    /// Returns the first error that the driver reports. The rest is freed nevertheless.
    pub fn close(self) -> Result<(), DeviceError> {
        let GpuWorkspace {
            mut pending,
            stream,
            scratch,
            state_partials,
            staging,
            states,
            table,
            uploaded,
            beside,
            ..
        } = self;
        let mut closed = vec![pending.wait(), scratch.close(), table.close()];
        closed.extend([state_partials, staging, states].into_iter().flatten().map(DeviceBuffer::close));
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

#[cfg(test)]
mod tests {
    use super::*;
    use elsa_core::attention::{BiasView, MaskKind, MaskView, Spec, TableView};
    use elsa_core::dtype::DType;
    use elsa_core::view::{Layout, View};

    #[test]
    fn staging_holds_every_tensor_apart() {
        let view = |n, d| View::dense("x", Layout::Bhnd, &[2, 3, n, d], None).unwrap();
        let mut spec = Spec::new(DType::F16, view(5, 8), view(7, 8), view(7, 4), view(5, 4));
        (spec.past_key, spec.past_value) = (Some(view(2, 8)), Some(view(2, 4)));
        (spec.present_key, spec.present_value) = (Some(view(9, 8)), Some(view(9, 4)));
        spec.mask = Some(MaskView::dense(MaskKind::Additive(DType::F32), &[5, 9]).unwrap());
        let table = TableView { dtype: DType::Bf16, entries: 11, heads: 3, indexed: true };
        spec.bias = Some(BiasView::Table(table));
        let s = Staging::of(&spec.check().unwrap()).unwrap();
        let staged = Operand::ALL.into_iter().filter(|operand| !operand.is_state());
        let starts: Vec<usize> = staged.map(|operand| s.at[operand]).chain([s.bytes]).collect();
        let bytes = [
            2 * 3 * 5 * 8 * 2,
            2 * 3 * 7 * 8 * 2,
            2 * 3 * 7 * 4 * 2,
            2 * 3 * 2 * 8 * 2,
            2 * 3 * 2 * 4 * 2,
            5 * 9 * 4,
            11 * 3 * 2,
            5 * 9 * 8,
            2 * 3 * 5 * 4 * 2,
            2 * 3 * 9 * 8 * 2,
            2 * 3 * 9 * 4 * 2,
            2 * 3 * 5 * 4,
        ];
        for (pair, bytes) in starts.windows(2).zip(bytes) {
            assert!(pair[0].is_multiple_of(256) && pair[1] >= pair[0] + bytes, "{s:?}");
            assert!(pair[1] < pair[0] + bytes + 256, "{s:?}");
        }
    }
}
