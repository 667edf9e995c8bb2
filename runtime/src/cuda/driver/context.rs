//! Contexts, and a value ([`Entered`]) that proves that a context is current.

use super::api::{Api, CONTEXT_BLOCKING, code};
use super::device::{Device, Driver};
use crate::cuda::with_kernels;
use crate::error::DeviceError;
use cudarc::driver::sys::{CUcontext, CUdevice};
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

impl Device {
    /// Retains the primary context of the device, which all libraries in the process share.
    ///
    /// # Errors
    /// Returns the error that the driver reports.
    pub fn primary(self) -> Result<Arc<Context>, DeviceError> {
        let mut raw = ptr::null_mut();
        // SAFETY: *room*: `raw` has room for a handle.
        let code = unsafe { (self.driver.api.cuDevicePrimaryCtxRetain)(&raw mut raw, self.raw) };
        self.driver.check("cuDevicePrimaryCtxRetain", code)?;
        Ok(Context::new(self, raw, Origin::Primary))
    }

    /// Creates a new context. Logs nothing, so the caller may hold a lock while it calls this function.
    ///
    /// # Errors
    /// Returns the error that the driver reports.
    pub fn fresh(self) -> Result<Arc<Context>, DeviceError> {
        let (mut raw, mut popped) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: *room*: `raw` has room for a handle.
        let code = unsafe { (self.driver.api.cuCtxCreate_v2)(&raw mut raw, CONTEXT_BLOCKING, self.raw) };
        self.driver.check("cuCtxCreate_v2", code)?;
        // The new context is current. Popping it restores the thread's previous context.
        // SAFETY: *room*: `popped` has room for a handle.
        let code = unsafe { (self.driver.api.cuCtxPopCurrent_v2)(&raw mut popped) };
        if let Err(e) = self.driver.check("cuCtxPopCurrent_v2", code) {
            // Destroying a context pops it, too. If the destruction also fails, there is no other way to release the
            // context.
            // SAFETY: *handle*: the context was created above, and its handle has not been passed on.
            let _ = unsafe { (self.driver.api.cuCtxDestroy_v2)(raw) };
            return Err(e);
        }
        Ok(Context::new(self, raw, Origin::Own))
    }

    /// Returns the calling thread's current context, and its device.
    ///
    /// # Errors
    /// Returns [`DeviceError::NoContext`] if the thread has no current context, or the error that the driver
    /// reports.
    pub fn of_current(driver: Driver) -> Result<(Device, Arc<Context>), DeviceError> {
        let mut raw = ptr::null_mut();
        // SAFETY: *room*: `raw` has room for a handle.
        driver.check("cuCtxGetCurrent", unsafe { (driver.api.cuCtxGetCurrent)(&raw mut raw) })?;
        if raw.is_null() {
            return Err(DeviceError::NoContext);
        }
        let mut device: CUdevice = 0;
        // SAFETY: *room*: `device` has room for a device; a context is current.
        driver.check("cuCtxGetDevice", unsafe { (driver.api.cuCtxGetDevice)(&raw mut device) })?;
        let device = Device { driver, raw: device };
        Ok((device, Context::new(device, raw, Origin::Callers)))
    }
}

/// The origin of a context, which determines how it is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// The device's primary context, retained.
    Primary,
    /// A context that [`Device::fresh`] created.
    Own,
    /// The caller's context, which is not released.
    Callers,
}

/// A context. Several threads may use it.
#[derive(Debug)]
pub struct Context {
    device: Device,
    pub(super) raw: CUcontext,
    origin: Origin,
    lost: AtomicBool,
}

// SAFETY: the driver allows every thread to use a context, and this type only pushes and pops it.
unsafe impl Send for Context {}
// SAFETY: as above. Its only mutable field is atomic.
unsafe impl Sync for Context {}

impl Context {
    fn new(device: Device, raw: CUcontext, origin: Origin) -> Arc<Context> {
        Arc::new(Context { device, raw, origin, lost: AtomicBool::new(false) })
    }

