//! The NVIDIA driver: the one file that names its API.
//!
//! The naive way links libcuda, calls it, and lets its errors become panics. This one differs, because the
//! machine may have no driver, an old one, or one that fails:
//!
//! 1. The library is opened at run time, and every function that may be called is looked up by name before the
//!    first call. What is missing is an error that names it. All names are exported by a driver of CUDA 10.2.
//! 2. Status codes stay integers. A newer driver returns codes that an older binding's enumeration does not have,
//!    and reading those as that enumeration is undefined.
//! 3. A context is current only while an [`Entered`] lives. Everything that needs one takes it as proof, and the
//!    thread is left with the context that it had.
//! 4. After an error that the driver cannot recover from, a context is *lost*. Nothing is called with what belongs
//!    to it any more; its memory goes with it.
//! 5. What a workspace holds has a `close` that returns the driver's error. Dropping it does the same and logs.
//!
//! # Contract
//!
//! Safety comments cite these clauses.
//! - *signatures*: the functions of [`Api`] have the types that the driver's header gives them.
//! - *current*: the context of the resource is current, which an [`Entered`] of the same context proves.
//! - *handle*: a handle that the driver gave out and that was not given back.
//! - *room*: what a pointer points to is valid for as many bytes as are read or written through it.
//! - *alive*: memory that a stream works on stays allocated until the stream was waited for, or is lost.

use crate::error::DeviceError;
use cudarc::driver::sys::{self, CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUmodule, CUstream};
use elsa_core::profile::GpuProfile;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

macro_rules! api {
    ($($name:ident($($argument:ty),*);)*) => {
        /// The functions of the driver, looked up by name.
        #[allow(non_snake_case, reason = "the names are the driver's")]
        struct Api {
            $($name: unsafe extern "C" fn($($argument),*) -> c_uint,)*
            /// Absent from some drivers.
            cuDevicePrimaryCtxRelease: Option<unsafe extern "C" fn(CUdevice) -> c_uint>,
        }

        impl Api {
            fn load() -> Result<Api, DeviceError> {
                // SAFETY: opening libcuda runs its initialisers, which is what the process asks for by using it.
                if !unsafe { sys::is_culib_present() } {
                    return Err(DeviceError::NoLibrary);
                }
                // SAFETY: as above; the library is present, so that this does not panic.
                let library = unsafe { sys::culib() };
                Ok(Api {
                    // SAFETY: *signatures*; the library is never closed.
                    $($name: *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }
                        .map_err(|_| DeviceError::Symbol { name: stringify!($name) })?,)*
                    // SAFETY: as above.
                    cuDevicePrimaryCtxRelease: unsafe { library.get(b"cuDevicePrimaryCtxRelease\0") }
                        .ok()
                        .map(|f| *f),
                })
            }
        }
    };
}

api! {
    cuInit(c_uint);
    cuDriverGetVersion(*mut c_int);
    cuGetErrorName(c_uint, *mut *const c_char);
    cuDeviceGet(*mut CUdevice, c_int);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGetName(*mut c_char, c_int, CUdevice);
    cuDeviceTotalMem_v2(*mut usize, CUdevice);
    cuDeviceGetAttribute(*mut c_int, c_int, CUdevice);
    cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
    cuCtxCreate_v2(*mut CUcontext, c_uint, CUdevice);
    cuCtxDestroy_v2(CUcontext);
    cuCtxGetCurrent(*mut CUcontext);
    cuCtxGetDevice(*mut CUdevice);
    cuCtxPushCurrent_v2(CUcontext);
    cuCtxPopCurrent_v2(*mut CUcontext);
    cuMemAlloc_v2(*mut CUdeviceptr, usize);
    cuMemFree_v2(CUdeviceptr);
    cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
    cuMemFreeHost(*mut c_void);
    cuMemGetAddressRange_v2(*mut CUdeviceptr, *mut usize, CUdeviceptr);
    cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
    cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
    cuPointerGetAttribute(*mut c_void, c_int, CUdeviceptr);
    cuModuleLoadDataEx(*mut CUmodule, *const c_void, c_uint, *mut c_int, *mut *mut c_void);
    cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
    cuModuleUnload(CUmodule);
    cuLaunchKernel(
        CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void, *mut *mut c_void
    );
    cuStreamCreate(*mut CUstream, c_uint);
    cuStreamDestroy_v2(CUstream);
    cuStreamSynchronize(CUstream);
    cuStreamGetCtx(CUstream, *mut CUcontext);
    cuEventCreate(*mut CUevent, c_uint);
    cuEventDestroy_v2(CUevent);
    cuEventRecord(CUevent, CUstream);
    cuEventSynchronize(CUevent);
}

