//! Opens a library of ONNX Runtime by its path, and runs sessions in it.
//!
//! **The naive way** links ONNX Runtime, or loads a version that was fixed at compile time.
//!
//! **Why the code differs.** The caller chooses the library: any version from 1.10 on. The runtime's table of functions
//! only grows from version to version, so this crate requests the newest table that both the runtime and the crate know,
//! and calls no function that is newer than 1.10.
//!
//! Clauses cited by unsafe blocks:
//! - *table*: the functions come from the runtime's table for a version that the runtime supports, and the library
//!   stays loaded.
//! - *own*: handles belong to the runtime, were returned by earlier calls and are released once.

use half::f16;
use ort_sys::{
    ONNXTensorElementDataType, OrtAllocatorType, OrtApi, OrtApiBase, OrtCUDAProviderOptions,
    OrtCudnnConvAlgoSearch, OrtEnv, OrtLoggingLevel, OrtMemType, OrtMemoryInfo, OrtRunOptions, OrtSession,
    OrtStatusPtr, OrtTensorTypeAndShapeInfo, OrtValue,
};
use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;
use std::{mem, ptr, slice, thread};

/// The newest version of the interface whose types this crate knows.
const NEWEST: u32 = 17;

/// Error from loading or calling ONNX Runtime.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// The system cannot load a file.
    #[error("{}: cannot be loaded: {reason}", path.display())]
    Load {
        /// Path of the file.
        path: PathBuf,
        /// Message of the system.
        reason: String,
    },
    /// The library is not ONNX Runtime, or is older than version 1.10.
    #[error("{}: {found}; allowed: ONNX Runtime 1.10 or newer", path.display())]
    Foreign {
        /// Path of the file.
        path: PathBuf,
        /// Description of the library, for the message.
        found: String,
    },
    /// The runtime rejected a call.
    #[error("{call}: {message}")]
    Call {
        /// Name of the function that returned the error.
        call: &'static str,
        /// Message of the runtime.
        message: String,
    },
    /// A name or a path contains a zero byte.
    #[error("{0:?}: a zero within; allowed: none")]
    Text(String),
    /// An output is not a tensor, or its element type is not in [`Data`].
    #[error("output {name}: {found}; allowed: a tensor of numbers or truth values")]
    Output {
        /// Name of the output.
        name: String,
        /// Description of the output, for the message.
        found: String,
    },
    /// A run exceeded this time limit and was terminated.
    #[error("a run was ended after {0:?}")]
    Late(Duration),
    /// The system could not start a thread. The text is the system's message.
    #[error("no thread can be started: {0}")]
    Thread(String),
}

/// A tensor in the memory of this process.
#[derive(Clone, Debug, PartialEq)]
pub struct HostTensor {
    /// Sizes of the axes.
    pub dims: Vec<i64>,
    /// Elements of the tensor in row-major order.
    pub data: Data,
}

/// The elements of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// f32 elements.
    F32(Vec<f32>),
    /// f16 elements.
    F16(Vec<f16>),
    /// f64 elements.
    F64(Vec<f64>),
    /// Booleans, stored as 0 or 1.
    Bool(Vec<u8>),
    /// Unsigned 8-bit integers.
    U8(Vec<u8>),
    /// Signed 32-bit integers.
    I32(Vec<i32>),
    /// Signed 64-bit integers.
    I64(Vec<i64>),
}

impl Data {
    /// Returns the number that ONNX assigns to the element type.
    #[must_use]
    pub fn element(&self) -> i32 {
        match self {
            Data::F32(_) => 1,
            Data::U8(_) => 2,
            Data::I32(_) => 6,
            Data::I64(_) => 7,
            Data::Bool(_) => 9,
            Data::F16(_) => 10,
            Data::F64(_) => 11,
        }
    }