    /// Returns `true` if the context is lost and must not be used.
    pub fn is_lost(&self) -> bool {
        with_kernels();
        self.lost.load(Ordering::Acquire)
    }

    /// Checks that the context may be passed to the driver.
    ///
    /// Returns [`DeviceError::Lost`] if the context is lost. Returns [`DeviceError::Forked`] in a forked child of the
    /// process that created the context.
    pub fn usable(&self) -> Result<(), DeviceError> {
        self.device.driver.usable()?;
        if self.is_lost() { Err(DeviceError::Lost) } else { Ok(()) }
    }

    pub(super) fn api(&self) -> &'static Api {
        self.device.driver.api
    }

    /// Converts a status code to a result, and marks the context as lost if the code is in [`code::STICKY`].
    pub(super) fn check(&self, call: &'static str, code: u32) -> Result<(), DeviceError> {
        if code == 0 {
            return Ok(());
        }
        if code::STICKY.contains(&code) {
            self.lost.store(true, Ordering::Release);
        }
        self.device.driver.check(call, code)
    }

    /// Makes the context current for this thread, until the returned value is dropped.
    ///
    /// # Errors
    /// Returns the errors of [`Context::usable`], or the error that the driver reports.
    pub fn enter(&self) -> Result<Entered<'_>, DeviceError> {
        self.usable()?;
        // SAFETY: *handle*: only dropping `self` releases it.
        self.check("cuCtxPushCurrent_v2", unsafe { (self.api().cuCtxPushCurrent_v2)(self.raw) })?;
        Ok(Entered { context: self, thread: PhantomData })
    }

    /// Releases the context. All resources of the context must have been released before.
    fn release(&self) -> Result<(), DeviceError> {
        let driver = self.device.driver;
        if driver.usable().is_err() {
            return Ok(());
        }
        match self.origin {
            // SAFETY: *handle*: `Device::fresh` created the context, which is destroyed only here.
            Origin::Own => driver.check("cuCtxDestroy_v2", unsafe { (driver.api.cuCtxDestroy_v2)(self.raw) }),
            Origin::Primary if !self.is_lost() => match driver.api.cuDevicePrimaryCtxRelease {
                // SAFETY: *handle*: `Device::primary` retained the context, which is released only here.
                Some(f) => driver.check("cuDevicePrimaryCtxRelease", unsafe { f(self.device.raw) }),
                None => Ok(()),
            },
            Origin::Primary | Origin::Callers => Ok(()),
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        log_error(self.release());
    }
}

/// Logs the error in `done`, if there is one. This function is called while a value is dropped, because a drop cannot
/// return an error.
pub(super) fn log_error(done: Result<(), DeviceError>) {
    if let Err(e) = done {
        log::debug!("while releasing a GPU resource: {e}");
    }
}

/// Proof that a context is current for this thread.
#[derive(Debug)]
pub struct Entered<'a> {
    pub(super) context: &'a Context,
    // A context is current for one thread, so a value of this type must not move to another thread.
    thread: PhantomData<*const ()>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if self.context.device.driver.usable().is_err() {
            return;
        }
        let mut popped = ptr::null_mut();
        // SAFETY: *room*: `popped` has room for a handle. `enter` pushed the context on this thread.
        let code = unsafe { (self.context.api().cuCtxPopCurrent_v2)(&raw mut popped) };
        log_error(self.context.check("cuCtxPopCurrent_v2", code));
    }
}

impl Entered<'_> {
    pub(super) fn check(&self, call: &'static str, code: u32) -> Result<(), DeviceError> {
        self.context.check(call, code)
    }

    /// Waits for all work of the context, in any stream.
    ///
    /// # Errors
    /// Returns the error that the driver reports, including errors of earlier work.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        // SAFETY: *current*; the call takes no pointer.
        self.check("cuCtxSynchronize", unsafe { (self.context.api().cuCtxSynchronize)() })
    }
}
