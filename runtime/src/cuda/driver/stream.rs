//! Streams and events: the order of work on a device.

use super::api::{EVENT_NO_TIMING, STREAM_NON_BLOCKING};
use super::context::{Context, Entered};
use super::module::Function;
use super::resource::{closable, resource};
use crate::error::DeviceError;
use cudarc::driver::sys::{CUevent, CUstream};
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

/// A stream that the driver knows by this handle: the caller's, or one of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawStream(CUstream);

// SAFETY: handles may be used by every thread that makes the context current.
unsafe impl Send for RawStream {}
// SAFETY: as above.
unsafe impl Sync for RawStream {}

impl RawStream {
    /// A caller's stream.
    ///
    /// # Safety
    /// It is a stream of the driver that was not destroyed, or null for the default stream.
    pub unsafe fn new(handle: *mut c_void) -> RawStream {
        RawStream(handle.cast())
    }

    /// Whether it belongs to the context.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn belongs(self, entered: &Entered<'_>) -> Result<bool, DeviceError> {
        let mut raw = ptr::null_mut();
        // SAFETY: *handle*, *current*, *room*: a handle.
        let code = unsafe { (entered.context.api().cuStreamGetCtx)(self.0, &raw mut raw) };
        entered.check("cuStreamGetCtx", code)?;
        Ok(raw == entered.context.raw)
    }

    /// Waits until everything in it is done.
    ///
    /// # Errors
    /// What the driver reports, of this call or of what ran.
    pub fn synchronize(self, entered: &Entered<'_>) -> Result<(), DeviceError> {
        // SAFETY: *handle*, *current*.
        let code = unsafe { (entered.context.api().cuStreamSynchronize)(self.0) };
        entered.check("cuStreamSynchronize", code)
    }

    /// Enqueues a copy to the device.
    ///
    /// # Safety
    /// *room* for `bytes` on both sides, *alive*.
    ///
    /// # Errors
    /// What the driver reports.
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
        // SAFETY: the clauses of this function; *handle*, *current*.
        let code = unsafe { (entered.context.api().cuMemcpyHtoDAsync_v2)(to, from.cast(), bytes, self.0) };
        entered.check("cuMemcpyHtoDAsync_v2", code)
    }

    /// Enqueues a copy from the device.
    ///
    /// # Safety
    /// *room* for `bytes` on both sides, *alive*.
    ///
    /// # Errors
    /// What the driver reports.
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
        // SAFETY: the clauses of this function; *handle*, *current*.
        let code = unsafe { (entered.context.api().cuMemcpyDtoHAsync_v2)(to.cast(), from, bytes, self.0) };
        entered.check("cuMemcpyDtoHAsync_v2", code)
    }

    /// Enqueues a kernel on `blocks` blocks of `threads` threads.
    ///
    /// # Safety
    /// The function's only parameter is a `P`; *room* and *alive* for every address in it.
    ///
    /// # Errors
    /// What the driver reports.
    pub unsafe fn launch<P>(
        self,
        entered: &Entered<'_>,
        function: &Function,
        blocks: u32,
        threads: u32,
        parameter: &P,
    ) -> Result<(), DeviceError> {
        let mut parameters = [ptr::from_ref(parameter).cast_mut().cast::<c_void>()];
        // SAFETY: the clauses of this function; *handle*, *current*. The driver copies the parameter.
        let code = unsafe {
            (entered.context.api().cuLaunchKernel)(
                function.raw,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                self.0,
                parameters.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        entered.check("cuLaunchKernel", code)
    }
}

/// A stream of ours.
#[derive(Debug)]
pub struct Stream {
    context: Arc<Context>,
    raw: Option<CUstream>,
}

impl Stream {
    /// A stream that does not wait for the default stream.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn new(context: &Arc<Context>) -> Result<Stream, DeviceError> {
        let entered = context.enter()?;
        let mut raw = ptr::null_mut();
        // SAFETY: *current*, *room*: a handle.
        let code = unsafe { (context.api().cuStreamCreate)(&raw mut raw, STREAM_NON_BLOCKING) };
        entered.check("cuStreamCreate", code)?;
        Ok(Stream { context: context.clone(), raw: Some(raw) })
    }

    /// Its handle.
    pub fn raw(&self) -> RawStream {
        RawStream(self.raw.unwrap_or(ptr::null_mut()))
    }
}

resource!(Stream, cuStreamDestroy_v2, raw);

/// A mark in a stream.
#[derive(Debug)]
pub struct Event {
    context: Arc<Context>,
    raw: Option<CUevent>,
}

impl Event {
    /// A mark that nothing has reached yet.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn new(context: &Arc<Context>) -> Result<Event, DeviceError> {
        let entered = context.enter()?;
        let mut raw = ptr::null_mut();
        // SAFETY: *current*, *room*: a handle.
        let code = unsafe { (context.api().cuEventCreate)(&raw mut raw, EVENT_NO_TIMING) };
        entered.check("cuEventCreate", code)?;
        Ok(Event { context: context.clone(), raw: Some(raw) })
    }

    fn handle(&self) -> CUevent {
        self.raw.unwrap_or(ptr::null_mut())
    }

    /// Marks the end of what is in the stream.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn record(&self, entered: &Entered<'_>, stream: RawStream) -> Result<(), DeviceError> {
        // SAFETY: *handle* of both, *current*.
        let code = unsafe { (entered.context.api().cuEventRecord)(self.handle(), stream.0) };
        entered.check("cuEventRecord", code)
    }

    /// Waits until what it marks is done. An event that was not recorded is done.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn synchronize(&self, entered: &Entered<'_>) -> Result<(), DeviceError> {
        // SAFETY: *handle*, *current*.
        let code = unsafe { (entered.context.api().cuEventSynchronize)(self.handle()) };
        entered.check("cuEventSynchronize", code)
    }
}

resource!(Event, cuEventDestroy_v2, raw);

closable!(Stream, Event);
