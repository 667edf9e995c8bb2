//! The driver and its devices.

use super::api::{Api, CAPABILITY, attribute};
use crate::cpu::process::Process;
use crate::cuda::with_kernels;
use crate::error::DeviceError;
use cudarc::driver::sys::CUdevice;
use elsa_core::profile::GpuProfile;
use std::ffi::{CStr, c_char, c_int};
use std::ptr;
use std::sync::OnceLock;

/// The initialised driver.
#[derive(Clone, Copy)]
pub struct Driver {
    pub(super) api: &'static Api,
    /// CUDA version of the driver, as `1000 · major + 10 · minor`.
    version: i32,
    /// The process that has initialised the driver.
    process: Process,
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("version", &self.version).finish_non_exhaustive()
    }
}

impl Driver {
    /// Opens the library, looks up every function, and initialises the driver.
    ///
    /// # Errors
    /// Returns an error if this build has no GPU kernels, if the library or a function is missing, or if the driver
    /// cannot be initialised. Also returns an error if this process is a child of `fork` and the parent has initialised
    /// the driver.
    pub fn open() -> Result<Driver, DeviceError> {
        if !cfg!(feature = "cuda") {
            return Err(DeviceError::NoKernel { role: "attention" });
        }
        static API: OnceLock<Result<Api, DeviceError>> = OnceLock::new();
        let api = API.get_or_init(Api::load).as_ref().map_err(Clone::clone)?;
        static INITIALIZED: OnceLock<Process> = OnceLock::new();
        let process = INITIALIZED.get().copied().unwrap_or_else(Process::current);
        let mut driver = Driver { api, version: 0, process };
        driver.usable()?;
        // SAFETY: *signatures*; the call takes no pointer.
        driver.check("cuInit", unsafe { (api.cuInit)(0) })?;
        INITIALIZED.get_or_init(|| process);
        let mut version = 0;
        // SAFETY: *room*: the call writes an integer.
        driver.check("cuDriverGetVersion", unsafe { (api.cuDriverGetVersion)(&raw mut version) })?;
        driver.version = version;
        Ok(driver)
    }

    /// Returns the CUDA version of the driver, `(major, minor)`.
    pub fn version(self) -> (u32, u32) {
        let version = self.version.max(0).unsigned_abs();
        (version / 1000, version % 1000 / 10)
    }

    /// Checks that this process has initialised the driver. A child of `fork` must not use the driver that its parent
    /// has initialised.
    ///
    /// # Errors
    /// Returns [`DeviceError::Forked`] in a child whose parent has initialised the driver.
    pub fn usable(self) -> Result<(), DeviceError> {
        with_kernels();
        if self.process.is_current() { Ok(()) } else { Err(DeviceError::Forked) }
    }

    pub(super) fn check(self, call: &'static str, code: u32) -> Result<(), DeviceError> {
        if code == 0 { Ok(()) } else { Err(DeviceError::Call { call, code, name: self.name(code) }) }
    }

    /// Returns the driver's name for an error code, such as `CUDA_ERROR_OUT_OF_MEMORY`.
    fn name(self, code: u32) -> &'static str {
        let mut text: *const c_char = ptr::null();
        // SAFETY: *room*: the call writes a pointer.
        let done = unsafe { (self.api.cuGetErrorName)(code, &raw mut text) };
        if done != 0 || text.is_null() {
            return "a code that the driver does not name";
        }
        // SAFETY: the text is a constant of the driver, which is never unloaded, and ends with zero.
        unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("a name that is not text")
    }

    /// Returns the device with number `ordinal`.
    ///
    /// # Errors
    /// Returns [`DeviceError::Ordinal`] if there is no such device, or the error that the driver reports.
    pub fn device(self, ordinal: usize) -> Result<Device, DeviceError> {
        let mut count = 0;
        // SAFETY: *room*: the call writes an integer.
        self.check("cuDeviceGetCount", unsafe { (self.api.cuDeviceGetCount)(&raw mut count) })?;
        let count = usize::try_from(count).unwrap_or(0);
        let wanted = c_int::try_from(ordinal).ok().filter(|_| ordinal < count);
        let Some(wanted) = wanted else { return Err(DeviceError::Ordinal { found: ordinal, count }) };
        let mut raw: CUdevice = 0;
        // SAFETY: *room*: the call writes a device.
        self.check("cuDeviceGet", unsafe { (self.api.cuDeviceGet)(&raw mut raw, wanted) })?;
        Ok(Device { driver: self, raw })
    }
}