/// Codes of the driver that are told apart.
mod code {
    pub const OUT_OF_MEMORY: u32 = 2;
    /// Those after which a context is of no more use.
    pub const STICKY: [u32; 14] = [4, 201, 214, 220, 700, 702, 709, 714, 715, 716, 717, 718, 719, 999];
}

/// Attributes of devices, all of them known to a driver of CUDA 10.2.
mod attribute {
    pub const SHARED_PER_BLOCK: i32 = 8;
    pub const CLOCK_KHZ: i32 = 13;
    pub const SMS: i32 = 16;
    pub const INTEGRATED: i32 = 18;
    pub const CAN_MAP_HOST: i32 = 19;
    pub const L2: i32 = 38;
    pub const MAJOR: i32 = 75;
    pub const MINOR: i32 = 76;
    pub const SHARED_PER_SM: i32 = 81;
}

/// Attributes of pointers.
mod pointer {
    pub const CONTEXT: i32 = 1;
    pub const MEMORY_TYPE: i32 = 2;
    pub const DEVICE_POINTER: i32 = 3;
    pub const BUFFER_ID: i32 = 7;
    pub const TYPE_HOST: u32 = 1;
    pub const TYPE_DEVICE: u32 = 2;
}

/// Options of the driver's compiler.
mod jit {
    pub const INFO_LOG: i32 = 3;
    pub const INFO_LOG_SIZE: i32 = 4;
    pub const ERROR_LOG: i32 = 5;
    pub const ERROR_LOG_SIZE: i32 = 6;
    pub const LOG_BYTES: usize = 4096;
}

/// Page-locked memory that every context sees, at addresses that devices can use.
const HOST_PORTABLE_MAPPED: c_uint = 1 | 2;
/// A stream that does not wait for the default stream.
const STREAM_NON_BLOCKING: c_uint = 1;
/// A thread that waits for a context of our own yields its processor.
const CONTEXT_BLOCKING: c_uint = 4;
/// An event that is only waited for keeps no time.
const EVENT_NO_TIMING: c_uint = 2;
/// Least compute capability: that of the PTX.
pub const CAPABILITY: (u32, u32) = (6, 2);

/// The driver, initialised.
#[derive(Clone, Copy)]
pub struct Driver {
    api: &'static Api,
    /// `1000 · major + 10 · minor` of the CUDA version that it implements.
    version: i32,
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("version", &self.version).finish_non_exhaustive()
    }
}

impl Driver {
    /// Opens the library, finds every function, and initialises the driver.
    ///
    /// # Errors
    /// No library, a missing function, a driver that does not start.
    pub fn open() -> Result<Driver, DeviceError> {
        static API: OnceLock<Result<Api, DeviceError>> = OnceLock::new();
        let api = API.get_or_init(Api::load).as_ref().map_err(Clone::clone)?;
        let mut driver = Driver { api, version: 0 };
        // SAFETY: *signatures*.
        driver.check("cuInit", unsafe { (api.cuInit)(0) })?;
        let mut version = 0;
        // SAFETY: *room*: an integer.
        driver.check("cuDriverGetVersion", unsafe { (api.cuDriverGetVersion)(&raw mut version) })?;
        driver.version = version;
        Ok(driver)
    }

    /// The CUDA version that it implements, `(major, minor)`.
    pub fn version(self) -> (u32, u32) {
        let version = self.version.max(0).unsigned_abs();
        (version / 1000, version % 1000 / 10)
    }

    fn check(self, call: &'static str, code: u32) -> Result<(), DeviceError> {
        if code == 0 { Ok(()) } else { Err(DeviceError::Call { call, code, name: self.name(code) }) }
    }

