//! The functions of ONNX Runtime that this library calls, each with its status converted to an error.
//!
//! A runtime's table of functions only grows at its end. [`Api`] stores the version for which the table was requested,
//! and a function is called only if the table of this version has it.

use crate::error::OperatorError;
use ort_sys::{
    OrtAllocator, OrtApi, OrtCustomOp, OrtCustomOpDomain, OrtErrorCode, OrtKernelContext, OrtKernelInfo,
    OrtMemType, OrtSessionOptions, OrtStatusPtr, OrtTensorTypeAndShapeInfo, OrtValue,
};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::{ptr, slice};

/// Maximum rank of a tensor of the operator.
pub(crate) const MAX_RANK: usize = 4;

/// The newest version of the interface that this library knows.
pub(crate) const NEWEST: u32 = 24;
/// The first version in which a session's configuration can be read.
const WITH_CONFIGURATION: u32 = 14;
/// The first version that lends its threads to an operator.
const WITH_THREADS: u32 = 17;
/// The first version that lends a node the allocator of its provider.
const WITH_ALLOCATOR: u32 = 18;
/// The first version that lends the axes of a tensor without allocating a description of it.
const WITH_AXES: u32 = 24;

/// The table of functions of a runtime.
///
/// Clauses of its functions:
/// - *table*: `GetApi` returned the pointer for the version, and the runtime stays loaded.
/// - *handle*: the runtime passed the handles to the callback that calls the function.
#[derive(Clone, Copy)]
pub(crate) struct Api {
    table: *const OrtApi,
    version: u32,
}

// SAFETY: *table*: the functions may be called from any thread, as ONNX Runtime documents.
unsafe impl Send for Api {}
// SAFETY: as above.
unsafe impl Sync for Api {}

/// Element type and axes of a tensor. `dims` is not set if the rank exceeds [`MAX_RANK`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TensorShape {
    /// Number that ONNX assigns to the element type.
    pub element: i32,
    pub rank: usize,
    pub dims: [i64; MAX_RANK],
}

impl TensorShape {
    /// Returns the sizes of the axes.
    pub fn dims(&self) -> &[i64] {
        &self.dims[..self.rank.min(MAX_RANK)]
    }
}

/// Calls a function of the table and converts its status to an error with the name of the function.
macro_rules! call {
    ($api:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        let api: &Api = &$api;
        // SAFETY: *table*, *handle*: callers guarantee both clauses. The function writes to a local of the right type.
        let status = unsafe { ((*api.table).$name)($($argument),*) };
        api.checked(stringify!($name), status)
    }};
}

impl Api {
    /// Stores the table of functions and the version for which it was requested.
    ///
    /// # Safety
    /// - The caller keeps the clause *table* of [`Api`].
    pub unsafe fn new(table: *const OrtApi, version: u32) -> Api {
        Api { table, version }
    }

    /// Returns the version for which the table was requested.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Returns `true` if the runtime lends its threads to operators.
    pub fn lends(&self) -> bool {
        self.version >= WITH_THREADS
    }

    /// Calls `share(task, i)` for every number `i` below `count` on the runtime's threads, and waits until all calls
    /// have returned.
    ///
    /// # Safety
    /// - The caller keeps the clause *handle* of [`Api`]; the runtime [lends](Api::lends) its threads; `share` may be
    ///   called with `task` and any of the numbers.
    pub unsafe fn parallel_for(
        &self,
        context: *const OrtKernelContext,
        share: unsafe extern "system" fn(*mut c_void, usize),
        count: usize,
        task: *mut c_void,
    ) -> Result<(), OperatorError> {
        // Each share is a separate batch, so no share waits for another.
        call!(self, KernelContext_ParallelFor(context, share, count, count, task))
    }

    fn checked(&self, call: &'static str, status: OrtStatusPtr) -> Result<(), OperatorError> {
        if status.0.is_null() {
            return Ok(());
        }
        // SAFETY: *table*: the status is not null, its message ends with a zero and lives as long as the status, which is
        // released once.
        let message = unsafe {
            let text = CStr::from_ptr(((*self.table).GetErrorMessage)(status.0));
            let message = text.to_string_lossy().into_owned();
            ((*self.table).ReleaseStatus)(status.0);
            message
        };
        Err(OperatorError::Host { call, message })
    }

