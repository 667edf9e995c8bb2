//! A library of ONNX Runtime that is opened by its path, and sessions in it.
//!
//! Clauses that unsafe blocks cite:
//! - *table*: the functions are those of the runtime's table for a version that it has.
//! - *own*: handles are the runtime's, made by the calls before and released once.

use half::f16;
use ort_sys::{
    ONNXTensorElementDataType, OrtAllocatorType, OrtApi, OrtApiBase, OrtEnv, OrtLoggingLevel, OrtMemType,
    OrtMemoryInfo, OrtSession, OrtStatusPtr, OrtValue,
};
use std::ffi::{CStr, CString, c_void};
use std::{mem, ptr, slice};

/// A tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    pub dims: Vec<i64>,
    pub data: Data,
}

/// The elements of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bool(Vec<u8>),
    I64(Vec<i64>),
}

impl Data {
    /// ONNX's number of the element type.
    pub fn element(&self) -> i32 {
        match self {
            Data::F32(_) => 1,
            Data::I64(_) => 7,
            Data::Bool(_) => 9,
            Data::F16(_) => 10,
        }
    }

    fn memory(&self) -> (*const c_void, usize) {
        match self {
            Data::F32(x) => (x.as_ptr().cast(), size_of_val(&x[..])),
            Data::F16(x) => (x.as_ptr().cast(), size_of_val(&x[..])),
            Data::Bool(x) => (x.as_ptr().cast(), x.len()),
            Data::I64(x) => (x.as_ptr().cast(), size_of_val(&x[..])),
        }
    }

    /// The element at an index.
    pub fn get(&self, i: usize) -> f64 {
        match self {
            Data::F32(x) => f64::from(x[i]),
            Data::F16(x) => x[i].to_f64(),
            Data::Bool(x) => f64::from(x[i]),
            Data::I64(x) => x[i] as f64,
        }
    }
}

/// A runtime.
pub struct Runtime {
    table: *const OrtApi,
    environment: *mut OrtEnv,
    memory: *mut OrtMemoryInfo,
    /// Its version.
    pub version: String,
    /// The number after the first point of its version.
    pub minor: u32,
}

// SAFETY: *table*: the runtime's functions may be called from any thread.
unsafe impl Sync for Runtime {}

/// A session, which any thread may run.
pub struct Session<'a> {
    runtime: &'a Runtime,
    session: *mut OrtSession,
}

// SAFETY: *table*: sessions may be run from any thread.
unsafe impl Sync for Session<'_> {}

macro_rules! call {
    ($runtime:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        let runtime: &Runtime = $runtime;
        // SAFETY: *table*, *own*; texts end with a zero, and what is written is a local.
        let status = unsafe { ((*runtime.table).$name)($($argument),*) };
        runtime.checked(status)
    }};
}

fn text(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|e| e.to_string())
}

/// The enumeration of ONNX Runtime for a type that [`Data`] has.
fn element_type(data: &Data) -> ONNXTensorElementDataType {
    use ONNXTensorElementDataType as T;
    match data {
        Data::F32(_) => T::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
        Data::F16(_) => T::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16,
        Data::Bool(_) => T::ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL,
        Data::I64(_) => T::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,
    }
}

impl Runtime {
    /// Opens the library.
    pub fn open(path: &str) -> Result<Runtime, String> {
        let path = text(path)?;
        // SAFETY: the text ends with a zero. The library is ONNX Runtime's, whose constructors are safe to run; its entry
        // point and its table have these types in every version.
        let (base, table, version, minor) = unsafe {
            let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
            if library.is_null() {
                return Err(CStr::from_ptr(libc::dlerror()).to_string_lossy().into_owned());
            }
            let entry = libc::dlsym(library, c"OrtGetApiBase".as_ptr());
            if entry.is_null() {
                return Err("OrtGetApiBase: absent".to_owned());
            }
            let entry = mem::transmute::<*mut c_void, extern "C" fn() -> *const OrtApiBase>(entry);
            let base = entry();
            let version = CStr::from_ptr(((*base).GetVersionString)()).to_string_lossy().into_owned();
            let minor = version.split('.').nth(1).and_then(|x| x.parse().ok()).ok_or("no version")?;
            (base, ((*base).GetApi)(std::cmp::min(minor, 17)), version, minor)
        };
        if base.is_null() || table.is_null() {
            return Err(format!("{version}: no functions"));
        }
        let (environment, memory) = (ptr::null_mut(), ptr::null_mut());
        let mut runtime = Runtime { table, environment, memory, version, minor };
        let level = OrtLoggingLevel::ORT_LOGGING_LEVEL_FATAL;
        let mut environment = ptr::null_mut();
        call!(&runtime, CreateEnv(level, c"host".as_ptr(), &raw mut environment))?;
        let (arena, kind) = (OrtAllocatorType::OrtArenaAllocator, OrtMemType::OrtMemTypeDefault);
        let mut memory = ptr::null_mut();
        call!(&runtime, CreateCpuMemoryInfo(arena, kind, &raw mut memory))?;
        (runtime.environment, runtime.memory) = (environment, memory);
        Ok(runtime)
    }

