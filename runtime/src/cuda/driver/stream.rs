//! Streams and events, which order the work on a device.

use super::api::{DEFAULT_STREAM, EVENT_NO_TIMING, EVENT_TIMING, STREAM_NON_BLOCKING};
use super::context::{Context, Entered};
use super::module::Function;
use super::resource::{closable, resource};
use crate::error::DeviceError;
use cudarc::driver::sys::{CUevent, CUstream};
use std::ffi::{c_uint, c_void};
use std::ptr;
use std::sync::Arc;

/// The handle of a stream that belongs to the caller or that this library created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawStream(CUstream);

// SAFETY: every thread that makes the context current may use its handles.
unsafe impl Send for RawStream {}
// SAFETY: as for `Send` above.
unsafe impl Sync for RawStream {}

impl RawStream {
    /// Wraps the handle of a caller's stream (`CUstream`).
    ///
    /// # Safety
    /// `handle` is a stream of the driver that has not been destroyed, or null for the default stream. It stays
    /// valid while this value is in use.
    pub unsafe fn new(handle: *mut c_void) -> RawStream {
        RawStream(handle.cast())
    }

    /// Returns the driver's handle.
    pub(super) fn handle(self) -> CUstream {
        self.0
    }

    /// Returns `true` if this is the default stream, which every context has. The default stream is never destroyed.
    pub fn is_default(self) -> bool {
        self.0.addr() <= DEFAULT_STREAM
    }

    /// Returns `true` if the stream belongs to the entered context. For the default stream, this function does not
    /// query the driver, because a query would invalidate captures of other streams.
    ///
    /// # Errors
    /// Returns the error that the driver reports.
    pub fn belongs(self, entered: &Entered<'_>) -> Result<bool, DeviceError> {
        if self.is_default() {
            return Ok(true);
        }
        let mut raw = ptr::null_mut();
        // SAFETY: *handle*, *current*; *room*: the call writes a handle.
        let code = unsafe { (entered.context.api().cuStreamGetCtx)(self.0, &raw mut raw) };
        entered.check("cuStreamGetCtx", code)?;
        Ok(raw == entered.context.raw)
    }

    /// Waits until all work in the stream is done.
    ///
    /// # Errors
    /// Returns the error that the driver reports, including errors of earlier work.
    pub fn synchronize(self, entered: &Entered<'_>) -> Result<(), DeviceError> {
        // SAFETY: *handle*, *current*.
        let code = unsafe { (entered.context.api().cuStreamSynchronize)(self.0) };
        entered.check("cuStreamSynchronize", code)
    }

    /// Enqueues a copy of `bytes` bytes from the host to the device.
    ///
    /// # Safety
    /// The clause *room* holds for `bytes` bytes on the host and on the device. The clause *alive* holds for both.
    ///
    /// # Errors
    /// Returns the error that the driver reports.
    pub unsafe fn copy_in(
        self,
        entered: &Entered<'_>,
        to: u64,
        from: *const u8,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller guarantees the clauses of this function; *handle*, *current*.
        let code = unsafe { (entered.context.api().cuMemcpyHtoDAsync_v2)(to, from.cast(), bytes, self.0) };
        entered.check("cuMemcpyHtoDAsync_v2", code)
    }

    /// Enqueues a copy of `bytes` bytes from the device to the host.
    ///
    /// # Safety
    /// The clause *room* holds for `bytes` bytes on the host and on the device. The clause *alive* holds for both.
    ///
    /// # Errors
    /// Returns the error that the driver reports.
    pub unsafe fn copy_out(
        self,
        entered: &Entered<'_>,
        to: *mut u8,
        from: u64,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller guarantees the clauses of this function; *handle*, *current*.
        let code = unsafe { (entered.context.api().cuMemcpyDtoHAsync_v2)(to.cast(), from, bytes, self.0) };
        entered.check("cuMemcpyDtoHAsync_v2", code)
    }

    /// Enqueues a write of `value` to `words` 32-bit words of device memory.
    ///
    /// # Safety
    /// - *room*: `words` words are writable at `at`.
    /// - *alive*: they stay allocated until the write has finished.
    ///
    /// # Errors
    /// Returns the error that the driver reports.
    pub unsafe fn fill(
        self,
        entered: &Entered<'_>,
        at: u64,
        words: usize,
        value: u32,
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller guarantees *room* and *alive* (clauses); *handle*, *current*.
        let code = unsafe { (entered.context.api().cuMemsetD32Async)(at, value, words, self.0) };
        entered.check("cuMemsetD32Async", code)
    }