    /// Converts a result to a status of the runtime; null for success.
    pub fn status(&self, result: Result<(), OperatorError>) -> OrtStatusPtr {
        let Err(e) = result else { return OrtStatusPtr::default() };
        let code = match e {
            OperatorError::Host { .. } | OperatorError::Run(_) => OrtErrorCode::ORT_FAIL,
            OperatorError::Panic { .. } => OrtErrorCode::ORT_RUNTIME_EXCEPTION,
            _ => OrtErrorCode::ORT_INVALID_ARGUMENT,
        };
        let message = message(&e);
        // SAFETY: *table*: the message ends with a zero, and is copied.
        unsafe { ((*self.table).CreateStatus)(code, message.as_ptr()) }
    }

    /// Adds a domain with operators to the options of a session. The domain is never released, because sessions use it for
    /// their whole lifetime.
    ///
    /// # Safety
    /// - The caller keeps the clause *handle* of [`Api`]; the operators live as long as the process.
    pub unsafe fn add_domain(
        &self,
        options: *mut OrtSessionOptions,
        name: &'static CStr,
        operators: impl IntoIterator<Item = *const OrtCustomOp>,
    ) -> Result<(), OperatorError> {
        let mut domain: *mut OrtCustomOpDomain = ptr::null_mut();
        call!(self, CreateCustomOpDomain(name.as_ptr(), &raw mut domain))?;
        for operator in operators {
            call!(self, CustomOpDomain_Add(domain, operator))?;
        }
        call!(self, AddCustomOpDomain(options, domain))
    }

    /// Returns `true` if the runtime was built with the execution provider `name`.
    pub fn has_provider(&self, name: &CStr) -> Result<bool, OperatorError> {
        let (mut names, mut count): (*mut *mut c_char, c_int) = (ptr::null_mut(), 0);
        call!(self, GetAvailableProviders(&raw mut names, &raw mut count))?;
        // SAFETY: *table*: the call has succeeded, so until its release the list contains `count` names, and each name
        // ends with a zero.
        let found = (0..usize::try_from(count).unwrap_or(0))
            .any(|i| unsafe { CStr::from_ptr(*names.add(i)) } == name);
        call!(self, ReleaseAvailableProviders(names, count))?;
        Ok(found)
    }

    /// Returns an entry of a session's configuration; `None` if the entry is missing, or if the runtime is too old to
    /// read it.
    ///
    /// # Safety
    /// - The caller keeps the clause *handle* of [`Api`].
    pub unsafe fn configuration(
        &self,
        options: *const OrtSessionOptions,
        key: &CStr,
    ) -> Result<Option<String>, OperatorError> {
        if self.version < WITH_CONFIGURATION {
            return Ok(None);
        }
        let mut found: c_int = 0;
        call!(self, HasSessionConfigEntry(options, key.as_ptr(), &raw mut found))?;
        if found == 0 {
            return Ok(None);
        }
        let mut size = 0usize;
        call!(self, GetSessionConfigEntry(options, key.as_ptr(), ptr::null_mut(), &raw mut size))?;
        let mut text = vec![0u8; size];
        call!(self, GetSessionConfigEntry(options, key.as_ptr(), text.as_mut_ptr().cast(), &raw mut size))?;
        text.truncate(size.saturating_sub(1));
        Ok(Some(String::from_utf8_lossy(&text).into_owned()))
    }

    /// Returns an integer attribute of a node; `None` if the node has no attribute of this name and type.
    ///
    /// # Safety
    /// - The caller keeps the clause *handle* of [`Api`].
    pub unsafe fn integer(&self, info: *const OrtKernelInfo, name: &CStr) -> Option<i64> {
        let mut value = 0i64;
        call!(self, KernelInfoGetAttribute_int64(info, name.as_ptr(), &raw mut value)).ok().map(|()| value)
    }

    /// Returns a real attribute of a node; `None` if the node has no attribute of this name and type.
    ///
    /// # Safety
    /// - The caller keeps the clause *handle* of [`Api`].
    pub unsafe fn number(&self, info: *const OrtKernelInfo, name: &CStr) -> Option<f32> {
        let mut value = 0f32;
        call!(self, KernelInfoGetAttribute_float(info, name.as_ptr(), &raw mut value)).ok().map(|()| value)
    }