    /// The driver's name of a code.
    fn name(self, code: u32) -> &'static str {
        let mut text: *const c_char = ptr::null();
        // SAFETY: *room*: a pointer.
        let done = unsafe { (self.api.cuGetErrorName)(code, &raw mut text) };
        if done != 0 || text.is_null() {
            return "a code that the driver does not name";
        }
        // SAFETY: the driver gives a constant of its own, ended by zero, and is never unloaded.
        unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("a name that is not text")
    }

    /// The device of that number.
    ///
    /// # Errors
    /// A number that is none, and what the driver reports.
    pub fn device(self, ordinal: usize) -> Result<Device, DeviceError> {
        let mut count = 0;
        // SAFETY: *room*: an integer.
        self.check("cuDeviceGetCount", unsafe { (self.api.cuDeviceGetCount)(&raw mut count) })?;
        let count = usize::try_from(count).unwrap_or(0);
        let wanted = c_int::try_from(ordinal).ok().filter(|_| ordinal < count);
        let Some(wanted) = wanted else { return Err(DeviceError::Ordinal { found: ordinal, count }) };
        let mut raw: CUdevice = 0;
        // SAFETY: *room*: a device.
        self.check("cuDeviceGet", unsafe { (self.api.cuDeviceGet)(&raw mut raw, wanted) })?;
        Ok(Device { driver: self, raw })
    }
}

/// A device.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    driver: Driver,
    raw: CUdevice,
}

impl Device {
    fn attribute(self, attribute: i32) -> Result<u32, DeviceError> {
        let mut value = 0;
        // SAFETY: *room*: an integer.
        let code = unsafe { (self.driver.api.cuDeviceGetAttribute)(&raw mut value, attribute, self.raw) };
        self.driver.check("cuDeviceGetAttribute", code)?;
        Ok(value.max(0).unsigned_abs())
    }

    /// The driver.
    pub fn driver(self) -> Driver {
        self.driver
    }

    /// Its name.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn name(self) -> Result<String, DeviceError> {
        let mut name = [0u8; 256];
        // SAFETY: *room*: the array has as many bytes as are said.
        let code = unsafe {
            (self.driver.api.cuDeviceGetName)(name.as_mut_ptr().cast(), name.len() as c_int - 1, self.raw)
        };
        self.driver.check("cuDeviceGetName", code)?;
        Ok(until_zero(&name))
    }

    /// Bytes of its memory.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn memory(self) -> Result<usize, DeviceError> {
        let mut bytes = 0;
        // SAFETY: *room*: a size.
        let code = unsafe { (self.driver.api.cuDeviceTotalMem_v2)(&raw mut bytes, self.raw) };
        self.driver.check("cuDeviceTotalMem_v2", code)?;
        Ok(bytes)
    }

    /// What the chooser knows of it. Figures that the driver does not tell are zero.
    ///
    /// # Errors
    /// What the driver reports, and a device that is too old.
    pub fn profile(self) -> Result<GpuProfile, DeviceError> {
        let capability = (self.attribute(attribute::MAJOR)?, self.attribute(attribute::MINOR)?);
        if capability < CAPABILITY {
            let device = self.name().unwrap_or_default();
            return Err(DeviceError::TooOld { device, major: capability.0, minor: capability.1 });
        }
        let told = |attribute| self.attribute(attribute).unwrap_or(0);
        Ok(GpuProfile {
            capability,
            sms: self.attribute(attribute::SMS)? as usize,
            lanes_per_sm: match capability {
                (7, _) | (8, 0) => 64,
                _ => 128,
            },
            shared_memory: told(attribute::SHARED_PER_BLOCK) as usize,
            shared_per_sm: told(attribute::SHARED_PER_SM) as usize,
            l2: told(attribute::L2) as usize,
            mhz: told(attribute::CLOCK_KHZ) / 1000,
            integrated: told(attribute::INTEGRATED) != 0 && told(attribute::CAN_MAP_HOST) != 0,
        })
    }

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
    raw: CUcontext,
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

    fn api(&self) -> &'static Api {
        self.device.driver.api
    }

    /// An error of a call, which may mean that the context is lost.
    fn check(&self, call: &'static str, code: u32) -> Result<(), DeviceError> {
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
fn tell(done: Result<(), DeviceError>) {
    if let Err(e) = done {
        log::debug!("while giving back: {e}");
    }
}

/// The text up to the first zero.
fn until_zero(bytes: &[u8]) -> String {
    let text = bytes.split(|b| *b == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).trim().to_owned()
}

/// Proof that a context is current for this thread.
#[derive(Debug)]
pub struct Entered<'a> {
    context: &'a Context,
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
    fn check(&self, call: &'static str, code: u32) -> Result<(), DeviceError> {
        self.context.check(call, code)
    }

    /// Where device memory that holds `address` starts, and its bytes; none if it is no device memory of this
    /// context.
    pub fn allocation(&self, address: u64) -> Option<(u64, usize)> {
        let api = self.context.api();
        let (mut base, mut bytes) = (0, 0);
        if self.query::<u32>(pointer::MEMORY_TYPE, address)? != pointer::TYPE_DEVICE {
            return None;
        }
        // Memory of a pool has no context.
        let context = self.query::<usize>(pointer::CONTEXT, address).unwrap_or(0);
        if context != 0 && context != self.context.raw as usize {
            return None;
        }
        // SAFETY: *current*, *room*: an address and a size.
        let code = unsafe { (api.cuMemGetAddressRange_v2)(&raw mut base, &raw mut bytes, address) };
        (code == 0).then_some((base, bytes))
    }

    /// The device's address of `bytes` at `address`, where that is host memory which the device can use in
    /// place.
    pub fn mapped(&self, address: u64, bytes: usize) -> Option<u64> {
        let last = address.checked_add(bytes.checked_sub(1)? as u64)?;
        if self.query::<u32>(pointer::MEMORY_TYPE, address)? != pointer::TYPE_HOST {
            return None;
        }
        // Allocations may lie side by side, and each has a number of its own.
        let id = |address| self.query::<u64>(pointer::BUFFER_ID, address);
        if id(address) != id(last) {
            return None;
        }
        let first = self.query::<u64>(pointer::DEVICE_POINTER, address)?;
        let end = self.query::<u64>(pointer::DEVICE_POINTER, last)?;
        (first != 0 && end.checked_sub(first)? == last - address).then_some(first)
    }

    /// An attribute of a pointer; none where the driver does not know the pointer.
    fn query<T: Default>(&self, attribute: i32, address: u64) -> Option<T> {
        let mut value = T::default();
        // SAFETY: *current*, *room*: the attributes that are asked for have the sizes of the types they are
        // asked as.
        let code = unsafe {
            (self.context.api().cuPointerGetAttribute)((&raw mut value).cast(), attribute, address)
        };
        (code == 0).then_some(value)
    }
}

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

