//! `libelsa_ort.so`: exact attention, linear attention, scans and convolutions as operators of ONNX Runtime, in the domain
//! `ai.elsa`.
//!
//! OPERATOR.md specifies the operators and their registration. The library exports one function, `RegisterCustomOps`,
//! through which every interface of ONNX Runtime loads operators.
//!
//! **The naive way** compiles against the headers of one version of ONNX Runtime, and links its library.
//!
//! **Why the code differs.**
//!
//! 1. *One file supports every version from 1.10 on.* The runtime passes its table of functions. Tables only grow, so
//!    the library requests the newest version that it and the runtime know (`register`), declares no newer version in the
//!    operator's own table (`operator`), and calls functions newer than 1.10 only if the runtime has them (`api`).
//! 2. *Nothing is linked.* Types come from the crate `ort-sys`, whose linking is disabled.
//! 3. *Before version 1.16, a kernel cannot return a status.* It reports an error by throwing a `std::runtime_error`
//!    of the C++ library that the process has loaded; the functions that throw it are looked up when the operator is
//!    registered (`host`). The exception unwinds through a single function of this library, which has nothing to drop.
//! 4. *Before version 1.18, the runtime accepts only one table per operator*, and cannot infer the type of the outputs
//!    from several inputs of unknown type. Outputs are then f32, or the type in the environment variable
//!    `ELSA_ORT_TYPE`. Later runtimes accept one table for each element type.
//! 5. *The library stays loaded.* The runtime unloads it with its last session, but its engines have threads, and kernels
//!    on a GPU, and serve the whole process (`build.rs`).
//! 6. *Workspaces on a GPU* are memory of the provider, from version 1.18 on (`memory`).
//!
//! Each operator supplies its inputs, attributes, and the problem of a call (`operation`); everything else is generic.
//!
//! A call looks up the plan for the shapes of its tensors (`cache`), binds their memory (`tensors`) and runs. All nodes
//! of the process share its engines (`engines`).

mod api;
mod attention;
mod attributes;
mod cache;
mod engines;
mod error;
mod host;
mod kernel;
mod lent;
mod linear;
mod memory;
mod operation;
mod operator;
mod register;
mod series;
mod shapes;
mod signature;
mod tensors;

pub use error::OperatorError;

use ort_sys::{OrtApiBase, OrtSessionOptions, OrtStatusPtr};

/// Adds the operators to the options of a session. ONNX Runtime calls this function when a program registers the
/// library.
///
/// # Safety
/// ONNX Runtime passes both pointers. The library stays loaded as long as the sessions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn RegisterCustomOps(
    options: *mut OrtSessionOptions,
    base: *const OrtApiBase,
) -> OrtStatusPtr {
    if base.is_null() {
        return OrtStatusPtr::default();
    }
    let runtime = operator::walled(|| {
        // SAFETY: the clause of this function.
        Ok(unsafe { register::runtime(base) })
    });
    // Without a table there is no way to report anything.
    let Ok(Some(runtime)) = runtime else { return OrtStatusPtr::default() };
    let done = operator::walled(|| {
        // SAFETY: the clause of this function.
        unsafe { register::register(&runtime, options) }
    });
    runtime.api.status(done)
}
