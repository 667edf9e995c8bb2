//! Looks up symbols in libraries that the process has already loaded, and loads none.

use std::ffi::{CStr, c_void};
use std::mem;

/// Looks up a symbol of a library; `None` if the process has not loaded the library, or if the library lacks the symbol.
fn symbol(library: &CStr, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: both texts end with a zero. RTLD_NOLOAD runs no code of a library. The handle is not closed, so the library
    // stays loaded.
    let found = unsafe {
        let handle = libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if handle.is_null() { return None } else { libc::dlsym(handle, name.as_ptr()) }
    };
    (!found.is_null()).then_some(found)
}

type Allocate = unsafe extern "C" fn(usize) -> *mut c_void;
type Construct = unsafe extern "C" fn(*mut c_void, *const std::ffi::c_char);
type Throw = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void, *mut c_void) -> !;

/// Functions that throw exceptions through the C++ library that the process has loaded.
///
/// Before version 1.16 of the interface, a kernel of ONNX Runtime cannot return a status. It reports an error by
/// throwing an exception, which the runtime catches.
#[derive(Clone, Copy)]
pub(crate) struct Exceptions {
    allocate: Allocate,
    construct: Construct,
    throw: Throw,
    /// Type information of `std::runtime_error`. `destroy` is its destructor.
    kind: *mut c_void,
    destroy: *mut c_void,
}

// SAFETY: the fields are addresses of code and constants, which every thread may use.
unsafe impl Send for Exceptions {}
// SAFETY: as above.
unsafe impl Sync for Exceptions {}

impl Exceptions {
    /// Looks up the functions that throw exceptions; `None` if the process has not loaded the GNU C++ library.
    pub fn find() -> Option<Exceptions> {
        let of = |name| symbol(c"libstdc++.so.6", name);
        let (allocate, construct, throw) =
            (of(c"__cxa_allocate_exception")?, of(c"_ZNSt13runtime_errorC1EPKc")?, of(c"__cxa_throw")?);
        // SAFETY: the functions have these types. The Itanium C++ ABI specifies the types of its own functions, and the
        // mangled name of the constructor std::runtime_error(const char *) contains the type of the constructor.
        let (allocate, construct, throw) = unsafe {
            (
                mem::transmute::<*mut c_void, Allocate>(allocate),
                mem::transmute::<*mut c_void, Construct>(construct),
                mem::transmute::<*mut c_void, Throw>(throw),
            )
        };
        let (kind, destroy) = (of(c"_ZTISt13runtime_error")?, of(c"_ZNSt13runtime_errorD1Ev")?);
        Some(Exceptions { allocate, construct, throw, kind, destroy })
    }

    /// Creates a `std::runtime_error` with a copy of `message`.
    pub fn make(&self, message: &CStr) -> Exception {
        // SAFETY: a std::runtime_error consists of a pointer to its functions and a pointer to its text. It is
        // constructed in the memory of an exception, as the ABI requires.
        let object = unsafe {
            let object = (self.allocate)(2 * size_of::<*mut c_void>());
            (self.construct)(object, message.as_ptr());
            object
        };
        Exception { throw: self.throw, object, kind: self.kind, destroy: self.destroy }
    }
}

/// An exception that has been created but not thrown. It needs no drop.
#[derive(Clone, Copy)]
pub(crate) struct Exception {
    throw: Throw,
    object: *mut c_void,
    kind: *mut c_void,
    destroy: *mut c_void,
}

impl Exception {
    /// Throws the exception.
    ///
    /// # Safety
    /// - *caught*: C++ code calls the caller of this method, and catches the exception. The caller has nothing to drop and
    ///   catches nothing, and the exception is thrown once.
    #[inline(always)]
    pub unsafe fn throw(self) -> ! {
        // SAFETY: *caught*; type and destructor are those of the constructed object.
        unsafe { (self.throw)(self.object, self.kind, self.destroy) }
    }
}

/// Returns the address of the current CUDA context of this thread; `None` without a context or a driver.
pub(crate) fn current_context() -> Option<usize> {
    let found = symbol(c"libcuda.so.1", c"cuCtxGetCurrent")?;
    // SAFETY: the driver's function has this type.
    let get = unsafe {
        mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut *mut c_void) -> std::ffi::c_int>(found)
    };
    let mut context = std::ptr::null_mut();
    // SAFETY: the function writes to a local.
    let code = unsafe { get(&raw mut context) };
    (code == 0 && !context.is_null()).then_some(context.addr())
}