/// A device of the driver.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    pub(super) driver: Driver,
    pub(super) raw: CUdevice,
}

impl Device {
    fn attribute(self, attribute: i32) -> Result<u32, DeviceError> {
        let mut value = 0;
        // SAFETY: *room*: the call writes an integer.
        let code = unsafe { (self.driver.api.cuDeviceGetAttribute)(&raw mut value, attribute, self.raw) };
        self.driver.check("cuDeviceGetAttribute", code)?;
        Ok(value.max(0).unsigned_abs())
    }

    /// Returns the driver of the device.
    pub fn driver(self) -> Driver {
        self.driver
    }

    /// Returns the name of the device.
    ///
    /// # Errors
    /// Returns the error that the driver reports.
    pub fn name(self) -> Result<String, DeviceError> {
        let mut name = [0u8; 256];
        // SAFETY: *room*: `name` has more bytes than the length that is passed.
        let code = unsafe {
            (self.driver.api.cuDeviceGetName)(name.as_mut_ptr().cast(), name.len() as c_int - 1, self.raw)
        };
        self.driver.check("cuDeviceGetName", code)?;
        Ok(until_zero(&name))
    }

    /// Returns the size of the device's memory in bytes.
    ///
    /// # Errors
    /// Returns the error that the driver reports.
    pub fn memory(self) -> Result<usize, DeviceError> {
        let mut bytes = 0;
        // SAFETY: *room*: the call writes a size.
        let code = unsafe { (self.driver.api.cuDeviceTotalMem_v2)(&raw mut bytes, self.raw) };
        self.driver.check("cuDeviceTotalMem_v2", code)?;
        Ok(bytes)
    }

    /// Returns the description of the device that the chooser uses. Properties that the driver does not report are
    /// zero.
    ///
    /// # Errors
    /// Returns [`DeviceError::TooOld`] if the compute capability is too low, or the error that the driver reports.
    pub fn profile(self) -> Result<GpuProfile, DeviceError> {
        let capability = (self.attribute(attribute::MAJOR)?, self.attribute(attribute::MINOR)?);
        if capability < CAPABILITY {
            let device = self.name().unwrap_or_default();
            return Err(DeviceError::TooOld { device, major: capability.0, minor: capability.1 });
        }
        let attribute_or_zero = |attribute| self.attribute(attribute).unwrap_or(0);
        Ok(GpuProfile {
            capability,
            sms: self.attribute(attribute::SMS)? as usize,
            lanes_per_sm: match capability {
                (7, _) | (8, 0) => 64,
                _ => 128,
            },
            shared_memory: attribute_or_zero(attribute::SHARED_PER_BLOCK) as usize,
            shared_per_sm: attribute_or_zero(attribute::SHARED_PER_SM) as usize,
            l2: attribute_or_zero(attribute::L2) as usize,
            mhz: attribute_or_zero(attribute::CLOCK_KHZ) / 1000,
            integrated: attribute_or_zero(attribute::INTEGRATED) != 0
                && attribute_or_zero(attribute::CAN_MAP_HOST) != 0,
        })
    }
}

/// Returns the bytes before the first zero byte as text.
pub(super) fn until_zero(bytes: &[u8]) -> String {
    let text = bytes.split(|b| *b == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).trim().to_owned()
}
