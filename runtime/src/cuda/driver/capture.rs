//! Streams that are captured as CUDA graphs.
//!
//! A captured stream executes nothing: enqueued work becomes part of a graph, which the owner of the stream launches
//! later, any number of times. The driver imposes three rules on a library that works in such a stream.
//!
//! 1. A captured stream cannot wait for work outside the capture, and nothing outside the capture can wait for an event
//!    recorded in it.
//! 2. During a capture, a thread must not make calls that might disturb captures: allocating, loading modules, waiting
//!    for events. The mode *relaxed* of the thread permits such calls, also while another thread captures. A thread has
//!    this mode while it has entered a context ([`Context::enter`](super::Context::enter)). The calls that this library
//!    makes disturb no capture, since they neither use the default stream nor wait for captured work.
//! 3. A stream that waits for an event of the capture joins the capture, and the originally captured stream must wait
//!    for that stream before the capture ends.

use super::context::{Context, Entered};
use super::stream::RawStream;
use crate::error::DeviceError;

/// The number of a capture, unique in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capture(u64);

/// Status that the driver reports for a stream that is not captured.
const NOT_CAPTURED: u32 = 0;
/// The driver's number for the mode *relaxed*, which permits calls that might disturb captures.
pub(super) const RELAXED: u32 = 2;

impl RawStream {
    /// Returns the capture that the stream belongs to; `None` if it is not captured.
    ///
    /// # Errors
    /// Returns the error that the driver reports. The driver reports an error for the default stream if a stream that
    /// waits for the default stream is being captured.
    pub fn capture(self, entered: &Entered<'_>) -> Result<Option<Capture>, DeviceError> {
        let Some(api) = &entered.context.api().capture else { return Ok(None) };
        let (mut status, mut id) = (NOT_CAPTURED, 0);
        // SAFETY: *handle*, *current*; *room*: the call writes two numbers.
        let code = unsafe { (api.cuStreamGetCaptureInfo)(self.handle(), &raw mut status, &raw mut id) };
        entered.check("cuStreamGetCaptureInfo", code)?;
        Ok((status != NOT_CAPTURED).then_some(Capture(id)))
    }
}

impl Context {
    /// Sets the mode of this thread and returns the previous one.
    ///
    /// # Errors
    /// Returns the error that the driver reports.
    pub(super) fn exchange(&self, mut mode: u32) -> Result<u32, DeviceError> {
        if let Some(api) = &self.api().capture {
            // SAFETY: *room*: the call reads and writes one number.
            let code = unsafe { (api.cuThreadExchangeStreamCaptureMode)(&raw mut mode) };
            self.check("cuThreadExchangeStreamCaptureMode", code)?;
        }
        Ok(mode)
    }
}