    /// Returns `true` if the elements are floating-point numbers.
    #[must_use]
    pub fn is_float(&self) -> bool {
        matches!(self, Data::F32(_) | Data::F16(_) | Data::F64(_))
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Data::F32(x) => x.len(),
            Data::F16(x) => x.len(),
            Data::F64(x) => x.len(),
            Data::Bool(x) | Data::U8(x) => x.len(),
            Data::I32(x) => x.len(),
            Data::I64(x) => x.len(),
        }
    }

    /// Returns `true` if there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn memory(&self) -> (*const c_void, usize) {
        match self {
            Data::F32(x) => (x.as_ptr().cast(), size_of_val(&x[..])),
            Data::F16(x) => (x.as_ptr().cast(), size_of_val(&x[..])),
            Data::F64(x) => (x.as_ptr().cast(), size_of_val(&x[..])),
            Data::Bool(x) | Data::U8(x) => (x.as_ptr().cast(), x.len()),
            Data::I32(x) => (x.as_ptr().cast(), size_of_val(&x[..])),
            Data::I64(x) => (x.as_ptr().cast(), size_of_val(&x[..])),
        }
    }

    /// Returns the element at an index, converted to f64.
    ///
    /// # Panics
    /// Panics if `i` is not below [`Data::len`].
    #[must_use]
    pub fn get(&self, i: usize) -> f64 {
        match self {
            Data::F32(x) => f64::from(x[i]),
            Data::F16(x) => x[i].to_f64(),
            Data::F64(x) => x[i],
            Data::Bool(x) | Data::U8(x) => f64::from(x[i]),
            Data::I32(x) => f64::from(x[i]),
            Data::I64(x) => x[i] as f64,
        }
    }

    /// Returns the element type as a value of ONNX Runtime's enumeration.
    fn kind(&self) -> ONNXTensorElementDataType {
        use ONNXTensorElementDataType as T;
        match self {
            Data::F32(_) => T::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
            Data::F16(_) => T::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16,
            Data::F64(_) => T::ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE,
            Data::Bool(_) => T::ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL,
            Data::U8(_) => T::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8,
            Data::I32(_) => T::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,
            Data::I64(_) => T::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,
        }
    }
}

/// The source of a model.
#[derive(Clone, Copy, Debug)]
pub enum Model<'a> {
    /// Contents of a model file that has no external data.
    Bytes(&'a [u8]),
    /// Path of a model file. External weights are in the same folder.
    File(&'a Path),
}

/// Options of a session.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// Path of a library of custom operators, to be registered in the session.
    pub operators: Option<&'a Path>,
    /// Number of threads that compute a node; 0 lets the runtime choose.
    pub threads: i32,
    /// Key and value of one entry in the session's configuration.
    pub configuration: Option<(&'a CStr, &'a CStr)>,
    /// Whether the CUDA provider computes on the first GPU the nodes that it supports.
    pub cuda: bool,
}

/// Options of the CUDA provider: the first GPU, and the runtime's defaults.
const FIRST_GPU: OrtCUDAProviderOptions = OrtCUDAProviderOptions {
    device_id: 0,
    cudnn_conv_algo_search: OrtCudnnConvAlgoSearch::OrtCudnnConvAlgoSearchExhaustive,
    gpu_mem_limit: usize::MAX,
    arena_extend_strategy: 0,
    do_copy_in_default_stream: 1,
    has_user_compute_stream: 0,
    user_compute_stream: ptr::null_mut(),
    default_memory_arena_cfg: ptr::null_mut(),
    tunable_op_enable: 0,
    tunable_op_tuning_enable: 0,
    tunable_op_max_tuning_duration_ms: 0,
};

/// A loaded library of ONNX Runtime.
pub struct Runtime {
    table: *const OrtApi,
    environment: *mut OrtEnv,
    memory: *mut OrtMemoryInfo,
    /// Version of the runtime.
    pub version: String,
    /// Second number of the version: 17 in 1.17.0.
    pub minor: u32,
}

// SAFETY: *table*: the runtime's functions may be called from any thread.
unsafe impl Sync for Runtime {}

/// A session. Any thread may run it.
pub struct Session<'a> {
    runtime: &'a Runtime,
    session: *mut OrtSession,
}

// SAFETY: *table*: sessions may be run from any thread.
unsafe impl Sync for Session<'_> {}

macro_rules! call {
    ($runtime:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        let runtime: &Runtime = $runtime;
        // SAFETY: *table*, *own*; texts end with a zero, and the function writes to a local.
        let status = unsafe { ((*runtime.table).$name)($($argument),*) };
        runtime.checked(stringify!($name), status)
    }};
}

fn text(text: &str) -> Result<CString, RuntimeError> {
    CString::new(text).map_err(|_| RuntimeError::Text(text.to_owned()))
}

