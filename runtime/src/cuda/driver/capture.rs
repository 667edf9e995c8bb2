//! Streams that are captured as CUDA graphs.
//!
//! A captured stream executes nothing: enqueued work becomes part of a graph, which its owner launches later, any number of
//! times. Three rules of the driver apply to a library that works in it.
//!
//! 1. A captured stream cannot wait for work that is not captured, and nothing outside the capture can wait for an event
//!    recorded in it.
//! 2. During a capture, a thread must not make calls that might disturb captures: allocations, loading of modules, waiting
//!    for events. The mode *relaxed* of the thread permits such calls ([`Entered::relax`]).
//! 3. A stream that waits for an event of the capture takes part in it, and the first stream must wait for it before the
//!    capture ends.

use super::api::Api;
use super::context::{Entered, log_error};
use super::stream::RawStream;
use crate::error::DeviceError;
use std::marker::PhantomData;

/// The number of a capture, unique in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capture(u64);

/// The driver's number for a stream that is not captured.
const NOT_CAPTURED: u32 = 0;
/// The driver's number for the mode that permits calls which might disturb captures.
const RELAXED: u32 = 2;

impl RawStream {
    /// Returns the capture in which the stream takes part; `None` if it is not captured.
    ///
    /// # Errors
    /// Returns the error that the driver reports: for the default stream, also if a captured stream waits for it.
    pub fn capture(self, entered: &Entered<'_>) -> Result<Option<Capture>, DeviceError> {
        let Some(api) = &entered.context.api().capture else { return Ok(None) };
        let (mut status, mut id) = (NOT_CAPTURED, 0);
        // SAFETY: *handle*, *current*, *room*: two numbers.
        let code = unsafe { (api.cuStreamGetCaptureInfo)(self.handle(), &raw mut status, &raw mut id) };
        entered.check("cuStreamGetCaptureInfo", code)?;
        Ok((status != NOT_CAPTURED).then_some(Capture(id)))
    }
}

/// The mode *relaxed* of this thread, which ends when the value is dropped.
pub struct Relaxed<'a> {
    entered: &'a Entered<'a>,
    /// The mode to which the thread returns.
    mode: u32,
    thread: PhantomData<*const ()>,
}

impl Entered<'_> {
    /// Permits this thread to make calls that might disturb captures, until the returned value is dropped. The calls of this
    /// library do not disturb any: none uses the default stream, and none waits for captured work.
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

/// Replaces the mode of this thread. Returns the previous one.
fn exchange(api: &Api, mut mode: u32) -> Result<u32, u32> {
    let Some(api) = &api.capture else { return Ok(mode) };
    // SAFETY: *room*: a number.
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
