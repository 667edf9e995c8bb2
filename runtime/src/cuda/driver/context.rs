//! Contexts, and the proof that one is current.

use super::api::{Api, CONTEXT_BLOCKING, code};
use super::device::{Device, Driver};
use crate::error::DeviceError;
use cudarc::driver::sys::{CUcontext, CUdevice};
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

impl Device {
    /// Its primary context, which the process shares.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn primary(self) -> Result<Arc<Context>, DeviceError> {
        let mut raw = ptr::null_mut();
        // SAFETY: *room*: a handle.
        let code = unsafe { (self.driver.api.cuDevicePrimaryCtxRetain)(&raw mut raw, self.raw) };
        self.driver.check("cuDevicePrimaryCtxRetain", code)?;
        Ok(Context::new(self, raw, Origin::Primary))
    }

    /// A new context of our own.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn fresh(self) -> Result<Arc<Context>, DeviceError> {
        let (mut raw, mut popped) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: *room*: a handle.
        let code = unsafe { (self.driver.api.cuCtxCreate_v2)(&raw mut raw, CONTEXT_BLOCKING, self.raw) };
        self.driver.check("cuCtxCreate_v2", code)?;
        let context = Context::new(self, raw, Origin::Own);
        // A new context is current; the thread gets back what it had.
        // SAFETY: *room*: a handle.
        let code = unsafe { (self.driver.api.cuCtxPopCurrent_v2)(&raw mut popped) };
        self.driver.check("cuCtxPopCurrent_v2", code)?;
        Ok(context)
    }

    /// The calling thread's current context, with its device.
    ///
    /// # Errors
    /// A thread without one, and what the driver reports.
    pub fn of_current(driver: Driver) -> Result<(Device, Arc<Context>), DeviceError> {
        let mut raw = ptr::null_mut();
        // SAFETY: *room*: a handle.
        driver.check("cuCtxGetCurrent", unsafe { (driver.api.cuCtxGetCurrent)(&raw mut raw) })?;
        if raw.is_null() {
            return Err(DeviceError::NoContext);
        }
        let mut device: CUdevice = 0;
        // SAFETY: *room*: a device; a context is current.
        driver.check("cuCtxGetDevice", unsafe { (driver.api.cuCtxGetDevice)(&raw mut device) })?;
        let device = Device { driver, raw: device };
        Ok((device, Context::new(device, raw, Origin::Callers)))
    }
}

/// Where a context comes from, and so how it is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// Retained.
    Primary,
    /// Created.
    Own,
    /// The caller's, who keeps it.
    Callers,
}

/// A context. Threads may share it.
#[derive(Debug)]
pub struct Context {
    device: Device,
    pub(super) raw: CUcontext,
    origin: Origin,
    lost: AtomicBool,
}

// SAFETY: the driver allows every thread to use a context, and it is only pushed and popped here.
unsafe impl Send for Context {}
// SAFETY: as above; what changes is atomic.
unsafe impl Sync for Context {}

impl Context {
    fn new(device: Device, raw: CUcontext, origin: Origin) -> Arc<Context> {
        Arc::new(Context { device, raw, origin, lost: AtomicBool::new(false) })
    }

    /// Whether nothing more can be done with it.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    pub(super) fn api(&self) -> &'static Api {
        self.device.driver.api
    }

    /// An error of a call, which may mean that the context is lost.
    pub(super) fn check(&self, call: &'static str, code: u32) -> Result<(), DeviceError> {
        if code::STICKY.contains(&code) {
            self.lost.store(true, Ordering::Release);
        }
        self.device.driver.check(call, code)
    }

    /// Makes it current for this thread, as long as the value that is given lives.
    ///
    /// # Errors
    /// A context that is lost, and what the driver reports.
    pub fn enter(&self) -> Result<Entered<'_>, DeviceError> {
        if self.is_lost() {
            return Err(DeviceError::Lost);
        }
        // SAFETY: *handle*: it is given back by dropping `self` alone.
        self.check("cuCtxPushCurrent_v2", unsafe { (self.api().cuCtxPushCurrent_v2)(self.raw) })?;
        Ok(Entered { context: self, thread: PhantomData })
    }

    /// Gives the context back. Nothing that belongs to it must be left.
    fn release(&self) -> Result<(), DeviceError> {
        let driver = self.device.driver;
        match self.origin {
            // SAFETY: *handle*: created by `Device::fresh`, destroyed once.
            Origin::Own => driver.check("cuCtxDestroy_v2", unsafe { (driver.api.cuCtxDestroy_v2)(self.raw) }),
            Origin::Primary if !self.is_lost() => match driver.api.cuDevicePrimaryCtxRelease {
                // SAFETY: *handle*: retained by `Device::primary`, released once.
                Some(f) => driver.check("cuDevicePrimaryCtxRelease", unsafe { f(self.device.raw) }),
                None => Ok(()),
            },
            Origin::Primary | Origin::Callers => Ok(()),
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        tell(self.release());
    }
}

/// Logs what a drop cannot return.
pub(super) fn tell(done: Result<(), DeviceError>) {
    if let Err(e) = done {
        log::debug!("while giving back: {e}");
    }
}

/// Proof that a context is current for this thread.
#[derive(Debug)]
pub struct Entered<'a> {
    pub(super) context: &'a Context,
    // Being current is a matter of the thread.
    thread: PhantomData<*const ()>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut popped = ptr::null_mut();
        // SAFETY: *room*: a handle. `enter` pushed it on this thread.
        let code = unsafe { (self.context.api().cuCtxPopCurrent_v2)(&raw mut popped) };
        tell(self.context.check("cuCtxPopCurrent_v2", code));
    }
}

impl Entered<'_> {
    pub(super) fn check(&self, call: &'static str, code: u32) -> Result<(), DeviceError> {
        self.context.check(call, code)
    }
}
