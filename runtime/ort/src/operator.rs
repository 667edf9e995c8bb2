//! The operators as ONNX Runtime expects them: a table of functions for each operator, provider and element type. No
//! function lets a panic pass into the runtime.

use crate::api::{Api, element_type, message};
use crate::error::OperatorError;
use crate::host::{Exception, Exceptions};
use crate::kernel::{Computes, Kernel};
use crate::operation::{Operation, Provider};
use crate::shapes::FLOAT;
use crate::signature::{Declared, Parameter, Signature};
use ort_sys::{
    ONNXTensorElementDataType, OrtApi, OrtCustomOp, OrtCustomOpInputOutputCharacteristic as Characteristic,
    OrtKernelContext, OrtKernelInfo, OrtMemType, OrtStatusPtr,
};
use std::ffi::{c_char, c_int, c_void};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Creates a node of an operator, whose outputs are declared with an element type.
type Create = unsafe fn(Api, Provider, i32, *const OrtKernelInfo) -> Result<Box<dyn Computes>, OperatorError>;

/// An operator for one provider and one element type.
///
/// Clauses cited by unsafe blocks:
/// - *operator*: the runtime passes the registered table, which is the first field of an [`Operator`] that lives as long as
///   the process.
/// - *kernel*: the runtime passes the pointer that the creation function returned. It does so until it destroys the
///   kernel, which happens once.
/// - *table* and *handle*: the clauses of these names in [`Api`].
#[repr(C)]
pub(crate) struct Operator {
    table: OrtCustomOp,
    signature: &'static Signature,
    create: Create,
    provider: Provider,
    version: u32,
    /// Element type of outputs that are [`Declared::Main`].
    output: i32,
    /// `true` if inputs that are [`Declared::Main`] have the type `output`; otherwise every input accepts any type.
    typed: bool,
    /// Functions that throw an exception, for a runtime whose kernels cannot return a status.
    exceptions: Option<Exceptions>,
}

/// The first version in which a kernel returns a status.
pub(crate) const WITH_STATUS: u32 = 16;

/// Runs `body`, and converts a panic to an error.
pub(crate) fn walled<T>(body: impl FnOnce() -> Result<T, OperatorError>) -> Result<T, OperatorError> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let message = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(OperatorError::Panic { message })
    })
}

/// Returns the operator that contains `table`.
///
/// # Safety
/// - The caller keeps the clause *operator* of [`Operator`].
unsafe fn operator<'a>(table: *const OrtCustomOp) -> &'a Operator {
    // SAFETY: the clause of this function.
    unsafe { &*table.cast::<Operator>() }
}

/// Creates a node and returns the pointer that the runtime keeps.
///
/// # Safety
/// - The caller keeps the clauses *operator*, *table* and *handle* of [`Operator`].
unsafe fn created(
    table: *const OrtCustomOp,
    api: *const OrtApi,
    info: *const OrtKernelInfo,
) -> Result<*mut c_void, OperatorError> {
    walled(|| {
        // SAFETY: the clauses of this function.
        let kernel = unsafe {
            let operator = operator(table);
            (operator.create)(Api::new(api, operator.version), operator.provider, operator.output, info)?
        };
        Ok(Box::into_raw(Box::new(Shared { kernel, operator: table })).cast())
    })
}

/// The data of a node, to which the runtime keeps a pointer.
struct Shared {
    kernel: Box<dyn Computes>,
    operator: *const OrtCustomOp,
}

/// Creates the exception for a runtime whose kernels cannot return a status.
///
/// # Safety
/// - The caller keeps the clause *operator* of [`Operator`].
unsafe fn exception(table: *const OrtCustomOp, e: OperatorError) -> Exception {
    // SAFETY: the clause of this function.
    match unsafe { operator(table) }.exceptions {
        Some(exceptions) => exceptions.make(&message(&e)),
        None => unreachable!("registration refuses such a runtime"),
    }
}

