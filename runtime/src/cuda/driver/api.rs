//! The functions of the driver, looked up by name, and the constants of its header.

use crate::error::DeviceError;
use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphExec, CUgraphNode, CUmodule,
    CUstream,
};
use std::ffi::{c_char, c_int, c_uint, c_void};

macro_rules! api {
    ($($name:ident($($argument:ty),*);)*) => {
        /// The functions of the driver, looked up by name.
        #[allow(non_snake_case, reason = "the names are the driver's")]
        pub struct Api {
            $(pub $name: unsafe extern "C" fn($($argument),*) -> c_uint,)*
            /// The function that releases a primary context; `None` if the driver lacks it.
            pub cuDevicePrimaryCtxRelease: Option<unsafe extern "C" fn(CUdevice) -> c_uint>,
            /// The functions for captured streams; `None` if the driver lacks one of them.
            pub capture: Option<CaptureApi>,
            /// The functions for graphs; `None` if the driver lacks one of them.
            pub graph: Option<GraphApi>,
        }

        impl Api {
            pub fn load() -> Result<Api, DeviceError> {
                // SAFETY: opening libcuda runs its initializers. A process that uses libcuda accepts this.
                if !unsafe { sys::is_culib_present() } {
                    return Err(DeviceError::NoLibrary);
                }
                // SAFETY: as above. The library is present, so this does not panic.
                let library = unsafe { sys::culib() };
                Ok(Api {
                    // SAFETY: *signatures*; the library is never closed.
                    $($name: *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }
                        .map_err(|_| DeviceError::Symbol { name: stringify!($name) })?,)*
                    // SAFETY: *signatures*; the library is never closed.
                    cuDevicePrimaryCtxRelease: unsafe { library.get(b"cuDevicePrimaryCtxRelease\0") }
                        .ok()
                        .map(|f| *f),
                    // SAFETY: *signatures*; the library is never closed.
                    capture: unsafe { library.get(b"cuStreamGetCaptureInfo\0") }
                        .ok()
                        // SAFETY: *signatures*; the library is never closed.
                        .zip(unsafe { library.get(b"cuThreadExchangeStreamCaptureMode\0") }.ok())
                        .map(|(info, exchange)| CaptureApi {
                            cuStreamGetCaptureInfo: *info,
                            cuThreadExchangeStreamCaptureMode: *exchange,
                        }),
                    // SAFETY: *signatures*; the library is never closed.
                    graph: (|| unsafe {
                        Some(GraphApi {
                            cuStreamBeginCapture_v2: *library.get(b"cuStreamBeginCapture_v2\0").ok()?,
                            cuStreamEndCapture: *library.get(b"cuStreamEndCapture\0").ok()?,
                            cuGraphInstantiate: *library.get(b"cuGraphInstantiate\0").ok()?,
                            cuGraphLaunch: *library.get(b"cuGraphLaunch\0").ok()?,
                            cuGraphDestroy: *library.get(b"cuGraphDestroy\0").ok()?,
                            cuGraphExecDestroy: *library.get(b"cuGraphExecDestroy\0").ok()?,
                        })
                    })(),
                })
            }
        }
    };
}

/// The functions that a library needs if it enqueues work in a stream that is being captured.
#[allow(non_snake_case, reason = "the names are the driver's")]
pub struct CaptureApi {
    pub cuStreamGetCaptureInfo: unsafe extern "C" fn(CUstream, *mut c_uint, *mut u64) -> c_uint,
    pub cuThreadExchangeStreamCaptureMode: unsafe extern "C" fn(*mut c_uint) -> c_uint,
}

