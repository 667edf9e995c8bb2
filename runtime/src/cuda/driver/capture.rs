//! Streams that are captured as CUDA graphs.
//!
//! A captured stream executes nothing: enqueued work becomes part of a graph, which the owner of the stream launches
//! later, any number of times. The driver imposes three rules on a library that enqueues work in a captured stream.
//!
//! 1. A captured stream cannot wait for work outside the capture, and nothing outside the capture can wait for an event
//!    recorded in it.
//! 2. During a capture, a thread must not make calls that might disturb captures: allocating, loading modules, waiting
//!    for events. The mode *relaxed* of the thread permits these calls ([`Entered::relax`]), even while another thread
//!    captures. All code that allocates memory, loads modules, frees memory or waits for a workspace uses this mode.
//! 3. A stream that waits for an event of the capture joins the capture. Before the capture ends, the originally
//!    captured stream must wait for the stream that joined.

use super::api::Api;
use super::context::{Entered, log_error};
use super::stream::RawStream;
use crate::error::DeviceError;
use std::marker::PhantomData;

/// The driver's number of a capture. It is unique in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capture(u64);

/// Capture status that the driver reports for a stream that is not being captured.
const NOT_CAPTURED: u32 = 0;
/// The driver's number for the mode *relaxed*, which permits calls that might disturb captures.
const RELAXED: u32 = 2;

impl RawStream {
    /// Returns the capture that the stream belongs to; `None` if the stream is not being captured.
    ///
    /// Returns the error that the driver reports. For the default stream, the driver reports an error if another stream
    /// is being captured and that stream waits for the default stream.
    pub fn capture(self, entered: &Entered<'_>) -> Result<Option<Capture>, DeviceError> {
        let Some(api) = &entered.context.api().capture else { return Ok(None) };
        let (mut status, mut id) = (NOT_CAPTURED, 0);
        // SAFETY: *handle*, *current*; *room*: the call writes two numbers.
        let code = unsafe { (api.cuStreamGetCaptureInfo)(self.handle(), &raw mut status, &raw mut id) };
        entered.check("cuStreamGetCaptureInfo", code)?;
        Ok((status != NOT_CAPTURED).then_some(Capture(id)))
    }
}

/// Keeps this thread in the mode *relaxed* until the value is dropped.
pub struct Relaxed<'a> {
    entered: &'a Entered<'a>,
    /// The mode that is restored when the value is dropped.
    mode: u32,
    thread: PhantomData<*const ()>,
}

impl Entered<'_> {
    /// Permits this thread to make calls that might disturb captures, until the returned value is dropped. The calls of
    /// this library disturb no capture: they do not use the default stream, and do not wait for captured work.
    ///
    /// # Errors
    /// Returns the error that the driver reports.
    pub fn relax(&self) -> Result<Relaxed<'_>, DeviceError> {
        let mode = exchange(self.context.api(), RELAXED);
        Ok(Relaxed { entered: self, mode: mode.map_err(|code| self.failed(code))?, thread: PhantomData })
    }

    fn failed(&self, code: u32) -> DeviceError {
        let failed = self.check("cuThreadExchangeStreamCaptureMode", code);
        failed.err().unwrap_or(DeviceError::Symbol { name: "cuThreadExchangeStreamCaptureMode" })
    }
}

/// Sets the mode of this thread and returns the previous one, or the driver's error code.
fn exchange(api: &Api, mut mode: u32) -> Result<u32, u32> {
    let Some(api) = &api.capture else { return Ok(mode) };
    // SAFETY: *room*: the call reads and writes one number.
    match unsafe { (api.cuThreadExchangeStreamCaptureMode)(&raw mut mode) } {
        0 => Ok(mode),
        code => Err(code),
    }
}

impl Drop for Relaxed<'_> {
    fn drop(&mut self) {
        if let Err(code) = exchange(self.entered.context.api(), self.mode) {
            log_error(Err(self.entered.failed(code)));
        }
    }
}