    fn checked(&self, status: OrtStatusPtr) -> Result<(), String> {
        if status.0.is_null() {
            return Ok(());
        }
        // SAFETY: *table*, *own*.
        unsafe {
            let message = CStr::from_ptr(((*self.table).GetErrorMessage)(status.0));
            let message = message.to_string_lossy().into_owned();
            ((*self.table).ReleaseStatus)(status.0);
            Err(message)
        }
    }

    /// A session of a model with the operators of a library, on one thread of the runtime's.
    pub fn session(
        &self,
        operators: &str,
        model: &[u8],
        configuration: Option<(&CStr, &CStr)>,
    ) -> Result<Session<'_>, String> {
        let operators = text(operators)?;
        let (mut options, mut library, mut session) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        call!(self, CreateSessionOptions(&raw mut options))?;
        call!(self, SetIntraOpNumThreads(options, 1))?;
        let made = (|| {
            if let Some((key, value)) = configuration {
                call!(self, AddSessionConfigEntry(options, key.as_ptr(), value.as_ptr()))?;
            }
            call!(self, RegisterCustomOpsLibrary(options, operators.as_ptr(), &raw mut library))?;
            let (data, len) = (model.as_ptr().cast(), model.len());
            call!(self, CreateSessionFromArray(self.environment, data, len, options, &raw mut session))
        })();
        // SAFETY: *table*, *own*.
        unsafe { ((*self.table).ReleaseSessionOptions)(options) };
        made.map(|()| Session { runtime: self, session })
    }

    fn value(&self, tensor: &Tensor) -> Result<*mut OrtValue, String> {
        let mut value = ptr::null_mut();
        let (data, bytes) = tensor.data.memory();
        let (dims, rank) = (tensor.dims.as_ptr(), tensor.dims.len());
        let element = element_type(&tensor.data);
        let data = data.cast_mut();
        let make = call!(
            self,
            CreateTensorWithDataAsOrtValue(self.memory, data, bytes, dims, rank, element, &raw mut value)
        );
        make.map(|()| value)
    }

    fn tensor(&self, value: *const OrtValue) -> Result<Tensor, String> {
        let (mut info, mut data) = (ptr::null_mut(), ptr::null_mut());
        call!(self, GetTensorTypeAndShape(value, &raw mut info))?;
        let (mut element, mut rank, mut count) = (0i32, 0, 0);
        call!(self, GetTensorElementType(info, (&raw mut element).cast()))?;
        call!(self, GetDimensionsCount(info, &raw mut rank))?;
        let mut dims = vec![0; rank];
        call!(self, GetDimensions(info, dims.as_mut_ptr(), rank))?;
        call!(self, GetTensorShapeElementCount(info, &raw mut count))?;
        // SAFETY: *table*, *own*.
        unsafe { ((*self.table).ReleaseTensorTypeAndShapeInfo)(info) };
        call!(self, GetTensorMutableData(value.cast_mut(), &raw mut data))?;
        // SAFETY: the runtime's tensor has as many elements of its type, and is copied before it is released.
        let data = unsafe {
            match element {
                1 => Data::F32(slice::from_raw_parts(data.cast(), count).to_vec()),
                10 => Data::F16(slice::from_raw_parts(data.cast(), count).to_vec()),
                _ => return Err(format!("an output of type {element}")),
            }
        };
        Ok(Tensor { dims, data })
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
    /// Runs the session.
    pub fn run(&self, inputs: &[(&str, &Tensor)], outputs: &[&str]) -> Result<Vec<Tensor>, String> {
        let runtime = self.runtime;
        let names = |of: &[&str]| of.iter().map(|name| text(name)).collect::<Result<Vec<_>, _>>();
        let (input_names, output_names) =
            (names(&inputs.iter().map(|(name, _)| *name).collect::<Vec<_>>())?, names(outputs)?);
        let pointers = |of: &[CString]| of.iter().map(|name| name.as_ptr()).collect::<Vec<_>>();
        let (input_pointers, output_pointers) = (pointers(&input_names), pointers(&output_names));
        let values: Vec<*mut OrtValue> =
            inputs.iter().map(|(_, tensor)| runtime.value(tensor)).collect::<Result<_, _>>()?;
        let given: Vec<*const OrtValue> = values.iter().map(|value| value.cast_const()).collect();
        let mut results: Vec<*mut OrtValue> = vec![ptr::null_mut(); outputs.len()];
        let ran = call!(
            runtime,
            Run(
                self.session,
                ptr::null(),
                input_pointers.as_ptr(),
                given.as_ptr(),
                given.len(),
                output_pointers.as_ptr(),
                outputs.len(),
                results.as_mut_ptr(),
            )
        );
        let tensors =
            ran.and_then(|()| results.iter().map(|value| runtime.tensor(*value)).collect::<Result<_, _>>());
        for value in values.into_iter().chain(results) {
            // SAFETY: *table*, *own*: null is ignored.
            unsafe { ((*runtime.table).ReleaseValue)(value) };
        }
        tensors
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // SAFETY: *table*, *own*.
        unsafe { ((*self.runtime.table).ReleaseSession)(self.session) };
    }
}
