//! Modules, and the kernels that they contain.

use super::api::{function, jit};
use super::context::Context;
use super::device::until_zero;
use super::resource::resource;
use crate::error::DeviceError;
use cudarc::driver::sys::{CUfunction, CUmodule};
use std::ffi::{CString, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

/// A module that the driver has loaded.
#[derive(Debug)]
pub struct Module {
    context: Arc<Context>,
    raw: Option<CUmodule>,
}

/// A kernel of a module.
#[derive(Clone, Debug)]
pub struct Function {
    pub(super) raw: CUfunction,
    // Keeps the module loaded.
    module: Arc<Module>,
}

// SAFETY: every thread that makes the context current may launch a function.
unsafe impl Send for Function {}
// SAFETY: as for `Send` above.
unsafe impl Sync for Function {}

impl Module {
    /// Loads an image: a cubin, or PTX text that ends with a zero byte, which is compiled with the optimisation level `level`.
    ///
    /// # Errors
    /// Returns the driver's error and the log of its compiler.
    pub fn load(
        context: &Arc<Context>,
        image: &[u8],
        level: Option<u32>,
    ) -> Result<Module, (DeviceError, String)> {
        let entered = context.enter().map_err(|e| (e, String::new()))?;
        let _relaxed = entered.relax().map_err(|e| (e, String::new()))?;
        let (mut info, mut error) = (vec![0u8; jit::LOG_BYTES], vec![0u8; jit::LOG_BYTES]);
        let mut options =
            [jit::INFO_LOG, jit::INFO_LOG_SIZE, jit::ERROR_LOG, jit::ERROR_LOG_SIZE, jit::OPTIMIZATION_LEVEL];
        let size = ptr::without_provenance_mut(jit::LOG_BYTES - 1);
        let own = ptr::without_provenance_mut(level.unwrap_or(0) as usize);
        let mut values: [*mut c_void; 5] =
            [info.as_mut_ptr().cast(), size, error.as_mut_ptr().cast(), size, own];
        let count = if level.is_some() { options.len() } else { options.len() - 1 };
        let mut raw = ptr::null_mut();
        // SAFETY: *current*; *room*: the call writes a handle and logs of the given sizes, and reads `count` options with
        // their values. PTX ends with zero, and a cubin contains its size.
        let code = unsafe {
            (context.api().cuModuleLoadDataEx)(
                &raw mut raw,
                image.as_ptr().cast(),
                count as c_uint,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        entered.check("cuModuleLoadDataEx", code).map_err(|e| (e, until_zero(&error)))?;
        Ok(Module { context: context.clone(), raw: Some(raw) })
    }

    /// Returns the kernel named `name`.
    ///
    /// # Errors
    /// Returns the error that the driver reports.
    pub fn function(self: &Arc<Module>, name: &str) -> Result<Function, DeviceError> {
        let entered = self.context.enter()?;
        let symbol = CString::new(name).unwrap_or_default();
        let mut raw = ptr::null_mut();
        // SAFETY: *handle*, *current*; *room*: the call writes a handle, and the name ends with zero.
        let code = unsafe {
            (self.context.api().cuModuleGetFunction)(
                &raw mut raw,
                self.raw.unwrap_or(ptr::null_mut()),
                symbol.as_ptr(),
            )
        };
        entered.check("cuModuleGetFunction", code)?;
        Ok(Function { raw, module: self.clone() })
    }
}

impl Function {
    /// Returns the number of registers that each thread of the kernel has.
    ///
    /// # Errors
    /// Returns the error that the driver reports.
    pub fn registers(&self) -> Result<u32, DeviceError> {
        self.attribute(function::REGISTERS)
    }

    /// Returns the number of bytes of local memory that each thread of the kernel has. The compiler keeps spilled
    /// registers there.
    ///
    /// # Errors
    /// Returns the error that the driver reports.
    pub fn local_bytes(&self) -> Result<u32, DeviceError> {
        self.attribute(function::LOCAL_BYTES)
    }

    /// Permits launches with up to `bytes` bytes of shared memory in addition to the kernel's own.
    ///
    /// # Errors
    /// Returns the error that the driver reports.
    pub fn allow_shared(&self, bytes: u32) -> Result<(), DeviceError> {
        let entered = self.module.context.enter()?;
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
        // SAFETY: *handle*, *current*.
        let code = unsafe {
            (self.module.context.api().cuFuncSetAttribute)(self.raw, function::MOST_DYNAMIC_SHARED, bytes)
        };
        entered.check("cuFuncSetAttribute", code)
    }

    fn attribute(&self, attribute: i32) -> Result<u32, DeviceError> {
        let entered = self.module.context.enter()?;
        let mut value = 0;
        // SAFETY: *handle*, *current*; *room*: the call writes an integer.
        let code =
            unsafe { (self.module.context.api().cuFuncGetAttribute)(&raw mut value, attribute, self.raw) };
        entered.check("cuFuncGetAttribute", code)?;
        Ok(value.unsigned_abs())
    }
}

resource!(Module, cuModuleUnload, raw);