/// Creates a node, or the exception to throw.
///
/// # Safety
/// - The caller keeps the clauses *operator*, *table* and *handle* of [`Operator`].
#[inline(never)]
unsafe fn created_or_exception(
    table: *const OrtCustomOp,
    api: *const OrtApi,
    info: *const OrtKernelInfo,
) -> Result<*mut c_void, Exception> {
    // SAFETY: the clauses of this function.
    unsafe { created(table, api, info).map_err(|e| exception(table, e)) }
}

/// Executes a call. If the call fails, returns the exception to throw.
///
/// # Safety
/// - The caller keeps the clauses *kernel* and *handle* of [`Operator`].
#[inline(never)]
unsafe fn computed_or_exception(kernel: *mut c_void, context: *mut OrtKernelContext) -> Option<Exception> {
    // SAFETY: the clauses of this function.
    unsafe {
        let shared = &*kernel.cast::<Shared>();
        walled(|| shared.kernel.compute(context)).err().map(|e| exception(shared.operator, e))
    }
}

/// Creates a node, or throws an exception to the runtime. The exception passes through only this function, which has
/// nothing to drop and catches nothing. The function has no Rust unwind tables: such tables would call the unwinder that
/// this library was built with, but a different unwinder throws the exception.
///
/// # Safety
/// - The caller keeps the clauses *operator*, *table* and *handle* of [`Operator`].
unsafe extern "C-unwind" fn create_or_throw(
    table: *const OrtCustomOp,
    api: *const OrtApi,
    info: *const OrtKernelInfo,
) -> *mut c_void {
    // SAFETY: the clauses of this function; *caught*: as above.
    unsafe {
        match created_or_exception(table, api, info) {
            Ok(kernel) => kernel,
            Err(exception) => exception.throw(),
        }
    }
}

/// Executes a call, or throws an exception to the runtime in the same way as [`create_or_throw`].
///
/// # Safety
/// - The caller keeps the clauses *kernel* and *handle* of [`Operator`].
unsafe extern "C-unwind" fn compute_or_throw(kernel: *mut c_void, context: *mut OrtKernelContext) {
    // SAFETY: the clauses of this function; *caught*: as in `create_or_throw`.
    unsafe {
        if let Some(exception) = computed_or_exception(kernel, context) {
            exception.throw()
        }
    }
}

/// Creates a node, stores its pointer in `kernel` and returns the status.
///
/// # Safety
/// - The caller keeps the clauses *operator*, *table* and *handle* of [`Operator`]; `kernel` is valid for a write.
unsafe extern "system" fn create(
    table: *const OrtCustomOp,
    api: *const OrtApi,
    info: *const OrtKernelInfo,
    kernel: *mut *mut c_void,
) -> OrtStatusPtr {
    // SAFETY: the clauses of this function.
    unsafe {
        let done = created(table, api, info).map(|created| *kernel = created);
        Api::new(api, operator(table).version).status(done)
    }
}

/// Executes a call and returns its status.
///
/// # Safety
/// - The caller keeps the clauses *kernel* and *handle* of [`Operator`].
unsafe extern "system" fn compute(kernel: *mut c_void, context: *mut OrtKernelContext) -> OrtStatusPtr {
    // SAFETY: the clauses of this function.
    unsafe {
        let kernel = &(*kernel.cast::<Shared>()).kernel;
        kernel.api().status(walled(|| kernel.compute(context)))
    }
}

/// Frees a node; null is ignored.
///
/// # Safety
/// - The caller keeps the clause *kernel* of [`Operator`].
unsafe extern "system" fn destroy(kernel: *mut c_void) {
    if !kernel.is_null() {
        // A panic while memory is freed cannot be reported.
        let _ = walled(|| {
            // SAFETY: the clause of this function.
            drop(unsafe { Box::from_raw(kernel.cast::<Shared>()) });
            Ok(())
        });
    }
}

/// Returns the name of the operator.
///
/// # Safety
/// - The caller keeps the clause *operator* of [`Operator`].
unsafe extern "system" fn name(table: *const OrtCustomOp) -> *const c_char {
    // SAFETY: the clause of this function.
    unsafe { operator(table) }.signature.name.as_ptr()
}