fn file(path: &Path) -> Result<CString, RuntimeError> {
    let bytes = path.as_os_str().as_bytes();
    CString::new(bytes).map_err(|_| RuntimeError::Text(path.display().to_string()))
}

/// A tensor that belongs to the runtime; null before the runtime has created it.
struct RuntimeValue<'a> {
    runtime: &'a Runtime,
    value: *mut OrtValue,
}

impl Drop for RuntimeValue<'_> {
    fn drop(&mut self) {
        // SAFETY: *table*, *own*: null is ignored.
        unsafe { ((*self.runtime.table).ReleaseValue)(self.value) };
    }
}

/// Options of a run.
struct RunOptions<'a> {
    runtime: &'a Runtime,
    options: *mut OrtRunOptions,
}

// SAFETY: *table*: a run may be terminated from any thread.
unsafe impl Sync for RunOptions<'_> {}

impl Drop for RunOptions<'_> {
    fn drop(&mut self) {
        // SAFETY: *table*, *own*: null is ignored.
        unsafe { ((*self.runtime.table).ReleaseRunOptions)(self.options) };
    }
}

impl Runtime {
    /// Opens the library at `path`. A path without a slash is resolved by the system's loader. The library stays
    /// loaded until the process ends.
    ///
    /// # Errors
    /// Returns an error if the file is not ONNX Runtime 1.10 or later.
    pub fn open(path: &Path) -> Result<Runtime, RuntimeError> {
        let name = file(path)?;
        let foreign = |found: String| RuntimeError::Foreign { path: path.to_path_buf(), found };
        // SAFETY: the text ends with a zero. The library is ONNX Runtime's, whose constructors are safe to run.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            // SAFETY: the previous call has failed, so there is a text, which ends with a zero.
            let reason = unsafe { CStr::from_ptr(libc::dlerror()) };
            let reason = reason.to_string_lossy().into_owned();
            return Err(RuntimeError::Load { path: path.to_path_buf(), reason });
        }
        // SAFETY: the library is loaded, and the text ends with a zero.
        let entry = unsafe { libc::dlsym(library, c"OrtGetApiBase".as_ptr()) };
        if entry.is_null() {
            return Err(foreign("a library without OrtGetApiBase".to_owned()));
        }
        // SAFETY: the entry point of every version has this type.
        let base = unsafe { mem::transmute::<*mut c_void, extern "C" fn() -> *const OrtApiBase>(entry)() };
        if base.is_null() {
            return Err(foreign("a library without functions".to_owned()));
        }
        // SAFETY: the base of every version has these two functions; the version's text ends with a zero.
        let version = unsafe { CStr::from_ptr(((*base).GetVersionString)()) }.to_string_lossy().into_owned();
        let mut numbers = version.split('.').map(|x| x.parse::<u32>().unwrap_or(0));
        let minor = match (numbers.next(), numbers.next()) {
            (Some(1), Some(minor)) if minor >= 10 => minor,
            (Some(2..), _) => NEWEST,
            _ => return Err(foreign(format!("version {version}"))),
        };
        // SAFETY: as above.
        let table = unsafe { ((*base).GetApi)(minor.min(NEWEST)) };
        if table.is_null() {
            return Err(foreign(format!("version {version} without functions")));
        }
        let (environment, memory) = (ptr::null_mut(), ptr::null_mut());
        let mut runtime = Runtime { table, environment, memory, version, minor };
        let level = OrtLoggingLevel::ORT_LOGGING_LEVEL_FATAL;
        let mut environment = ptr::null_mut();
        call!(&runtime, CreateEnv(level, c"elsa".as_ptr(), &raw mut environment))?;
        runtime.environment = environment;
        let (arena, kind) = (OrtAllocatorType::OrtArenaAllocator, OrtMemType::OrtMemTypeDefault);
        let mut memory = ptr::null_mut();
        call!(&runtime, CreateCpuMemoryInfo(arena, kind, &raw mut memory))?;
        runtime.memory = memory;
        Ok(runtime)
    }

    fn checked(&self, call: &'static str, status: OrtStatusPtr) -> Result<(), RuntimeError> {
        if status.0.is_null() {
            return Ok(());
        }
        // SAFETY: *table*, *own*: the message ends with a zero and lives as long as the status.
        unsafe {
            let message = CStr::from_ptr(((*self.table).GetErrorMessage)(status.0));
            let message = message.to_string_lossy().into_owned();
            ((*self.table).ReleaseStatus)(status.0);
            Err(RuntimeError::Call { call, message })
        }
    }

    /// Creates a session of a model.
    ///
    /// # Errors
    /// Returns an error if the runtime rejects the provider, the library of operators or the model.
    pub fn session(&self, model: Model<'_>, with: &Options<'_>) -> Result<Session<'_>, RuntimeError> {
        let operators = with.operators.map(file).transpose()?;
        let (mut options, mut library, mut session) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        call!(self, CreateSessionOptions(&raw mut options))?;
        let made = (|| {
            call!(self, SetIntraOpNumThreads(options, with.threads))?;
            if let Some((key, value)) = with.configuration {
                call!(self, AddSessionConfigEntry(options, key.as_ptr(), value.as_ptr()))?;
            }
            if with.cuda {
                call!(self, SessionOptionsAppendExecutionProvider_CUDA(options, &FIRST_GPU))?;
            }
            if let Some(operators) = &operators {
                call!(self, RegisterCustomOpsLibrary(options, operators.as_ptr(), &raw mut library))?;
            }
            match model {
                Model::Bytes(bytes) => {
                    let (data, len) = (bytes.as_ptr().cast(), bytes.len());
                    call!(
                        self,
                        CreateSessionFromArray(self.environment, data, len, options, &raw mut session)
                    )
                }
                Model::File(path) => {
                    let path = file(path)?;
                    call!(self, CreateSession(self.environment, path.as_ptr(), options, &raw mut session))
                }
            }
        })();
        // SAFETY: *table*, *own*: the options are released once.
        unsafe { ((*self.table).ReleaseSessionOptions)(options) };
        made.map(|()| Session { runtime: self, session })
    }

    /// Creates a tensor of the runtime that shares the memory of `tensor`, without a copy.
    fn value(&self, tensor: &HostTensor) -> Result<RuntimeValue<'_>, RuntimeError> {
        let mut value = ptr::null_mut();
        let (data, bytes) = tensor.data.memory();
        let (dims, rank) = (tensor.dims.as_ptr(), tensor.dims.len());
        let (data, kind) = (data.cast_mut(), tensor.data.kind());
        call!(
            self,
            CreateTensorWithDataAsOrtValue(self.memory, data, bytes, dims, rank, kind, &raw mut value)
        )?;
        Ok(RuntimeValue { runtime: self, value })
    }

    /// Returns the axes, the number of elements, and the number that ONNX assigns to the element type.
    fn shape(&self, info: *const OrtTensorTypeAndShapeInfo) -> Result<(Vec<i64>, usize, i32), RuntimeError> {
        let (mut element, mut rank, mut count) = (0i32, 0, 0);
        call!(self, GetTensorElementType(info, (&raw mut element).cast()))?;
        call!(self, GetDimensionsCount(info, &raw mut rank))?;
        let mut dims = vec![0; rank];
        call!(self, GetDimensions(info, dims.as_mut_ptr(), rank))?;
        call!(self, GetTensorShapeElementCount(info, &raw mut count))?;
        Ok((dims, count, element))
    }

    /// Copies an output of the runtime. `name` is for the message of an error.
    fn tensor(&self, name: &str, value: &RuntimeValue<'_>) -> Result<HostTensor, RuntimeError> {
        let refuse = |found: String| RuntimeError::Output { name: name.to_owned(), found };
        if value.value.is_null() {
            return Err(refuse("absent".to_owned()));
        }
        let (mut info, mut data) = (ptr::null_mut(), ptr::null_mut());
        call!(self, GetTensorTypeAndShape(value.value, &raw mut info)).map_err(|e| refuse(e.to_string()))?;
        let shape = self.shape(info);
        // SAFETY: *table*, *own*: the description is released once.
        unsafe { ((*self.table).ReleaseTensorTypeAndShapeInfo)(info) };
        let (dims, count, element) = shape?;
        call!(self, GetTensorMutableData(value.value, &raw mut data))?;
        let count = if data.is_null() { 0 } else { count };
        let data = if count == 0 { ptr::dangling_mut::<f64>().cast() } else { data };
        // SAFETY: the runtime's tensor has `count` elements of its type, which are copied before the tensor is released.
        let data = unsafe {
            match element {
                1 => Data::F32(slice::from_raw_parts(data.cast(), count).to_vec()),
                2 => Data::U8(slice::from_raw_parts(data.cast(), count).to_vec()),
                6 => Data::I32(slice::from_raw_parts(data.cast(), count).to_vec()),
                7 => Data::I64(slice::from_raw_parts(data.cast(), count).to_vec()),
                9 => Data::Bool(slice::from_raw_parts(data.cast(), count).to_vec()),
                10 => Data::F16(slice::from_raw_parts(data.cast(), count).to_vec()),
                11 => Data::F64(slice::from_raw_parts(data.cast(), count).to_vec()),
                _ => return Err(refuse(format!("elements of ONNX's type {element}"))),
            }
        };
        Ok(HostTensor { dims, data })
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        // SAFETY: *table*, *own*: null is ignored.
        unsafe {
            ((*self.table).ReleaseMemoryInfo)(self.memory);
            ((*self.table).ReleaseEnv)(self.environment);
        }
    }
}