    /// Returns an attribute that is a list of `N` integers. If the list has another length, returns that length.
    /// Returns `None` if the node has no attribute of this name and type.
    ///
    /// # Safety
    /// - The caller keeps the clause *handle* of [`Api`].
    pub unsafe fn integers<const N: usize>(
        &self,
        info: *const OrtKernelInfo,
        name: &CStr,
    ) -> Option<Result<[i64; N], usize>> {
        let mut size = 0usize;
        call!(self, KernelInfoGetAttributeArray_int64(info, name.as_ptr(), ptr::null_mut(), &raw mut size))
            .ok()?;
        let mut values = [0i64; N];
        if size != N {
            return Some(Err(size));
        }
        call!(
            self,
            KernelInfoGetAttributeArray_int64(info, name.as_ptr(), values.as_mut_ptr(), &raw mut size)
        )
        .ok()
        .map(|()| Ok(values))
    }

    /// Returns `true` if a node has an attribute of this name that is text or a list of real numbers.
    ///
    /// # Safety
    /// - The caller keeps the clause *handle* of [`Api`].
    pub unsafe fn has_other(&self, info: *const OrtKernelInfo, name: &CStr) -> bool {
        let mut size = 0usize;
        let text =
            call!(self, KernelInfoGetAttribute_string(info, name.as_ptr(), ptr::null_mut(), &raw mut size));
        let list = call!(
            self,
            KernelInfoGetAttributeArray_float(info, name.as_ptr(), ptr::null_mut(), &raw mut size)
        );
        text.is_ok() || list.is_ok_and(|()| size > 0)
    }

    /// Returns the number of inputs of a call, including absent ones.
    ///
    /// # Safety
    /// - The caller keeps the clause *handle* of [`Api`].
    pub unsafe fn inputs(&self, context: *const OrtKernelContext) -> Result<usize, OperatorError> {
        let mut count = 0usize;
        call!(self, KernelContext_GetInputCount(context, &raw mut count)).map(|()| count)
    }

    /// Returns the number of outputs of a call, including absent ones.
    ///
    /// # Safety
    /// - The caller keeps the clause *handle* of [`Api`].
    pub unsafe fn outputs(&self, context: *const OrtKernelContext) -> Result<usize, OperatorError> {
        let mut count = 0usize;
        call!(self, KernelContext_GetOutputCount(context, &raw mut count)).map(|()| count)
    }

    /// Returns an input of a call; null if it is absent.
    ///
    /// # Safety
    /// - The caller keeps the clause *handle* of [`Api`].
    pub unsafe fn input(
        &self,
        context: *const OrtKernelContext,
        index: usize,
    ) -> Result<*const OrtValue, OperatorError> {
        let mut value = ptr::null();
        call!(self, KernelContext_GetInput(context, index, &raw mut value)).map(|()| value)
    }

    /// Allocates an output of a call; null if the node does not have it.
    ///
    /// # Safety
    /// - The caller keeps the clause *handle* of [`Api`].
    pub unsafe fn output(
        &self,
        context: *mut OrtKernelContext,
        index: usize,
        dims: &[i64],
    ) -> Result<*const OrtValue, OperatorError> {
        let mut value: *mut OrtValue = ptr::null_mut();
        call!(self, KernelContext_GetOutput(context, index, dims.as_ptr(), dims.len(), &raw mut value))
            .map(|()| value.cast_const())
    }

    /// Returns a pointer to the elements of a tensor.
    ///
    /// # Safety
    /// - The caller keeps the clause *handle* of [`Api`].
    pub unsafe fn data(&self, value: *const OrtValue) -> Result<*mut c_void, OperatorError> {
        let mut data = ptr::null_mut();
        call!(self, GetTensorMutableData(value.cast_mut(), &raw mut data)).map(|()| data)
    }

    /// Returns the type and the axes of a tensor.
    ///
    /// # Safety
    /// - The caller keeps the clause *handle* of [`Api`].
    pub unsafe fn shape(&self, value: *const OrtValue) -> Result<TensorShape, OperatorError> {
        if self.version >= WITH_AXES {
            // SAFETY: the clause of this function.
            return unsafe { self.lent_shape(value) };
        }
        let mut info: *mut OrtTensorTypeAndShapeInfo = ptr::null_mut();
        call!(self, GetTensorTypeAndShape(value, &raw mut info))?;
        let shape = self.described(info);
        // SAFETY: *table*: the description was created above and is released once.
        unsafe { ((*self.table).ReleaseTensorTypeAndShapeInfo)(info) };
        shape
    }