/// A resource of a context and how it is given back.
macro_rules! resource {
    ($name:ident, $free:ident, $field:ident) => {
        impl $name {
            fn free(&mut self) -> Result<(), DeviceError> {
                let Some(handle) = self.$field.take() else { return Ok(()) };
                if self.context.is_lost() {
                    return Ok(());
                }
                let entered = self.context.enter()?;
                // SAFETY: *handle*: taken out, so that it is given back once; *current*.
                entered.check(stringify!($free), unsafe { (self.context.api().$free)(handle) })
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                tell(self.free());
            }
        }

        // SAFETY: handles may be used by every thread that makes the context current.
        unsafe impl Send for $name {}
        // SAFETY: as above; shared use only hands the handle to the driver.
        unsafe impl Sync for $name {}
    };
}

macro_rules! closable {
    ($($name:ident),*) => {$(
        impl $name {
            /// Gives it back.
            ///
            /// # Errors
            /// What the driver reports.
            pub fn close(mut self) -> Result<(), DeviceError> {
                self.free()
            }
        }
    )*};
}

closable!(Stream, Event, DeviceBuffer, PinnedBuffer);

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

/// A module that the driver has loaded.
#[derive(Debug)]
pub struct Module {
    context: Arc<Context>,
    raw: Option<CUmodule>,
}

/// A kernel of a module.
#[derive(Clone, Debug)]
pub struct Function {
    raw: CUfunction,
    // A function goes with its module.
    _module: Arc<Module>,
}