/// Returns the name of the operator's provider.
///
/// # Safety
/// - The caller keeps the clause *operator* of [`Operator`].
unsafe extern "system" fn provider(table: *const OrtCustomOp) -> *const c_char {
    // SAFETY: the clause of this function.
    match unsafe { operator(table) }.provider {
        Provider::Cpu => c"CPUExecutionProvider".as_ptr(),
        Provider::Cuda => CUDA.as_ptr(),
    }
}

/// The name of the CUDA provider.
pub(crate) const CUDA: &std::ffi::CStr = c"CUDAExecutionProvider";

/// Returns input `index` of the operator.
///
/// # Safety
/// - The caller keeps the clause *operator* of [`Operator`].
unsafe fn input(table: *const OrtCustomOp, index: usize) -> Option<&'static Parameter> {
    // SAFETY: the clause of this function.
    unsafe { operator(table) }.signature.inputs.get(index)
}

/// Returns output `index` of the operator.
///
/// # Safety
/// - The caller keeps the clause *operator* of [`Operator`].
unsafe fn output(table: *const OrtCustomOp, index: usize) -> Option<&'static Parameter> {
    // SAFETY: the clause of this function.
    unsafe { operator(table) }.signature.outputs.get(index)
}

/// Returns the declared element type of an input; undefined if the input accepts several types.
///
/// # Safety
/// - The caller keeps the clause *operator* of [`Operator`].
unsafe extern "system" fn input_type(table: *const OrtCustomOp, index: usize) -> ONNXTensorElementDataType {
    // SAFETY: the clause of this function.
    let (operator, parameter) = unsafe { (operator(table), input(table, index)) };
    if operator.typed && parameter.is_some_and(|parameter| parameter.declared == Declared::Main) {
        element_type(operator.output)
    } else {
        ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED
    }
}

/// Returns the element type of an output.
///
/// # Safety
/// - The caller keeps the clause *operator* of [`Operator`].
unsafe extern "system" fn output_type(table: *const OrtCustomOp, index: usize) -> ONNXTensorElementDataType {
    // SAFETY: the clause of this function.
    let (operator, parameter) = unsafe { (operator(table), output(table, index)) };
    match parameter.map(|parameter| parameter.declared) {
        Some(Declared::F32) => element_type(FLOAT),
        _ => element_type(operator.output),
    }
}

/// Returns the number of inputs.
///
/// # Safety
/// - The caller keeps the clause *operator* of [`Operator`].
unsafe extern "system" fn input_count(table: *const OrtCustomOp) -> usize {
    // SAFETY: the clause of this function.
    unsafe { operator(table) }.signature.inputs.len()
}

/// Returns the number of outputs.
///
/// # Safety
/// - The caller keeps the clause *operator* of [`Operator`].
unsafe extern "system" fn output_count(table: *const OrtCustomOp) -> usize {
    // SAFETY: the clause of this function.
    unsafe { operator(table) }.signature.outputs.len()
}

/// Returns whether a node may omit an input or output.
fn characteristic(parameter: Option<&Parameter>) -> Characteristic {
    match parameter {
        Some(Parameter { required: true, .. }) => Characteristic::INPUT_OUTPUT_REQUIRED,
        _ => Characteristic::INPUT_OUTPUT_OPTIONAL,
    }
}

/// Returns whether a node may omit an input.
///
/// # Safety
/// - The caller keeps the clause *operator* of [`Operator`].
unsafe extern "system" fn input_characteristic(table: *const OrtCustomOp, index: usize) -> Characteristic {
    // SAFETY: the clause of this function.
    characteristic(unsafe { input(table, index) })
}

/// Returns whether a node may omit an output.
///
/// # Safety
/// - The caller keeps the clause *operator* of [`Operator`].
unsafe extern "system" fn output_characteristic(table: *const OrtCustomOp, index: usize) -> Characteristic {
    // SAFETY: the clause of this function.
    characteristic(unsafe { output(table, index) })
}