/// The functions that record graphs and launch them. `cuGraphInstantiate` has the signature of CUDA 10 and 11 in every
/// driver; the header of CUDA 12 redirects that name to a function with another signature.
#[allow(non_snake_case, reason = "the names are the driver's")]
pub struct GraphApi {
    pub cuStreamBeginCapture_v2: unsafe extern "C" fn(CUstream, c_uint) -> c_uint,
    pub cuStreamEndCapture: unsafe extern "C" fn(CUstream, *mut CUgraph) -> c_uint,
    pub cuGraphInstantiate:
        unsafe extern "C" fn(*mut CUgraphExec, CUgraph, *mut CUgraphNode, *mut c_char, usize) -> c_uint,
    pub cuGraphLaunch: unsafe extern "C" fn(CUgraphExec, CUstream) -> c_uint,
    pub cuGraphDestroy: unsafe extern "C" fn(CUgraph) -> c_uint,
    pub cuGraphExecDestroy: unsafe extern "C" fn(CUgraphExec) -> c_uint,
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
    cuCtxSynchronize();
    cuMemAlloc_v2(*mut CUdeviceptr, usize);
    cuMemFree_v2(CUdeviceptr);
    cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
    cuMemFreeHost(*mut c_void);
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuMemGetAddressRange_v2(*mut CUdeviceptr, *mut usize, CUdeviceptr);
    cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
    cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
    cuPointerGetAttribute(*mut c_void, c_int, CUdeviceptr);
    cuPointerGetAttributes(c_uint, *mut c_int, *mut *mut c_void, CUdeviceptr);
    cuModuleLoadDataEx(*mut CUmodule, *const c_void, c_uint, *mut c_int, *mut *mut c_void);
    cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
    cuModuleUnload(CUmodule);
    cuFuncGetAttribute(*mut c_int, c_int, CUfunction);
    cuFuncSetAttribute(CUfunction, c_int, c_int);
    cuMemsetD32Async(CUdeviceptr, c_uint, usize, CUstream);
    cuLaunchKernel(
        CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void, *mut *mut c_void
    );
    cuStreamCreate(*mut CUstream, c_uint);
    cuStreamDestroy_v2(CUstream);
    cuStreamSynchronize(CUstream);
    cuStreamGetCtx(CUstream, *mut CUcontext);
    cuStreamWaitEvent(CUstream, CUevent, c_uint);
    cuEventCreate(*mut CUevent, c_uint);
    cuEventDestroy_v2(CUevent);
    cuEventRecord(CUevent, CUstream);
    cuEventSynchronize(CUevent);
    cuEventElapsedTime(*mut f32, CUevent, CUevent);
}

/// Error codes of the driver that this library handles specially.
pub mod code {
    pub const OUT_OF_MEMORY: u32 = 2;
    /// Error codes after which a context is unusable. For most of these codes, the driver's header states that all
    /// further work returns the same error. The header does not state this for six codes: 4 (the driver shuts down),
    /// 201 (the context is invalid), 709 (the context is destroyed), 214 (the memory has an uncorrectable error), 220
    /// (a link has an uncorrectable error) and 999 (the error is unknown).
    pub const STICKY: [u32; 19] =
        [4, 201, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911, 999];
}

/// Attributes of devices. A driver of CUDA 10.2 knows all of them.
pub mod attribute {
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

/// Attributes of kernels.
pub mod function {
    pub const LOCAL_BYTES: i32 = 3;
    pub const REGISTERS: i32 = 4;
    pub const MOST_DYNAMIC_SHARED: i32 = 8;
}

/// Attributes of pointers.
pub mod pointer {
    pub const CONTEXT: i32 = 1;
    pub const MEMORY_TYPE: i32 = 2;
    pub const DEVICE_POINTER: i32 = 3;
    pub const BUFFER_ID: i32 = 7;
    pub const RANGE_START: i32 = 11;
    pub const RANGE_SIZE: i32 = 12;
    pub const TYPE_HOST: u32 = 1;
    pub const TYPE_DEVICE: u32 = 2;
}

/// Options of the driver's compiler.
pub mod jit {
    pub const INFO_LOG: i32 = 3;
    pub const INFO_LOG_SIZE: i32 = 4;
    pub const ERROR_LOG: i32 = 5;
    pub const ERROR_LOG_SIZE: i32 = 6;
    pub const OPTIMIZATION_LEVEL: i32 = 7;
    pub const LOG_BYTES: usize = 4096;
}

/// Flags for page-locked memory that every context can use and that is mapped into the address space of devices.
pub const HOST_PORTABLE_MAPPED: c_uint = 1 | 2;
/// Largest handle that denotes the default stream. Two handles denote this stream: null and `CU_STREAM_LEGACY`.
pub const DEFAULT_STREAM: usize = 1;
/// Flag for a stream that does not synchronise with the default stream.
pub const STREAM_NON_BLOCKING: c_uint = 1;
/// Flag for a context in which a thread that waits for the device blocks instead of spinning.
pub const CONTEXT_BLOCKING: c_uint = 4;
/// Flags for an event that records its time.
pub const EVENT_TIMING: c_uint = 0;
/// Flag for an event that records no time.
pub const EVENT_NO_TIMING: c_uint = 2;
/// Lowest supported compute capability, for which the PTX is compiled.
pub const CAPABILITY: (u32, u32) = (5, 3);