impl Session<'_> {
    /// Runs the session. If the run exceeds `limit`, it is terminated after the current node.
    ///
    /// # Errors
    /// Returns an error if the runtime rejects the run, or if the run was terminated.
    pub fn run(
        &self,
        inputs: &[(&str, &HostTensor)],
        outputs: &[&str],
        limit: Option<Duration>,
    ) -> Result<Vec<HostTensor>, RuntimeError> {
        let runtime = self.runtime;
        let input_names = inputs.iter().map(|(name, _)| text(name)).collect::<Result<Vec<_>, _>>()?;
        let output_names = outputs.iter().map(|name| text(name)).collect::<Result<Vec<_>, _>>()?;
        let pointers = |of: &[CString]| of.iter().map(|name| name.as_ptr()).collect::<Vec<_>>();
        let (input_pointers, output_pointers) = (pointers(&input_names), pointers(&output_names));
        let values: Vec<RuntimeValue<'_>> =
            inputs.iter().map(|(_, tensor)| runtime.value(tensor)).collect::<Result<_, _>>()?;
        let given: Vec<*const OrtValue> = values.iter().map(|value| value.value.cast_const()).collect();
        let mut made: Vec<*mut OrtValue> = vec![ptr::null_mut(); outputs.len()];
        let mut options = RunOptions { runtime, options: ptr::null_mut() };
        call!(runtime, CreateRunOptions(&raw mut options.options))?;
        let ended = AtomicBool::new(false);
        let ran = thread::scope(|scope| {
            let (done, end) = mpsc::channel::<()>();
            if let Some(limit) = limit {
                let (options, ended) = (&options, &ended);
                let watch = move || {
                    if end.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                        ended.store(true, Ordering::Relaxed);
                        // If the run cannot be terminated, the caller waits until it ends.
                        let _ = call!(options.runtime, RunOptionsSetTerminate(options.options));
                    }
                };
                let watch = thread::Builder::new().spawn_scoped(scope, watch);
                watch.map_err(|e| RuntimeError::Thread(e.to_string()))?;
            }
            let ran = call!(
                runtime,
                Run(
                    self.session,
                    options.options,
                    input_pointers.as_ptr(),
                    given.as_ptr(),
                    given.len(),
                    output_pointers.as_ptr(),
                    outputs.len(),
                    made.as_mut_ptr(),
                )
            );
            drop(done);
            ran
        });
        let made: Vec<RuntimeValue<'_>> =
            made.into_iter().map(|value| RuntimeValue { runtime, value }).collect();
        match (ran, limit) {
            (Err(_), Some(limit)) if ended.load(Ordering::Relaxed) => Err(RuntimeError::Late(limit)),
            (Err(error), _) => Err(error),
            (Ok(()), _) => {
                made.iter().zip(outputs).map(|(value, name)| runtime.tensor(name, value)).collect()
            }
        }
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // SAFETY: *table*, *own*: the session is released once.
        unsafe { ((*self.runtime.table).ReleaseSession)(self.session) };
    }
}