// SAFETY: a function may be launched by every thread that makes the context current.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Module {
    /// Loads an image: a cubin, or PTX text that ends with zero. Fails with what the driver's compiler says.
    ///
    /// # Errors
    /// The driver's code, and its log.
    pub fn load(context: &Arc<Context>, image: &[u8]) -> Result<Module, (DeviceError, String)> {
        let entered = context.enter().map_err(|e| (e, String::new()))?;
        let (mut info, mut error) = (vec![0u8; jit::LOG_BYTES], vec![0u8; jit::LOG_BYTES]);
        let mut options = [jit::INFO_LOG, jit::INFO_LOG_SIZE, jit::ERROR_LOG, jit::ERROR_LOG_SIZE];
        let size = ptr::without_provenance_mut(jit::LOG_BYTES - 1);
        let mut values: [*mut c_void; 4] = [info.as_mut_ptr().cast(), size, error.as_mut_ptr().cast(), size];
        let mut raw = ptr::null_mut();
        // SAFETY: *current*, *room*: a handle, four options with their values, logs of the sizes that are said;
        // PTX ends with zero, and a cubin tells its size.
        let code = unsafe {
            (context.api().cuModuleLoadDataEx)(
                &raw mut raw,
                image.as_ptr().cast(),
                options.len() as c_uint,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        entered.check("cuModuleLoadDataEx", code).map_err(|e| (e, until_zero(&error)))?;
        Ok(Module { context: context.clone(), raw: Some(raw) })
    }

    /// The kernel of that name.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn function(self: &Arc<Module>, name: &str) -> Result<Function, DeviceError> {
        let entered = self.context.enter()?;
        let symbol = CString::new(name).unwrap_or_default();
        let mut raw = ptr::null_mut();
        // SAFETY: *handle*, *current*, *room*: a handle; the name ends with zero.
        let code = unsafe {
            (self.context.api().cuModuleGetFunction)(
                &raw mut raw,
                self.raw.unwrap_or(ptr::null_mut()),
                symbol.as_ptr(),
            )
        };
        entered.check("cuModuleGetFunction", code)?;
        Ok(Function { raw, _module: self.clone() })
    }
}

resource!(Module, cuModuleUnload, raw);

/// Memory of the device.
#[derive(Debug)]
pub struct DeviceBuffer {
    context: Arc<Context>,
    address: Option<CUdeviceptr>,
    bytes: usize,
}

impl DeviceBuffer {
    /// Allocates `bytes`; of none, nothing.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<DeviceBuffer, DeviceError> {
        if bytes == 0 {
            return Ok(DeviceBuffer { context: context.clone(), address: None, bytes });
        }
        let entered = context.enter()?;
        let mut address = 0;
        // SAFETY: *current*, *room*: an address.
        let code = unsafe { (context.api().cuMemAlloc_v2)(&raw mut address, bytes) };
        if code == code::OUT_OF_MEMORY {
            return Err(DeviceError::Memory { call: "cuMemAlloc_v2", bytes });
        }
        entered.check("cuMemAlloc_v2", code)?;
        Ok(DeviceBuffer { context: context.clone(), address: Some(address), bytes })
    }

    /// Address of its first byte; zero when it has none.
    pub fn address(&self) -> u64 {
        self.address.unwrap_or(0)
    }

    /// Its bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

resource!(DeviceBuffer, cuMemFree_v2, address);

/// Page-locked memory of the host that the device can use in place.
#[derive(Debug)]
pub struct PinnedBuffer {
    context: Arc<Context>,
    data: Option<*mut c_void>,
    bytes: usize,
}

impl PinnedBuffer {
    /// Allocates `bytes` of zeros; of none, nothing.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<PinnedBuffer, DeviceError> {
        let mut buffer = PinnedBuffer { context: context.clone(), data: None, bytes: 0 };
        if bytes == 0 {
            return Ok(buffer);
        }
        let entered = context.enter()?;
        let mut data = ptr::null_mut();
        // SAFETY: *current*, *room*: a pointer.
        let code = unsafe { (context.api().cuMemHostAlloc)(&raw mut data, bytes, HOST_PORTABLE_MAPPED) };
        if code == code::OUT_OF_MEMORY {
            return Err(DeviceError::Memory { call: "cuMemHostAlloc", bytes });
        }
        entered.check("cuMemHostAlloc", code)?;
        (buffer.data, buffer.bytes) = (Some(data), bytes);
        // SAFETY: *room*: the allocation has that many bytes.
        unsafe { ptr::write_bytes(data.cast::<u8>(), 0, bytes) };
        drop(entered);
        Ok(buffer)
    }

    /// Its first byte, on a line of at least 16 bytes; dangling when it has none.
    pub fn data(&self) -> *mut u8 {
        self.data.map_or(ptr::without_provenance_mut(16), <*mut c_void>::cast)
    }

    /// Its bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

resource!(PinnedBuffer, cuMemFreeHost, data);