    /// Returns the type and the axes of a tensor, which the runtime lends.
    ///
    /// # Safety
    /// - The caller keeps the clause *handle* of [`Api`]; the runtime has version [`WITH_AXES`] or newer.
    unsafe fn lent_shape(&self, value: *const OrtValue) -> Result<TensorShape, OperatorError> {
        let mut shape = TensorShape::default();
        let mut dims = ptr::null();
        // Read as an integer, because a newer runtime has types that the enumeration does not list.
        let element = (&raw mut shape.element).cast();
        call!(
            self,
            GetTensorElementTypeAndShapeDataReference(value, element, &raw mut dims, &raw mut shape.rank)
        )?;
        if !dims.is_null() && (1..=MAX_RANK).contains(&shape.rank) {
            // SAFETY: *handle*: the runtime lends as many sizes as the tensor has axes, as long as the tensor lives.
            shape.dims[..shape.rank].copy_from_slice(unsafe { slice::from_raw_parts(dims, shape.rank) });
        }
        Ok(shape)
    }

    /// Reads the element type and the axes from the runtime's description of a tensor.
    fn described(&self, info: *const OrtTensorTypeAndShapeInfo) -> Result<TensorShape, OperatorError> {
        let mut shape = TensorShape::default();
        // Read as an integer, because a newer runtime has types that the enumeration does not list.
        call!(self, GetTensorElementType(info, (&raw mut shape.element).cast()))?;
        call!(self, GetDimensionsCount(info, &raw mut shape.rank))?;
        if shape.rank <= MAX_RANK {
            call!(self, GetDimensions(info, shape.dims.as_mut_ptr(), shape.rank))?;
        }
        Ok(shape)
    }

    /// Returns the CUDA stream of a call of the CUDA provider; null for the default stream.
    ///
    /// # Safety
    /// - The caller keeps the clause *handle* of [`Api`].
    pub unsafe fn stream(&self, context: *const OrtKernelContext) -> Result<*mut c_void, OperatorError> {
        let mut stream = ptr::null_mut();
        call!(self, KernelContext_GetGPUComputeStream(context, &raw mut stream)).map(|()| stream)
    }

    /// Returns the allocator of a node's provider; `None` if the runtime lends none.
    ///
    /// # Safety
    /// - The caller keeps the clause *handle* of [`Api`].
    pub unsafe fn allocator(&self, info: *const OrtKernelInfo) -> Option<*mut OrtAllocator> {
        if self.version < WITH_ALLOCATOR {
            return None;
        }
        let mut found = ptr::null_mut();
        call!(self, KernelInfoGetAllocator(info, OrtMemType::OrtMemTypeDefault, &raw mut found)).ok()?;
        Some(found)
    }

    /// Allocates memory, and returns its address.
    ///
    /// # Safety
    /// - The runtime has returned the allocator, which has not been released.
    pub unsafe fn allocate(&self, allocator: *mut OrtAllocator, bytes: usize) -> Result<u64, OperatorError> {
        let mut found = ptr::null_mut();
        call!(self, AllocatorAlloc(allocator, bytes, &raw mut found))
            .map(|()| found.expose_provenance() as u64)
    }

    /// Frees memory.
    ///
    /// # Safety
    /// - As for [`Api::allocate`], which has returned the address; the memory has not been freed.
    pub unsafe fn free(&self, allocator: *mut OrtAllocator, address: u64) {
        let memory = ptr::with_exposed_provenance_mut(address as usize);
        // A status could only say that the allocator does not know the memory.
        let _ = call!(self, AllocatorFree(allocator, memory));
    }

    /// Releases the handle of an allocator.
    ///
    /// # Safety
    /// - The runtime has returned the allocator, which has not been released.
    pub unsafe fn release_allocator(&self, allocator: *mut OrtAllocator) {
        // SAFETY: *table*, and the clause of this function.
        unsafe { ((*self.table).ReleaseAllocator)(allocator) };
    }
}

/// Returns the message of an error as a C string.
pub(crate) fn message(e: &OperatorError) -> CString {
    let text = e.to_string().replace('\0', " ");
    CString::new(text).unwrap_or_default()
}

/// Converts the number that ONNX assigns to an element type to the runtime's enumeration. Types that the operator does
/// not support become undefined.
pub(crate) fn element_type(element: i32) -> ort_sys::ONNXTensorElementDataType {
    use ort_sys::ONNXTensorElementDataType as T;
    match element {
        1 => T::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
        10 => T::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16,
        _ => T::ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED,
    }
}