/// Returns the memory type of an input. With the CUDA provider, an input is in the memory of the provider, except one that
/// is [`Declared::OnHost`].
///
/// # Safety
/// - The caller keeps the clause *operator* of [`Operator`].
unsafe extern "system" fn memory(table: *const OrtCustomOp, index: usize) -> OrtMemType {
    // SAFETY: the clause of this function.
    let (provider, parameter) = unsafe { (operator(table).provider, input(table, index)) };
    match parameter {
        Some(Parameter { declared: Declared::OnHost, .. }) if provider == Provider::Cuda => {
            OrtMemType::OrtMemTypeCPUInput
        }
        _ => OrtMemType::OrtMemTypeDefault,
    }
}

unsafe extern "system" fn one(_: *const OrtCustomOp) -> c_int {
    1
}

unsafe extern "system" fn largest(_: *const OrtCustomOp) -> c_int {
    c_int::MAX
}

impl Operator {
    /// Creates the operator `O` for a provider, and for a runtime of `version`. `output` is the element type of outputs
    /// that are [`Declared::Main`]. If `typed`, inputs that are [`Declared::Main`] are declared with the same type.
    pub fn new<O: Operation>(
        version: u32,
        provider: Provider,
        output: i32,
        typed: bool,
        exceptions: Option<Exceptions>,
    ) -> Operator {
        type CreateKernel =
            unsafe extern "system" fn(*const OrtCustomOp, *const OrtApi, *const OrtKernelInfo) -> *mut c_void;
        type Compute = unsafe extern "system" fn(*mut c_void, *mut OrtKernelContext);
        type Throwing = unsafe extern "C-unwind" fn(
            *const OrtCustomOp,
            *const OrtApi,
            *const OrtKernelInfo,
        ) -> *mut c_void;
        type ThrowingCompute = unsafe extern "C-unwind" fn(*mut c_void, *mut OrtKernelContext);
        // SAFETY: on Linux, both calling conventions are those of C. Only the runtime calls the functions, and
        // exceptions may pass through them.
        let (create_kernel, compute_kernel) = unsafe {
            (
                mem::transmute::<Throwing, CreateKernel>(create_or_throw),
                mem::transmute::<ThrowingCompute, Compute>(compute_or_throw),
            )
        };
        let table = OrtCustomOp {
            version,
            CreateKernel: Some(create_kernel),
            GetName: Some(name),
            GetExecutionProviderType: Some(self::provider),
            GetInputType: Some(input_type),
            GetInputTypeCount: Some(input_count),
            GetOutputType: Some(output_type),
            GetOutputTypeCount: Some(output_count),
            KernelCompute: Some(compute_kernel),
            KernelDestroy: Some(destroy),
            GetInputCharacteristic: Some(input_characteristic),
            GetOutputCharacteristic: Some(output_characteristic),
            GetInputMemoryType: Some(memory),
            GetVariadicInputMinArity: Some(one),
            GetVariadicInputHomogeneity: Some(one),
            GetVariadicOutputMinArity: Some(one),
            GetVariadicOutputHomogeneity: Some(one),
            CreateKernelV2: Some(create),
            KernelComputeV2: Some(compute),
            // `None`: before the runtime calls such a function, it reads the types of all inputs, and the runtime fails
            // if an input is absent.
            InferOutputShapeFn: None,
            GetStartVersion: Some(one),
            GetEndVersion: Some(largest),
            // `None`: no output shares the memory of an input.
            GetMayInplace: None,
            ReleaseMayInplace: None,
            GetAliasMap: None,
            ReleaseAliasMap: None,
        };
        let (signature, create) = (O::SIGNATURE, Kernel::<O>::create as Create);
        Operator { table, signature, create, provider, version, output, typed, exceptions }
    }

    /// Returns the provider on which the operator computes.
    pub fn provider(&self) -> Provider {
        self.provider
    }

    /// Returns the table that the runtime receives.
    pub fn table(&'static self) -> *const OrtCustomOp {
        &raw const self.table
    }
}