    /// Enqueues a kernel. `grid` has the number of blocks, the number of threads of a block, and the bytes of shared memory of a
    /// block in addition to the kernel's own.
    ///
    /// # Safety
    /// `parameter` points to the function's only parameter. The clauses *room* and *alive* hold for every address in
    /// the parameter.
    ///
    /// # Errors
    /// Returns the error that the driver reports.
    pub unsafe fn launch<P>(
        self,
        entered: &Entered<'_>,
        function: &Function,
        [blocks, threads, shared]: [u32; 3],
        parameter: *const P,
    ) -> Result<(), DeviceError> {
        let mut parameters = [parameter.cast_mut().cast::<c_void>()];
        // SAFETY: the caller guarantees the clauses of this function; *handle*, *current*. The driver copies the
        // parameter.
        let code = unsafe {
            (entered.context.api().cuLaunchKernel)(
                function.raw,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                shared,
                self.0,
                parameters.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        entered.check("cuLaunchKernel", code)
    }
}

/// The handle of an event that belongs to the caller or that this library created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawEvent(CUevent);

// SAFETY: every thread that makes the context current may use its handles.
unsafe impl Send for RawEvent {}
// SAFETY: as for `Send` above.
unsafe impl Sync for RawEvent {}

impl RawEvent {
    /// Wraps the handle of a caller's event (`CUevent`).
    ///
    /// # Safety
    /// `handle` is an event of the driver that has not been destroyed. It stays valid while this value is in use.
    pub unsafe fn new(handle: *mut c_void) -> RawEvent {
        RawEvent(handle.cast())
    }

    /// Records the event after all work in the stream, which must be of the event's context.
    ///
    /// # Errors
    /// Returns the error that the driver reports.
    pub fn record(self, entered: &Entered<'_>, stream: RawStream) -> Result<(), DeviceError> {
        // SAFETY: *handle* for the event and the stream, *current*.
        let code = unsafe { (entered.context.api().cuEventRecord)(self.0, stream.0) };
        entered.check("cuEventRecord", code)
    }

    /// Makes `stream` wait for the event before it executes work that is enqueued after this call. The calling thread
    /// does not wait. An event that has not been recorded counts as done. The event may be of another context.
    ///
    /// # Errors
    /// Returns the error that the driver reports.
    pub fn precede(self, entered: &Entered<'_>, stream: RawStream) -> Result<(), DeviceError> {
        // SAFETY: *handle* for the event and the stream, *current*.
        let code = unsafe { (entered.context.api().cuStreamWaitEvent)(stream.0, self.0, 0) };
        entered.check("cuStreamWaitEvent", code)
    }
}

/// A stream created by this library.
#[derive(Debug)]
pub struct Stream {
    context: Arc<Context>,
    raw: Option<CUstream>,
}

impl Stream {
    /// Creates a stream that does not synchronise with the default stream.
    ///
    /// # Errors
    /// Returns the error that the driver reports.
    pub fn new(context: &Arc<Context>) -> Result<Stream, DeviceError> {
        let entered = context.enter()?;
        let mut raw = ptr::null_mut();
        // SAFETY: *current*; *room*: the call writes a handle.
        let code = unsafe { (context.api().cuStreamCreate)(&raw mut raw, STREAM_NON_BLOCKING) };
        entered.check("cuStreamCreate", code)?;
        Ok(Stream { context: context.clone(), raw: Some(raw) })
    }

    /// Returns the handle of the stream.
    pub fn raw(&self) -> RawStream {
        RawStream(self.raw.unwrap_or(ptr::null_mut()))
    }
}

resource!(Stream, cuStreamDestroy_v2, raw);

/// An event, which marks a point in a stream.
#[derive(Debug)]
pub struct Event {
    context: Arc<Context>,
    raw: Option<CUevent>,
}

impl Event {
    /// Creates an event that has not been recorded.
    ///
    /// # Errors
    /// Returns the error that the driver reports.
    pub fn new(context: &Arc<Context>) -> Result<Event, DeviceError> {
        Event::with_flags(context, EVENT_NO_TIMING)
    }

    /// Creates an event that has not been recorded. Recording it also stores the time.
    ///
    /// # Errors
    /// Returns the error that the driver reports.
    pub fn timed(context: &Arc<Context>) -> Result<Event, DeviceError> {
        Event::with_flags(context, EVENT_TIMING)
    }

    fn with_flags(context: &Arc<Context>, flags: c_uint) -> Result<Event, DeviceError> {
        let entered = context.enter()?;
        let mut raw = ptr::null_mut();
        // SAFETY: *current*; *room*: the call writes a handle.
        let code = unsafe { (context.api().cuEventCreate)(&raw mut raw, flags) };
        entered.check("cuEventCreate", code)?;
        Ok(Event { context: context.clone(), raw: Some(raw) })
    }

    fn handle(&self) -> CUevent {
        self.raw.unwrap_or(ptr::null_mut())
    }

    /// Returns the handle of the event.
    pub fn raw(&self) -> RawEvent {
        RawEvent(self.handle())
    }

    /// Records the event; see `RawEvent::record`.
    ///
    /// # Errors
    /// Returns the error that the driver reports.
    pub fn record(&self, entered: &Entered<'_>, stream: RawStream) -> Result<(), DeviceError> {
        self.raw().record(entered, stream)
    }

    /// Makes `stream` wait for the event; see `RawEvent::precede`.
    ///
    /// # Errors
    /// Returns the error that the driver reports.
    pub fn precede(&self, entered: &Entered<'_>, stream: RawStream) -> Result<(), DeviceError> {
        self.raw().precede(entered, stream)
    }

    /// Waits until the work before the event is done. An event that has not been recorded counts as done.
    ///
    /// # Errors
    /// Returns the error that the driver reports.
    pub fn synchronize(&self, entered: &Entered<'_>) -> Result<(), DeviceError> {
        // SAFETY: *handle*, *current*.
        let code = unsafe { (entered.context.api().cuEventSynchronize)(self.handle()) };
        entered.check("cuEventSynchronize", code)
    }

    /// Returns the time on the device between `earlier` and this event, in milliseconds. Both events must be timed and
    /// done.
    ///
    /// # Errors
    /// Returns the error that the driver reports.
    pub fn since(&self, entered: &Entered<'_>, earlier: &Event) -> Result<f32, DeviceError> {
        let mut ms = 0.0;
        // SAFETY: *handle* for both events, *current*; *room*: the call writes a number.
        let code = unsafe {
            (entered.context.api().cuEventElapsedTime)(&raw mut ms, earlier.handle(), self.handle())
        };
        entered.check("cuEventElapsedTime", code)?;
        Ok(ms)
    }
}

resource!(Event, cuEventDestroy_v2, raw);

closable!(Stream, Event);
